"""Engines that let in what has no room, keep out what has, or spoil what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import Admitted, PagedCache, Shortfall
from kvsuite.engine.extensions.window import WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsuite.engine.config import EngineConfig

_ADMIT = "conformance/test_admit.py::"
_PRESSURE = "conformance/test_admit_pressure.py::"


class _ChunkAwareCache(PagedCache):
    """Lets a gate know the first chunk, so that a wrong answer never ends in a crash."""

    chunk_tokens = 0

    def admit(
        self,
        sequence: str,
        num_tokens: int,
        *,
        first_chunk_tokens: int | None = None,
        keys: Sequence[Hashable] = (),
    ) -> Admitted | Shortfall:
        self.chunk_tokens = num_tokens if first_chunk_tokens is None else first_chunk_tokens
        return super().admit(sequence, num_tokens, first_chunk_tokens=first_chunk_tokens, keys=keys)

    def can_begin(self, total_blocks: int, hits: Sequence[int]) -> bool:
        """Return whether the hits and the first chunk can really be had."""
        idle = sum(not self._ref_counts[block] for block in hits)
        chunk = min(total_blocks - len(hits), self.blocks_for(self.chunk_tokens))
        return chunk <= self.pool.available_blocks - idle


class _FirstChunkCache(_ChunkAwareCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        chunk = len(hits) + self.blocks_for(self.chunk_tokens)
        return super()._shortfall(min(total_blocks, chunk), hits)


@mutant(
    "first-chunk-admission",
    caught_by="recompute",
    shown_by="a prompt of more chunks than there is room for, beside a sequence that decodes",
    kind="ADMIT",
    killer=f"{_PRESSURE}test_a_long_prompt_waits_for_all_of_its_blocks",
)
class FirstChunkAdmission(ReferenceEngine):
    """A prompt is admitted when its first chunk fits, and gives way when the second does not."""

    cache_type = _FirstChunkCache


class _HopefulCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        return None if shortfall is None else replace(shortfall, never_fits=False)


@mutant(
    "never-fits-unsaid",
    caught_by="progress",
    shown_by="a request larger than the empty pool",
    kind="ADMIT",
    killer=f"{_ADMIT}test_what_can_never_fit_is_refused_at_arrival_and_blocks_nobody",
)
class NeverFitsUnsaid(ReferenceEngine):
    """A request larger than the pool is told to wait, and waits for ever at the head of the queue."""

    cache_type = _HopefulCache


class _TotalCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        never = total_blocks > self.pool.num_blocks
        return None if shortfall is None else replace(shortfall, never_fits=never)


@mutant(
    "total-for-usable",
    caught_by="progress",
    shown_by="a request that only the null block would make room for",
    kind="ADMIT",
    killer=f"{_ADMIT}test_what_can_never_fit_is_refused_at_arrival_and_blocks_nobody",
)
class TotalForUsable(ReferenceEngine):
    """Whether a request can ever fit is asked of all blocks, the null block included."""

    cache_type = _TotalCache

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, options={**config.options, "null_blocks": 1}))


class _BrimfulCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        self.watermark_blocks = 0
        return super()._shortfall(total_blocks, hits)


@mutant(
    "watermark-ignored",
    caught_by="headroom",
    shown_by="admissions beside sequences that grow",
    kind="ADMIT",
    killer=f"{_PRESSURE}test_head_room_is_kept_at_admission",
)
class WatermarkIgnored(ReferenceEngine):
    """Admission fills the pool to the last block, whatever the watermark says."""

    cache_type = _BrimfulCache


class _TwiceCountedCache(_ChunkAwareCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        if shortfall is None:
            return None
        reclaimable = self.pool.num_cached
        fits = shortfall.needed_blocks <= shortfall.free_blocks + reclaimable
        if fits and self.can_begin(total_blocks, hits):
            return None
        return replace(shortfall, reclaimable_blocks=reclaimable)


@mutant(
    "hits-promised-twice",
    caught_by="promise",
    shown_by="a prompt whose hits are the last idle blocks",
    kind="ADMIT",
    killer=f"{_ADMIT}test_a_hit_in_the_free_queue_is_no_room",
)
class HitsPromisedTwice(ReferenceEngine):
    """Hits that are idle count as found and as room for the rest of the prompt."""

    cache_type = _TwiceCountedCache


class _ForgetfulGateCache(_ChunkAwareCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        seen_blocks = self.blocks_for(max(1, self.prompt_tokens - 1))
        shortfall = super()._shortfall(seen_blocks, hits)
        if shortfall is not None or self.can_begin(total_blocks, hits):
            return shortfall
        return Shortfall(seen_blocks - len(hits), self.pool.num_free, 0, 0, never_fits=False)

    def admit(
        self,
        sequence: str,
        num_tokens: int,
        *,
        first_chunk_tokens: int | None = None,
        keys: Sequence[Hashable] = (),
    ) -> Admitted | Shortfall:
        self.prompt_tokens = num_tokens
        return super().admit(sequence, num_tokens, first_chunk_tokens=first_chunk_tokens, keys=keys)


@mutant(
    "gate-forgets-last-token",
    caught_by="promise",
    shown_by="a sequence of full blocks and one token more, with room for the full blocks",
    kind="ADMIT",
    killer=f"{_ADMIT}test_a_token_not_yet_seen_needs_room_too",
)
class GateForgetsLastToken(ReferenceEngine):
    """Room is asked for the tokens that were computed before, and not for the one that comes next."""

    cache_type = _ForgetfulGateCache


class _TouchyCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        if shortfall is not None:
            for block in hits:
                if block in self.pool._idle:
                    self.pool._idle.move_to_end(block)
        return shortfall


@mutant(
    "refusal-touches-hits",
    caught_by="atomic",
    shown_by="a refused request whose prompt begins with a cached prefix",
    kind="ADMIT",
    killer=f"{_ADMIT}test_a_hit_in_the_free_queue_is_no_room",
)
class RefusalTouchesHits(ReferenceEngine):
    """A refused admission makes its hits the last to be evicted."""

    cache_type = _TouchyCache


class _EvictingGateCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        if shortfall is not None and self.pool.num_cached:
            self._drop(self._take(self.pool.num_free + 1))
        return shortfall


@mutant(
    "refusal-evicts",
    caught_by="atomic",
    shown_by="a refused request beside idle blocks",
    kind="ADMIT",
    killer="conformance/test_refusal.py::test_a_refused_allocation_leaves_no_trace",
)
class RefusalEvicts(ReferenceEngine):
    """Room is made by eviction before it is known whether the request fits."""

    cache_type = _EvictingGateCache


@mutant(
    "window-floor-unchecked",
    caught_by="floor",
    shown_by="a pool smaller than one window and one block",
    kind="ADMIT",
    killer=f"{_ADMIT}test_a_window_pool_holds_a_window_and_a_block_or_is_refused",
)
class WindowFloorUnchecked(WindowEngine):
    """A pool that holds no window and block is accepted, and the first long request waits for ever."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, max_model_tokens=1))
