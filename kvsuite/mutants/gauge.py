"""Engines whose cache is in order and whose dashboard is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.extensions.observed import ObservedEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Admission, Release
    from kvsuite.engine.snapshot import Gauges
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_CASES = "conformance/test_gauge.py::"
_GROUPS = 2
_PAGE_BLOCKS = 4


@mutant(
    "cached-shown-as-used",
    caught_by="gauge-idle",
    shown_by="cached blocks with nothing running",
    kind="GAUGE",
    killer=f"{_CASES}test_idle_cached_blocks_are_not_in_use",
)
class CachedShownAsUsed(ObservedEngine):
    """Cached blocks that nobody holds count as used, so that an idle pool fills up and looks like a leak."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Add the cached share to the used one."""
        (told,) = super().gauges()
        return (replace(told, used=told.used + told.cached),)


@mutant(
    "reclaimable-hidden",
    caught_by="gauge-cached",
    shown_by="cached blocks with nothing running",
    kind="GAUGE",
    killer=f"{_CASES}test_idle_cached_blocks_are_not_in_use",
)
class ReclaimableHidden(ObservedEngine):
    """Cached blocks count as free, and the gauge of cached ones stays at 0."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Add the cached share to the free one."""
        (told,) = super().gauges()
        return (replace(told, cached=0.0, free=told.free + told.cached),)


@mutant(
    "null-in-denominator",
    caught_by="gauge-sum",
    shown_by="a null block",
    kind="GAUGE",
    killer=f"{_CASES}test_a_full_pool_reads_one",
)
class NullInDenominator(ObservedEngine):
    """Shares are taken of all blocks, the null block too, so that a full pool never reads 1."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Divide by every block."""
        (told,) = super().gauges()
        pool = self.cache.pool
        ratio = pool.usable_blocks / pool.num_blocks
        return (replace(told, used=told.used * ratio, cached=told.cached * ratio, free=told.free * ratio),)


@mutant(
    "shared-counted-by-holder",
    caught_by="gauge-range",
    shown_by="a block with more holders than the pool has blocks",
    kind="GAUGE",
    killer=f"{_CASES}test_gauges_follow_every_verb",
)
class SharedCountedByHolder(ObservedEngine):
    """A shared block counts as used once for each of its holders."""

    def used_blocks(self) -> int:
        """Add up table entries."""
        return sum(self.cache.pool.ref_counts)


@mutant(
    "negative-clamped",
    caught_by="gauge-free",
    shown_by="shared blocks",
    kind="GAUGE",
    killer=f"{_CASES}test_gauges_follow_every_verb",
)
class NegativeClamped(SharedCountedByHolder):
    """Free is what a wrong count leaves over, and set to 0 without a word where that is below 0."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Let everything add up to 1."""
        (told,) = super().gauges()
        used = min(1 - told.cached, told.used)
        return (replace(told, used=used, free=max(0.0, 1 - told.used - told.cached)),)


@mutant(
    "resumed-hits-counted",
    caught_by="gauge-hits",
    shown_by="a preempted request that finds its own blocks again",
    kind="GAUGE",
    killer=f"{_CASES}test_what_a_resumed_request_finds_is_no_hit",
)
class ResumedHitsCounted(ObservedEngine):
    """Tokens that a request finds again after its preemption count as prefix hits."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Forget that it was there before."""
        super().release(request_id, reason)
        self._preempted.clear()


