"""Engines that do the right thing and say the wrong one: each breaks one category of the ledger."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability, EngineSpec, Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import NO_BLOCKS, MemoryClaim, PoolSnapshot, Storage
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.trace.model import RequestId

_POOL_POINTER = 0x7F00_0000_0000
_RESERVE_BYTES = 20 << 20
"""What a caching allocator keeps beyond a request: one of its large segments."""


CLOSES = "conformance/test_every_byte.py::test_every_step_closes"


class _Misreport(ReferenceEngine):
    """Always answers with a full snapshot, distorted."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool as it is not."""
        del since
        return tuple(self.distort(shot) for shot in super().snapshot())

    @abstractmethod
    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Return what is said in place of the truth."""


@mutant(
    "repeated-block",
    caught_by="closure",
    category="payload",
    shown_by="three blocks in a table",
    kind="SHARE",
    killer=CLOSES,
)
class RepeatedBlock(_Misreport):
    """A table shows its first block in the place of its second, so a block of payload is nowhere."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Repeat the first entry of the first table that has a block before its last to lose."""
        for row in range(len(shot.request_ids)):
            table = shot.table(row).copy()
            if len(table) > 2:
                table[1] = table[0]
                return _with_table(shot, row, table)
        return shot


@mutant(
    "tail-hidden",
    caught_by="closure",
    category="slack",
    shown_by="two live sequences",
    kind="EDGE",
    killer=CLOSES,
)
class TailHidden(_Misreport):
    """The newest sequence shows another's last block as its own, so a tail with its slack is nowhere."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Put the oldest sequence's last block at the end of the newest table."""
        if len(shot.request_ids) < 2:
            return shot
        row = len(shot.request_ids) - 1
        table = shot.table(row).copy()
        table[-1] = shot.table(0)[-1]
        return _with_table(shot, row, table)


@mutant(
    "entry-too-many",
    caught_by="closure",
    category="over_reserved",
    shown_by="a live sequence",
    kind="EDGE",
    killer=CLOSES,
)
class EntryTooMany(_Misreport):
    """The newest table lists a free block beyond its last one."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Append the block that goes out next to the newest table."""
        if not shot.request_ids or not len(shot.free):
            return shot
        row = len(shot.request_ids) - 1
        return _with_table(shot, row, np.append(shot.table(row), shot.free[-1:]))


@mutant(
    "cached-also-free",
    caught_by="closure",
    category="cached",
    shown_by="a cached block",
    kind="GAUGE",
    killer=CLOSES,
)
class CachedAlsoFree(_Misreport):
    """Cached blocks stand in the free list too, as if they were two kinds of room."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Count cached blocks twice."""
        return replace(shot, free=np.append(shot.free, shot.cached))


@mutant(
    "live-also-free",
    caught_by="closure",
    category="free",
    shown_by="a live sequence",
    kind="EARLY",
    killer=CLOSES,
)
class LiveAlsoFree(_Misreport):
    """The oldest sequence's first block is listed as free."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """List a live block as free."""
        return replace(shot, free=np.append(shot.free, shot.table_blocks[:1]))


@mutant(
    "free-missing", caught_by="closure", category="free", shown_by="a free block", kind="LEAK", killer=CLOSES
)
class FreeMissing(_Misreport):
    """The block that was freed last is missing from the free list."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Leave a free block out."""
        return replace(shot, free=shot.free[:-1])


@mutant(
    "quarantine-hidden",
    caught_by="closure",
    category="quarantined",
    shown_by="an end before the last step",
    kind="LEAK",
    killer="conformance/test_leak.py::test_leaving_at_any_point_is_finishing_there",
)
class QuarantineHidden(ReferenceEngine):
    """Blocks of an ended request are withheld until the next step is done, and reported nowhere."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._withheld: list[int] = []

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Keep the blocks from the pool for now."""
        if reason is not Release.PREEMPT:
            blocks = self.cache.tables[request_id].blocks[::-1].tolist()
            self.cache.pool.hold(blocks)
            self._withheld += blocks
        super().release(request_id, reason)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Give back what was withheld."""
        super().done(step, accepted)
        self.cache._drop(self._withheld)
        self._withheld = []


class _NullBlock(_Misreport):
    """Keeps block 0 back."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, options={**config.options, "null_blocks": 1}))


@mutant(
    "null-unreported",
    caught_by="closure",
    category="never_allocatable",
    shown_by="any request",
    kind="EDGE",
    killer=CLOSES,
)
class NullUnreported(_NullBlock):
    """The null block is listed nowhere."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Leave the null block out."""
        return replace(shot, never_allocatable=NO_BLOCKS)


@mutant(
    "null-as-free",
    caught_by="closure",
    category="never_allocatable",
    shown_by="any request",
    kind="EDGE",
    killer=CLOSES,
)
class NullAsFree(_NullBlock):
    """The null block counts as free room as well."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """List the null block twice."""
        return replace(shot, free=np.append(shot.free, shot.never_allocatable))


@mutant(
    "slack-as-payload",
    caught_by="lengths",
    category="payload",
    shown_by="a length inside a block",
    kind="GAUGE",
    killer=CLOSES,
)
class SlackAsPayload(_Misreport):
    """Lengths are rounded up to whole blocks, so that slack looks like payload and everything adds up."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Fill every last block."""
        return replace(shot, lengths=np.diff(shot.table_offsets) * self.cache.block_size)


@mutant(
    "ref-counts-of-one",
    caught_by="recount",
    shown_by="a shared block",
    kind="SHARE",
    killer="conformance/test_share.py::test_each_holder_counts_once",
)
class RefCountsOfOne(_Misreport):
    """Every live block is said to have one holder."""

    def distort(self, shot: PoolSnapshot) -> PoolSnapshot:
        """Flatten the reference counts."""
        return replace(shot, ref_counts=None if shot.ref_counts is None else np.ones_like(shot.ref_counts))


@mutant(
    "reserve-as-cache",
    caught_by="device",
    shown_by="any request",
    kind="POOL",
    killer="conformance/test_pool.py::test_claimed_cache_is_what_the_storages_hold",
)
class ReserveAsCache(ReferenceEngine):
    """The bytes that the device allocator holds in reserve are claimed as KV cache."""

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is; it claims `Capability.MEMORY`."""
        spec = super().spec
        return replace(spec, capabilities=spec.capabilities | {Capability.MEMORY})

    def memory(self) -> MemoryClaim:
        """Return the pool's storage, and more bytes of cache than it has."""
        pool_bytes = self.spec.pools[0].pool_bytes
        storage = Storage("pool", _POOL_POINTER, pool_bytes, owner=self.name)
        return MemoryClaim((storage,), claimed_cache_bytes=pool_bytes + _RESERVE_BYTES)


def _with_table(shot: PoolSnapshot, row: int, table: Int32Array) -> PoolSnapshot:
    """Return the full snapshot with another table for the sequence in ``row``."""
    tables = [table if other == row else shot.table(other) for other in range(len(shot.request_ids))]
    offsets = np.zeros(len(tables) + 1, np.int64)
    np.cumsum([len(blocks) for blocks in tables], out=offsets[1:])
    return replace(shot, table_offsets=offsets, table_blocks=np.concatenate(tables))
