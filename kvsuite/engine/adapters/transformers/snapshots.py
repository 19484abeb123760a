"""Snapshots of the engine's one pool, at the cost of what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.engine.adapters.transformers.generations import Cache
    from kvsuite.engine.snapshot import Int32Array, Int64Array
    from kvsuite.trace.model import RequestId

_LIVE, _FREE, _CACHED, _NEVER = range(4)


class _Blocks(NamedTuple):
    """The block lists of one snapshot."""

    free: Int32Array
    cached: Int32Array
    live: Int32Array
    counted: Int32Array | None
    ref_counts: Int32Array | None


class PoolView:
    """What was last shown of a pool.

    A full snapshot reads every list of the engine. A changed one asks of each block that an operation touched
    whether a table holds it or the engine keeps it cached, and takes it for free otherwise; where the counts
    of free and cached blocks then are not the engine's own, all is read instead.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._trash = np.array(cache.trash_blocks, np.int32)
        self._shown: dict[RequestId, list[int]] = {}
        self._holders = [0] * cache.num_blocks
        self._state = [_FREE] * cache.num_blocks
        self._counts = [0, 0, 0, 0]
        self._revision = 0

    def take(self, lengths: Mapping[RequestId, int], since: int | None) -> PoolSnapshot:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        cache = self._cache
        changed_only = since is not None and since == self._revision
        self._revision += 1
        ids = tuple(cache.tables)
        if changed_only:
            changed = self._follow_tables(cache.touched.tables)
            blocks = self._follow_blocks(cache.touched.blocks)
            changed_only = self._agrees()
        if not changed_only:
            changed, blocks = set(ids), self._read_all()
        cache.touched.clear()
        rows, offsets, entries = self._tables(ids, changed)
        return PoolSnapshot(
            key=PoolKey(),
            revision=self._revision,
            since=since if changed_only else None,
            request_ids=ids,
            lengths=np.array([lengths.get(request_id, 0) for request_id in ids], np.int64),
            table_rows=rows,
            table_offsets=offsets,
            table_blocks=entries,
            free=blocks.free,
            cached=blocks.cached,
            live=blocks.live,
            never_allocatable=self._trash,
            ref_count_ids=blocks.counted,
            ref_counts=blocks.ref_counts,
        )

    def _follow_tables(self, touched: Iterable[RequestId]) -> set[RequestId]:
        """Recount the holders of blocks for tables that may have changed; return the live ones among them."""
        holders, shown, tables = self._holders, self._shown, self._cache.tables
        changed = set()
        for request_id in touched:
            old, new = shown.pop(request_id, []), tables.get(request_id)
            if new is not None:
                changed.add(request_id)
                shown[request_id] = new[:]
                if new[: len(old)] == old:
                    for block in new[len(old) :]:
                        holders[block] += 1
                    continue
                for block in new:
                    holders[block] += 1
            for block in old:
                holders[block] -= 1
        return changed

    def _agrees(self) -> bool:
        """Return whether the changes followed so far come to the engine's own counts."""
        free, cached = self._counts[_FREE], self._counts[_CACHED]
        return free == self._cache.num_free and cached == len(self._cache.cached)

    def _follow_blocks(self, touched: Iterable[int]) -> _Blocks:
        holders, states, cached = self._holders, self._state, self._cache.cached
        moved: list[list[int]] = [[], [], []]
        counted = list(touched)
        for block in counted:
            state = _LIVE if holders[block] else _CACHED if block in cached else _FREE
            if state != states[block]:
                self._counts[states[block]] -= 1
                self._counts[state] += 1
                states[block] = state
                moved[state].append(block)
        return _Blocks(
            _ids(moved[_FREE]), _ids(moved[_CACHED]), _ids(moved[_LIVE]), *self._ref_counts(counted)
        )

    def _read_all(self) -> _Blocks:
        cache = self._cache
        self._holders = [0] * cache.num_blocks
        self._shown = {request_id: table[:] for request_id, table in cache.tables.items()}
        for table in self._shown.values():
            for block in table:
                self._holders[block] += 1
        free, cached = cache.free_ids(), list(cache.cached)
        self._state = [_LIVE] * cache.num_blocks
        for state, ids in ((_FREE, free), (_CACHED, cached), (_NEVER, cache.trash_blocks)):
            for block in ids:
                self._state[block] = state
        self._counts = [self._state.count(state) for state in (_LIVE, _FREE, _CACHED, _NEVER)]
        held = {block for table in self._shown.values() for block in table}
        return _Blocks(_ids(free), _ids(cached), NO_BLOCKS, *self._ref_counts(sorted(cache.counted(held))))

    def _ref_counts(self, blocks: list[int]) -> tuple[Int32Array | None, Int32Array | None]:
        if not self._cache.counts_refs:
            return None, None
        count, holders = self._cache.ref_count, self._holders
        return _ids(blocks), _ids([count(block, held=holders[block] > 0) for block in blocks])

    def _tables(
        self, ids: tuple[RequestId, ...], wanted: set[RequestId]
    ) -> tuple[Int32Array, Int64Array, Int32Array]:
        rows = [row for row, request_id in enumerate(ids) if request_id in wanted] if wanted else []
        chosen = [self._shown[ids[row]] for row in rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(table) for table in chosen], out=offsets[1:])
        return _ids(rows), offsets, _ids([block for table in chosen for block in table])


def _ids(values: list[int]) -> Int32Array:
    return np.array(values, np.int32) if values else NO_BLOCKS
