"""Engines that lose blocks, count them wrong, break a promise, or only do the right thing otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.engine.contract import Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import NO_BLOCKS, PoolSnapshot
from kvsuite.mutants.table import GOLDEN, mutant

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsuite.trace.model import RequestId


class _LeakingEngine(ReferenceEngine):
    leaks_on: Release

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Leave a holder behind that nobody will ever drop."""
        if reason is self.leaks_on:
            self.cache.pool.hold(self.cache.tables[request_id].blocks)
        super().release(request_id, reason)


@mutant(
    "leak-on-cancel",
    kind="LEAK",
    caught_by="drain",
    shown_by="a running request that is cancelled",
    killer="conformance/test_leak.py::test_leaving_at_any_point_is_finishing_there",
)
class LeakOnCancel(_LeakingEngine):
    """A cancelled request never gives its blocks back."""

    leaks_on = Release.CANCEL


@mutant(
    "leak-on-preempt",
    kind="LEAK",
    caught_by="drain",
    shown_by="a preemption",
    killer="conformance/test_leak.py::test_leaving_at_any_point_is_finishing_there",
)
class LeakOnPreempt(_LeakingEngine):
    """A preempted request never gives its blocks back."""

    leaks_on = Release.PREEMPT


class _SurplusCache(PagedCache):
    def blocks_for(self, num_tokens: int) -> int:
        return num_tokens // self.block_size + 1

    def extend(self, sequence: str, num_tokens: int) -> bool:
        table = self._table(sequence, "extend")
        return self._grow(sequence, table, table.length + num_tokens)


@mutant(
    "surplus-at-boundary",
    caught_by="slack",
    shown_by="a length that is a multiple of the block size",
    kind="EDGE",
    killer="conformance/test_edge.py::test_a_block_that_is_exactly_full_brings_no_other",
)
class SurplusAtBoundary(ReferenceEngine):
    """A sequence that fills its last block exactly holds one more block, empty."""

    cache_type = _SurplusCache


class _LateCache(PagedCache):
    def blocks_for(self, num_tokens: int) -> int:
        return max(1, super().blocks_for(num_tokens - 1))


@mutant(
    "late-block",
    caught_by="slack",
    shown_by="a length one past a multiple of the block size",
    kind="EDGE",
    killer="conformance/test_edge.py::test_a_block_that_is_exactly_full_brings_no_other",
)
class LateBlock(ReferenceEngine):
    """The first token past a block boundary gets no block; the second one does."""

    cache_type = _LateCache


class _GreedyGateCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        if shortfall is not None:
            self.pool.hold(hits)
        return shortfall


@mutant(
    "refusal-keeps-hits",
    caught_by="recount",
    shown_by="a refused request whose prompt begins with a cached prefix",
    kind="ADMIT",
    killer="conformance/test_admit.py::test_a_hit_in_the_free_queue_is_no_room",
)
class RefusalKeepsHits(ReferenceEngine):
    """A refused admission does not let go of the prefix hits it had taken hold of."""

    cache_type = _GreedyGateCache


class _WholePromptHitCache(PagedCache):
    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        return super()._hits(keys, limit + 1)


@mutant(
    "whole-prompt-hit",
    caught_by="hits",
    shown_by="a prompt of whole blocks that is asked for twice",
    kind="KEY",
    killer="conformance/test_key.py::test_the_same_prompt_again",
)
class WholePromptHit(ReferenceEngine):
    """A prompt of whole blocks may be found whole, which leaves no token to compute the next one from."""

    cache_type = _WholePromptHitCache


@mutant(
    "changes-omit-cached",
    caught_by="changes",
    shown_by="a release of a computed prompt",
    kind="KEY",
    killer="conformance/test_prefix_map.py::test_what_is_evicted_is_told",
)
class ChangesOmitCached(ReferenceEngine):
    """Changed snapshots do not list the blocks that became cached."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Forget one kind of change."""
        (shot,) = super().snapshot(since)
        return (shot if shot.is_full else replace(shot, cached=NO_BLOCKS),)


@mutant(
    "changes-omit-freed",
    caught_by="changes",
    shown_by="a release",
    kind="KEY",
    killer="conformance/test_prefix_map.py::test_what_is_evicted_is_told",
)
class ChangesOmitFreed(ReferenceEngine):
    """Changed snapshots leave out one of the blocks that became free."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Forget one change."""
        (shot,) = super().snapshot(since)
        return (shot if shot.is_full else replace(shot, free=shot.free[1:]),)


class _QueueCache(PagedCache):
    def _drop(self, blocks: Sequence[int]) -> None:
        free = self.pool._free
        before = len(free)
        super()._drop(blocks)
        freed = free[before:]
        del free[before:]
        free[0:0] = freed[::-1]


@mutant(
    "free-list-fifo",
    caught_by=GOLDEN,
    shown_by="a block used a second time",
    kind="UNIT",
    killer="regression/test_golden_ledgers.py::test_ledger",
)
class FreeListFifo(ReferenceEngine):
    """The block freed first goes out first: other ids, the same counts, no law broken."""

    cache_type = _QueueCache


class _NewestFirstCache(PagedCache):
    def _drop(self, blocks: Sequence[int]) -> None:
        super()._drop(blocks)
        idle = self.pool._idle
        for block in blocks:
            if block in idle:
                idle.move_to_end(block, last=False)


@mutant(
    "evicts-newest",
    caught_by=GOLDEN,
    shown_by="an eviction and a later hit",
    kind="UNIT",
    killer="regression/test_golden_ledgers.py::test_ledger",
)
class EvictsNewest(ReferenceEngine):
    """The block cached last is evicted first, a chain from its head: fewer hits, no law broken."""

    cache_type = _NewestFirstCache
