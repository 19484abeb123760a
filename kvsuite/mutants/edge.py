"""Engines that are one off: at a full block, at a full pool, at the edge of a window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.engine.extensions.window import WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.cache.block_table import BlockTable
    from kvsuite.engine.contract import Admission
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_EDGE = "conformance/test_edge.py::"


class _StrictGateCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        one_more = total_blocks == self.pool.usable_blocks
        return super()._shortfall(total_blocks + one_more, hits)


@mutant(
    "exact-fit-refused",
    caught_by="progress",
    shown_by="a prompt that fills the empty pool",
    kind="EDGE",
    killer=f"{_EDGE}test_boundary_lengths_in_pools_around_their_need",
)
class ExactFitRefused(ReferenceEngine):
    """A prompt that is exactly as large as the pool is refused for good."""

    cache_type = _StrictGateCache


class _BusyIsNeverCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        short = super()._shortfall(total_blocks, hits)
        return short and replace(short, never_fits=total_blocks > self.pool.available_blocks)


@mutant(
    "full-now-is-never",
    caught_by="progress",
    shown_by="a request that must wait for another to end",
    kind="EDGE",
    killer=f"{_EDGE}test_two_requests_take_turns_in_a_pool_for_one",
)
class FullNowIsNever(ReferenceEngine):
    """What does not fit beside others is refused as if it could never fit."""

    cache_type = _BusyIsNeverCache


@mutant(
    "boundary-block-credited",
    caught_by="promise",
    shown_by="a refused prompt of whole blocks that is cached whole",
    kind="EDGE",
    killer=f"{_EDGE}test_a_cached_prompt_of_whole_blocks_needs_a_block",
)
class BoundaryBlockCredited(ReferenceEngine):
    """The need told for a prompt of whole blocks counts its last block as found."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Tell one block less than will be taken."""
        answer = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if answer.refusal is None or prompt.stop % self.cache.block_size:
            return answer
        told = replace(answer.refusal, needed_blocks=answer.refusal.needed_blocks - 1)
        return replace(answer, refusal=told)


class _FrontEvictingCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        if super()._grow(sequence, table, length):
            return True
        if len(table.blocks) > 1:
            self._drop([table.blocks.pop(0)])
            self._changed.add(sequence)
        return False


@mutant(
    "front-page-evicted",
    caught_by="atomic",
    shown_by="growth past a full pool",
    kind="EDGE",
    killer=f"{_EDGE}test_growth_past_a_full_pool_slides_or_is_refused",
)
class FrontPageEvicted(ReferenceEngine):
    """A sequence that finds no room to grow loses its own first block, and is refused all the same."""

    cache_type = _FrontEvictingCache


class _FrozenTableCache(PagedCache):
    def extend(self, sequence: str, num_tokens: int) -> bool:
        self._table(sequence, "extend").length += num_tokens
        return True


@mutant(
    "table-frozen-after-prefill",
    caught_by="count",
    shown_by="a decode past the last block of the prompt",
    kind="EDGE",
    killer=f"{_EDGE}test_decoding_adds_the_blocks_it_fills",
)
class TableFrozenAfterPrefill(ReferenceEngine):
    """The table stays as it was after the prompt while tokens are added."""

    cache_type = _FrozenTableCache

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish nothing: there are no such blocks."""


@mutant(
    "window-ends-aligned",
    caught_by="window",
    shown_by="a window that begins inside a block",
    kind="EDGE",
    killer=f"{_EDGE}test_an_unaligned_window_touches_one_block_more",
)
class WindowEndsAligned(WindowEngine):
    """A window is held in ceil(W / b) blocks, as if it always began with a block."""

    def due(self, settled_tokens: int) -> int:
        """Keep one block too few where the window is unaligned."""
        blocks = self.cache.blocks_for(settled_tokens + 1)
        return max(0, blocks - self.cache.blocks_for(self.window_tokens))


@mutant(
    "window-keeps-a-block",
    caught_by="window",
    shown_by="a sequence longer than its window",
    kind="EDGE",
    killer=f"{_EDGE}test_a_window_takes_a_sequence_past_its_pool",
)
class WindowKeepsABlock(WindowEngine):
    """A window lets go of each block one block late."""

    def due(self, settled_tokens: int) -> int:
        """Keep one block more than the window needs."""
        return max(0, super().due(settled_tokens) - 1)
