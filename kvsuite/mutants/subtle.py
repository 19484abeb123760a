"""Faults that show where two paths meet: a refusal and a cancel, a fork and a preemption, two releases."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from kvsuite.cache.paged import Admitted, PagedCache
from kvsuite.engine.contract import NO_OPS, Ops, Release
from kvsuite.engine.extensions.async_steps import AsyncEngine
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.engine.extensions.lookahead import LookaheadCache, LookaheadEngine
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.engine.extensions.window import WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsuite.cache.block_table import BlockTable
    from kvsuite.cache.paged import Shortfall
    from kvsuite.engine.extensions.tiers import Chain
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenRun


@mutant(
    "refused-keys-by-length",
    caught_by="content",
    killer="conformance/test_admit_pressure.py::test_preemptions_fall_with_head_room",
    kind="KEY",
    shown_by="a refused prompt that is cancelled, and after it another one of the same length",
)
class RefusedKeysByLength(ReferenceEngine):
    """Keys worked out for a refused prompt are used for the next prompt of the same length."""

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        if self._refused is not None and self._refused[0].stop == prompt.stop:
            return self._refused[1]
        return super()._prompt_keys(prompt)


class _LateCountCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        pending = len(self._copies)
        grown = super()._grow(sequence, table, length)
        self._copies[pending:] = [
            replace(copy, num_tokens=min(copy.num_tokens, length % self.block_size))
            for copy in self._copies[pending:]
        ]
        return grown


@mutant(
    "copy-counts-after-growth",
    caught_by="content",
    killer="conformance/test_copy_on_write.py::test_all_diverge_in_one_step",
    kind="SHARE",
    shown_by="a forked sequence whose first own token fills the shared block",
)
class CopyCountsAfterGrowth(ReferenceEngine):
    """A copy on write is as long as the last block after the growth, so one that fills it copies nothing."""

    cache_type = _LateCountCache


class _FloorPromiseCache(PagedCache):
    def admit(
        self,
        sequence: str,
        num_tokens: int,
        *,
        first_chunk_tokens: int | None = None,
        keys: Sequence[Hashable] = (),
    ) -> Admitted | Shortfall:
        answer = super().admit(sequence, num_tokens, first_chunk_tokens=first_chunk_tokens, keys=keys)
        if isinstance(answer, Admitted):
            left_blocks = (num_tokens - answer.scheduled_tokens) // self.block_size
            table = self._tables[sequence]
            self._promise(table, min(table.promised_blocks, left_blocks))
        return answer


@mutant(
    "promise-rounds-down",
    caught_by="promise",
    killer="conformance/test_promises.py::test_two_prompts_in_chunks_never_count_on_the_same_block",
    kind="ADMIT",
    shown_by="a prompt in chunks that ends inside a block, and another that wants that block",
)
class PromiseRoundsDown(ReferenceEngine):
    """The blocks promised to a prompt in chunks are the tokens left over the block size, rounded down."""

    cache_type = _FloorPromiseCache


class _SourceGoneCache(PagedCache):
    def release(self, sequence: str) -> None:
        super().release(sequence)
        self._copies = [copy for copy in self._copies if self._ref_counts[copy.source]]


@mutant(
    "copy-dropped-with-source",
    caught_by="content",
    killer="conformance/test_every_byte.py::test_every_step_closes",
    kind="SHARE",
    shown_by="a forked sequence that writes, and in the same step the other holder of its block leaves",
)
class CopyDroppedWithSource(ReferenceEngine):
    """A pending copy is dropped when the last holder of its source leaves before the step begins."""

    cache_type = _SourceGoneCache


class _SettledReleaseCache(LookaheadCache):
    def release(self, sequence: str) -> None:
        table = self._table(sequence, "release")
        del table.blocks[self.blocks_for(table.length) :]
        super().release(sequence)


@mutant(
    "release-misses-drafts",
    caught_by="closure",
    killer="conformance/test_leak.py::test_drafts_that_no_step_settled_leave_too",
    kind="SPEC",
    shown_by="a sequence that leaves with look-ahead that no step has settled",
)
class ReleaseMissesDrafts(LookaheadEngine):
    """A release gives back the blocks of the tokens held, and not those taken ahead of them."""

    cache_type = _SettledReleaseCache


@mutant(
    "window-remembers-preempted",
    caught_by="lengths",
    killer="conformance/test_divergence.py::test_fifty_samples_come_to_an_end_under_a_scheduler",
    kind="GROUP",
    shown_by="a sequence preempted after its window had slid, resumed and run on",
)
class WindowRemembersPreempted(WindowEngine):
    """A resumed sequence lets blocks go from where its window stood before, and keeps those in front."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds; a preempted one keeps its place in the window."""
        let_go = self._let_go.get(request_id, 0)
        super().release(request_id, reason)
        if reason is Release.PREEMPT and let_go:
            self._let_go[request_id] = let_go


