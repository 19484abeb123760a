"""Copies on write that are made too often, too late, for too many or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.cache.paged import Copy, PagedCache
from kvsuite.engine.extensions.eager_fork import EagerForkCache, EagerForkEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.cache.block_table import BlockTable

_SHARE = "conformance/test_share.py::"
_BURST = "conformance/test_divergence.py::"


class _FullCopyCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        full = table.length % self.block_size == 0 and self._ref_counts[table.blocks[-1]] > 1
        new = self.blocks_for(length) - len(table.blocks)
        if full and new + 1 <= self.pool.available_blocks:
            source, target = table.blocks[-1], self._take(1)[0]
            self._copies.append(Copy(source, target, self.block_size, sequence))
            table.blocks[-1] = target
            self._drop([source])
        return super()._grow(sequence, table, length)


@mutant(
    "full-block-copied",
    caught_by="sharing",
    shown_by="a fork at a multiple of the block size",
    kind="SHARE",
    killer=f"{_SHARE}test_full_blocks_stay_shared",
)
class FullBlockCopied(ReferenceEngine):
    """A writer whose last block is full and shared copies it, although nobody will write it again."""

    cache_type = _FullCopyCache


class _CopyThenCheckCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        if self._shares_tail(table) and self.pool.available_blocks:
            source, target = table.blocks[-1], self._take(1)[0]
            self._copies.append(Copy(source, target, table.length % self.block_size, sequence))
            table.blocks[-1] = target
            self._drop([source])
        return super()._grow(sequence, table, length)


@mutant(
    "copies-before-it-checks",
    caught_by="atomic",
    shown_by="growth of a fork across a block boundary with one block left",
    kind="SHARE",
    killer=f"{_BURST}test_refused_growth_across_a_boundary_leaves_no_trace",
)
class CopiesBeforeItChecks(ReferenceEngine):
    """The private copy is taken before it is known whether the new blocks are there, and stays if not."""

    cache_type = _CopyThenCheckCache


class _EveryWriterCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._forked_tails: set[int] = set()

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self._forked_tails.add(self._tables[parent].blocks[-1])

    def extend(self, sequence: str, num_tokens: int) -> bool:
        table = self._table(sequence, "extend")
        return self._grow(sequence, table, table.length + num_tokens)

    def _shares_tail(self, table: BlockTable) -> bool:
        return table.length % self.block_size > 0 and table.blocks[-1] in self._forked_tails


@mutant(
    "last-writer-copies-too",
    caught_by="demand",
    shown_by="a burst with exactly its demand to be had",
    kind="SHARE",
    killer=f"{_BURST}test_a_burst_takes_exactly_its_demand",
)
class LastWriterCopiesToo(ReferenceEngine):
    """Every writer of a forked block asks for a copy, the last one too, which nobody shares with any more."""

    cache_type = _EveryWriterCache


class _InPlaceWhenFullCache(PagedCache):
    def _shares_tail(self, table: BlockTable) -> bool:
        return super()._shares_tail(table) and self.pool.available_blocks > 0


@mutant(
    "in-place-when-full",
    caught_by="demand",
    shown_by="more writers of a shared block than blocks to be had",
    kind="SHARE",
    killer=f"{_BURST}test_fifty_samples_in_a_small_pool_are_refused_in_part",
)
class InPlaceWhenFull(ReferenceEngine):
    """With no block left for a copy, a shared block is written in place instead of refusing."""

    cache_type = _InPlaceWhenFullCache


class _KeepsSourceCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        source = table.blocks[-1]
        grown = super()._grow(sequence, table, length)
        if grown and source not in table.blocks:
            self.pool.hold([source])
        return grown


@mutant(
    "copy-keeps-its-source",
    caught_by="recount",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer=f"{_SHARE}test_all_removal_orders_end_equal",
)
class CopyKeepsItsSource(ReferenceEngine):
    """A writer that moved to a private copy is still counted among the holders of the block it left."""

    cache_type = _KeepsSourceCache


class _OneCopyCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._copy_of: dict[int, int] = {}

    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        source, shares = table.blocks[-1], self._shares_tail(table)
        if shares and self._ref_counts[self._copy_of.get(source, source)] and source in self._copy_of:
            self.pool.hold([self._copy_of[source]])
            table.blocks[-1] = self._copy_of[source]
            self._drop([source])
            table.length = length
            self._changed.add(sequence)
            return True
        grown = super()._grow(sequence, table, length)
        if grown and shares:
            self._copy_of[source] = self._copies[-1].target
        return grown

    def take_copies(self) -> list[Copy]:
        self._copy_of.clear()
        return super().take_copies()


@mutant(
    "one-copy-for-all",
    caught_by="content",
    shown_by="two children that write in the same step",
    kind="SHARE",
    killer=f"{_SHARE}test_full_blocks_stay_shared",
)
class OneCopyForAll(ReferenceEngine):
    """All writers of a shared block in one step are moved to the same copy of it."""

    cache_type = _OneCopyCache


class _SharesWhenFullCache(EagerForkCache):
    def bears_fork(self, parent: str) -> bool:
        del parent
        return True

    def _shares_tail(self, table: BlockTable) -> bool:
        return super()._shares_tail(table) and self.pool.available_blocks > 0


@mutant(
    "eager-fork-shares-when-full",
    caught_by="content",
    shown_by="more forks of a part-full block than blocks to be had",
    kind="SHARE",
    killer=f"{_BURST}test_more_children_than_blocks_do_no_harm",
)
class EagerForkSharesWhenFull(EagerForkEngine):
    """A fork that finds no block for its copy shares the part-full one instead, and writes it in place."""

    cache_type = _SharesWhenFullCache


class _CopiesLateCache(EagerForkCache):
    def take_copies(self) -> list[Copy]:
        return [copy for copy in super().take_copies() if copy.num_tokens > 1]


@mutant(
    "eager-copy-of-one-token-lost",
    caught_by="content",
    shown_by="a fork one token past a multiple of the block size",
    kind="SHARE",
    killer=f"{_BURST}test_a_burst_takes_exactly_its_demand",
)
class EagerCopyOfOneTokenLost(EagerForkEngine):
    """A copy at the fork that would move a single token is left out as not worth it."""

    cache_type = _CopiesLateCache


class _DropsPendingCache(EagerForkCache):
    def release(self, sequence: str) -> None:
        PagedCache.release(self, sequence)


@mutant(
    "pending-copy-dropped",
    caught_by="content",
    shown_by="a child that was forked from, cancelled before its first step",
    kind="SHARE",
    killer=f"{_SHARE}test_a_middle_child_may_go_before_its_first_step",
)
class PendingCopyDropped(EagerForkEngine):
    """A cancelled child takes its pending copy along, from which the copy of its own child was to read."""

    cache_type = _DropsPendingCache
