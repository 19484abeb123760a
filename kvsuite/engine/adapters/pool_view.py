"""Snapshots of one pool, for engines that take none: changes from a journal, all else from the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsuite.engine.snapshot import NO_BLOCKS, PoolSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.adapters.block_journal import BlockJournal
    from kvsuite.engine.snapshot import Int32Array, PoolSpec
    from kvsuite.trace.model import RequestId


class PoolSource(Protocol):
    """Where a `PoolView` reads: the engine's own structures, ids as the engine has them."""

    def lengths(self) -> Mapping[RequestId, int]:
        """Return the tokens that each live sequence holds slots for, oldest first."""
        ...

    def table(self, request_id: RequestId) -> Int32Array:
        """Return the blocks of a live sequence in token order."""
        ...

    def free(self) -> Int32Array:
        """Return the free list in its order."""
        ...

    def cached(self) -> Int32Array:
        """Return what no sequence holds and can still be hit, first to be evicted first."""
        ...

    def ref_counts(self, blocks: Int32Array | None) -> Int32Array | None:
        """Return the holders of each of ``blocks`` (``None``: of every block), or that no counts are kept."""
        ...


class PoolView:
    """Takes the snapshots of ``pool``; ``changed`` names the sequences whose table changed since the last."""

    def __init__(
        self, pool: PoolSpec, source: PoolSource, journal: BlockJournal, never_allocatable: Int32Array
    ) -> None:
        self.changed: set[RequestId] = set()
        self._pool = pool
        self._source = source
        self._journal = journal
        self._never_allocatable = never_allocatable
        self._revision = 0

    def snapshot(self, since: int | None) -> tuple[PoolSnapshot, ...]:
        """Return what changed when ``since`` is the last revision given out, else all of the pool."""
        changed_only = since is not None and since == self._revision
        self._revision += 1
        moved = self._journal.take()
        lengths = self._source.lengths()
        request_ids = tuple(lengths)
        wanted = self.changed if changed_only else lengths
        rows = [row for row, request_id in enumerate(request_ids) if request_id in wanted]
        tables = [self._source.table(request_ids[row]) for row in rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(table) for table in tables], out=offsets[1:])
        counted, counts = self._ref_counts(moved.touched if changed_only else None)
        self.changed = set()
        return (
            PoolSnapshot(
                key=self._pool.key,
                revision=self._revision,
                since=since if changed_only else None,
                request_ids=request_ids,
                lengths=np.fromiter(lengths.values(), np.int64, len(lengths)),
                table_rows=np.array(rows, np.int32),
                table_offsets=offsets,
                table_blocks=np.concatenate(tables) if tables else NO_BLOCKS,
                free=moved.free if changed_only else self._source.free(),
                cached=moved.cached if changed_only else self._source.cached(),
                live=moved.live if changed_only else NO_BLOCKS,
                never_allocatable=self._never_allocatable,
                ref_count_ids=counted,
                ref_counts=counts,
            ),
        )

    def _ref_counts(self, blocks: Int32Array | None) -> tuple[Int32Array | None, Int32Array | None]:
        counts = self._source.ref_counts(blocks)
        if counts is None or blocks is not None:
            return (None, None) if counts is None else (blocks, counts)
        held = np.flatnonzero(counts).astype(np.int32)
        return held, counts[held]