@mutant(
    "group-copies-one-a-step",
    caught_by="content",
    killer="conformance/test_copy_on_write.py::test_all_diverge_in_one_step",
    kind="GROUP",
    shown_by="a fork whose last block is part full in two groups, and a write",
)
class GroupCopiesOneAStep(GroupsEngine):
    """A step takes the copies of the first group that has any; those of the others wait for the next one."""

    def take_ops(self) -> Ops:
        """Return the copies of one group."""
        for group in self.groups:
            copies = group.take_ops().copies
            if copies:
                return Ops(tuple(replace(copy, pool=group.key) for copy in copies))
        return NO_OPS


@mutant(
    "transfer-refs-reused",
    caught_by="pins",
    killer="conformance/test_tier.py::test_a_late_answer_ends_no_other_transfer",
    kind="TIER",
    shown_by="an expired transfer, a new one, and then the late answer to the first",
)
class TransferRefsReused(TiersEngine):
    """A transfer gets the lowest number not in use, so the late answer to an expired one ends another."""

    def _begin(self, chain: Chain, source: int, target: int, *, to_host: bool) -> None:
        self._next_ref = next(ref for ref in count() if ref not in self._moves)
        super()._begin(chain, source, target, to_host=to_host)


class _KeptTailCache(PagedCache):
    keeps_tail = False

    def _drop(self, blocks: Sequence[int]) -> None:
        if not self.keeps_tail or self.prefixes is None:
            super()._drop(blocks)
            return
        self.pool.drop(blocks, {*self.prefixes.key_of, *blocks[:1]})


@mutant(
    "cancelled-tail-cached",
    caught_by="keys",
    killer="conformance/test_prefix_map.py::test_a_part_full_block_is_never_cached",
    kind="GAUGE",
    shown_by="a sequence cancelled with a part-full last block",
)
class CancelledTailCached(ReferenceEngine):
    """The last block of a cancelled sequence is listed as cached, though no key leads to it."""

    cache_type = _KeptTailCache

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds."""
        assert isinstance(self.cache, _KeptTailCache)
        self.cache.keeps_tail = reason is Release.CANCEL
        super().release(request_id, reason)
        self.cache.keeps_tail = False


@mutant(
    "quarantine-by-request",
    caught_by="content",
    killer="conformance/test_early.py::test_one_request_leaves_twice_with_a_step_in_flight",
    kind="EARLY",
    shown_by="a request preempted, resumed and released again while the first step is in flight",
)
class QuarantineByRequest(AsyncEngine):
    """What a request leaves behind replaces what it left before, which is given out while in flight."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Take the sequence off; its blocks alone wait for the steps in flight."""
        for left in self._quarantine:
            if left.request_id == request_id:
                self.cache.unpin(left.blocks)
        self._quarantine = [left for left in self._quarantine if left.request_id != request_id]
        super().release(request_id, reason)