@mutant(
    "refusal-counted-as-use",
    caught_by="gauge-used",
    shown_by="a refused admission",
    kind="GAUGE",
    killer=f"{_CASES}test_a_refused_operation_moves_no_gauge",
)
class RefusalCountedAsUse(ObservedEngine):
    """A refused admission leaves what it asked for in the gauge of used blocks."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._asked_blocks = 0

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Count first, ask afterwards."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.refusal is not None:
            self._asked_blocks += admission.refusal.needed_blocks
        return admission

    def used_blocks(self) -> int:
        """Return used blocks and refused ones."""
        return super().used_blocks() + self._asked_blocks


@mutant(
    "whole-free-pages-only",
    caught_by="gauge-free",
    shown_by="a page of blocks of which one is in use",
    kind="GAUGE",
    killer=f"{_CASES}test_a_block_in_use_hides_no_free_one_beside_it",
)
class WholeFreePagesOnly(ObservedEngine):
    """Blocks are counted free in pages of four: one in use, and the other three are gone as well."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Count whole free pages."""
        (told,) = super().gauges()
        pages = [block // _PAGE_BLOCKS for block in self.cache.pool._free]
        whole = sum(pages.count(page) == _PAGE_BLOCKS for page in set(pages))
        return (replace(told, free=whole * _PAGE_BLOCKS / self.cache.pool.usable_blocks),)


@mutant(
    "reset-keeps-gauge",
    caught_by="gauge-cached",
    shown_by="a cache that is reset",
    kind="GAUGE",
    killer=f"{_CASES}test_a_reset_cache_leaves_nothing_in_the_gauges",
)
class ResetKeepsGauge(ObservedEngine):
    """A reset drops the keys and not what the gauge had counted for them."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._reset_blocks = 0

    def reset_cache(self) -> bool:
        """Remember the count that should have gone."""
        cached = super().cached_blocks()
        done = super().reset_cache()
        self._reset_blocks += cached if done else 0
        return done

    def cached_blocks(self) -> int:
        """Return cached blocks and forgotten ones."""
        return super().cached_blocks() + self._reset_blocks


@mutant(
    "capacity-with-null-block",
    caught_by="gauge-capacity",
    shown_by="a null block",
    kind="GAUGE",
    killer=f"{_CASES}test_capacity_is_what_a_search_finds",
)
class CapacityWithNullBlock(ObservedEngine):
    """The capacity counts the null block, which no sequence can ever own."""

    def capacity_tokens(self) -> int:
        """Count every block."""
        return self.cache.pool.num_blocks * self.cache.block_size


@mutant(
    "capacity-off-the-block",
    caught_by="gauge-whole-blocks",
    shown_by="blocks of four tokens or more",
    kind="GAUGE",
    killer=f"{_CASES}test_capacity_is_what_a_search_finds",
)
class CapacityOffTheBlock(ObservedEngine):
    """The capacity comes from bytes that end two tokens before the last block does: 10,718 for 670 of 16."""

    def capacity_tokens(self) -> int:
        """Return no whole number of blocks."""
        return super().capacity_tokens() - 2


@mutant(
    "capacity-by-groups",
    caught_by="gauge-capacity",
    shown_by="any pool of two blocks or more",
    kind="GAUGE",
    killer=f"{_CASES}test_capacity_is_what_a_search_finds",
)
class CapacityByGroups(ObservedEngine):
    """The capacity is blocks over groups times the smallest block, as if each group took them all alike."""

    def capacity_tokens(self) -> int:
        """Divide by groups that share one table here."""
        return self.cache.pool.usable_blocks // _GROUPS * self.cache.block_size


@mutant(
    "capacity-by-concurrency",
    caught_by="gauge-capacity",
    shown_by="a length limit that is no whole number of blocks",
    kind="GAUGE",
    killer=f"{_CASES}test_capacity_is_what_a_search_finds",
)
class CapacityByConcurrency(ObservedEngine):
    """The capacity is how many longest requests fit times their length, with what each wastes left out."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._limit = config.max_model_tokens

    def capacity_tokens(self) -> int:
        """Multiply a ratio by the limit, and round down to blocks."""
        if self._limit is None:
            return super().capacity_tokens()
        size = self.cache.block_size
        longest = self.cache.pool.usable_blocks * self._limit // self.cache.blocks_for(self._limit)
        return longest // size * size
