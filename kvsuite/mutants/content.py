"""Engines whose books are in order while a sequence reads tokens that are not its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.contract import NO_OPS, Admission, Ops
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant
from kvsuite.trace.tokens import PrefixKey

if TYPE_CHECKING:
    from array import array
    from collections.abc import Hashable, Sequence

    from kvsuite.cache.block_table import BlockTable
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


@mutant(
    "copy-skipped",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer="conformance/test_divergence.py::test_a_burst_takes_exactly_its_demand",
)
class CopySkipped(ReferenceEngine):
    """A private copy is made in the table only: its tokens are never copied."""

    def take_ops(self) -> Ops:
        """Lose the copies."""
        super().take_ops()
        return NO_OPS


@mutant(
    "copy-one-short",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer="conformance/test_divergence.py::test_a_burst_takes_exactly_its_demand",
)
class CopyOneShort(ReferenceEngine):
    """Copy-on-write leaves the last token of the block behind."""

    def take_ops(self) -> Ops:
        """Copy one token less."""
        ops = super().take_ops()
        return replace(ops, copies=tuple(replace(c, num_tokens=c.num_tokens - 1) for c in ops.copies))


class _InPlaceCache(PagedCache):
    def _shares_tail(self, table: BlockTable) -> bool:
        del table
        return False


@mutant(
    "writes-shared-block",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer="conformance/test_divergence.py::test_a_burst_takes_exactly_its_demand",
)
class WritesSharedBlock(ReferenceEngine):
    """A shared block is written in place, for all its holders."""

    cache_type = _InPlaceCache


class _StaleKeyCache(PagedCache):
    def _take(self, count: int) -> array[int]:
        return self.pool.take(count)[0]


@mutant(
    "stale-key",
    caught_by="content",
    shown_by="a prefix asked for again after its eviction",
    kind="KEY",
    killer="conformance/test_prefix_map.py::test_a_prompt_that_was_evicted_is_gone",
)
class StaleKey(ReferenceEngine):
    """An evicted block keeps its key, and is hit for content that it no longer holds."""

    cache_type = _StaleKeyCache


@mutant(
    "publish-on-allocation",
    caught_by="content",
    shown_by="a shared prompt computed in chunks that cut blocks",
    kind="KEY",
    killer="conformance/test_prefix_map.py::test_dropped_before_it_is_computed",
)
class PublishOnAllocation(ReferenceEngine):
    """Blocks of a prompt can be hit as soon as they are allocated, filled or not."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Publish what was just allocated."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted and self.cache.prefixes is not None:
            blocks = self.cache.tables[request_id].blocks
            for block, key in zip(blocks, self._keys[request_id], strict=False):
                self.cache.prefixes.publish(block, key)
        return admission


@mutant(
    "keys-without-content",
    caught_by="content",
    shown_by="two different prompts of a block or more",
    kind="KEY",
    killer="conformance/test_key.py::test_a_hit_needs_equal_tokens",
)
class KeysWithoutContent(ReferenceEngine):
    """A prefix key says how long the prefix is, and not what it is."""

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        length_mask = PrefixKey((1 << 32) - 1)
        return [PrefixKey(key & length_mask) for key in super()._prompt_keys(prompt)]


class TolerantCache(PagedCache):
    """Passes over what a sound cache would refuse, so that a fault goes on to be seen in the ledger."""

    def _drop(self, blocks: Sequence[int]) -> None:
        super()._drop([block for block in dict.fromkeys(blocks) if self._ref_counts[block]])

    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        return list(takewhile(lambda block: self._ref_counts[block] > 0, super()._hits(keys, limit)))


class _ForgetfulForkCache(TolerantCache):
    def fork(self, parent: str, child: str) -> None:
        self._tables[child] = self._table(parent, "fork").forked()
        self._changed.add(child)


@mutant(
    "fork-forgets-reference",
    caught_by="recount",
    shown_by="a fork",
    kind="SHARE",
    killer="conformance/test_share.py::test_the_parent_keeps_its_blocks_when_the_child_leaves_first",
)
class ForkForgetsReference(ReferenceEngine):
    """A fork shares blocks without counting itself among their holders."""

    cache_type = _ForgetfulForkCache


class _DoubleFreeCache(TolerantCache):
    def release(self, sequence: str) -> None:
        super().release(sequence)
        free = self.pool._free
        free.extend(free[-1:])


@mutant(
    "double-free",
    caught_by="partition",
    shown_by="a release of a block without a key",
    kind="SHARE",
    killer="conformance/test_share.py::test_the_last_slot_is_let_go_once",
)
class DoubleFree(ReferenceEngine):
    """A released block enters the free list twice, and is given to two sequences."""

    cache_type = _DoubleFreeCache
