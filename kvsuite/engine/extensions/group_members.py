"""One group of layers by itself: it can be asked before it is told, so that several answer as one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.contract import Admission
from kvsuite.engine.extensions.window import NULL, WindowCache, WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import PoolKey

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsuite.cache.paged import Shortfall
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.tokens import PrefixKey, TokenRun


class GroupCache(PagedCache):
    """A paged cache that can be asked before it is told."""

    def gate(self, num_tokens: int, keys: Sequence[Hashable], first_chunk_tokens: int) -> Shortfall | None:
        """Return what is short for a prompt, or `None` where `admit` would take it; changes nothing."""
        del first_chunk_tokens
        hits = self._hits(keys, (num_tokens - 1) // self.block_size)
        return self._shortfall(self.blocks_for(num_tokens), hits)

    def found(self, keys: Sequence[Hashable], num_tokens: int) -> int:
        """Return how many leading tokens of a prompt are held here."""
        return len(self._hits(keys, (num_tokens - 1) // self.block_size)) * self.block_size

    def has_room(self, sequence: str, num_tokens: int) -> bool:
        """Return whether `extend` would take ``num_tokens`` more; changes nothing."""
        table = self._table(sequence, "has_room")
        new = self.blocks_for(table.length + num_tokens) - len(table.blocks)
        return new + self._shares_tail(table) <= self.pool.available_blocks


class WindowGroupCache(GroupCache, WindowCache):
    """A window's cache that asks for what the window comes to hold.

    A prompt of ``n`` tokens, ``h`` of them found, in steps of ``c`` holds at most ::

        min(ceil(n / b), max(ceil((h + c) / b), ceil((W + c - 2) / b) + 1))
    """

    window_tokens = 0
    _step_tokens = 1

    def gate(self, num_tokens: int, keys: Sequence[Hashable], first_chunk_tokens: int) -> Shortfall | None:
        """Return what is short for a prompt computed in steps of ``first_chunk_tokens``."""
        self._step_tokens = first_chunk_tokens
        return super().gate(num_tokens, keys, first_chunk_tokens)

    def peak_blocks(self, step_tokens: int) -> int:
        """Return the most blocks that a window meets in steps of ``step_tokens``."""
        return self.blocks_for(self.window_tokens + step_tokens - 2) + 1

    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        """Price the prompt and what was promised to others by the window."""
        at_once = len(hits) + self.blocks_for(self._step_tokens)
        peak = self.peak_blocks(self._step_tokens)
        promised_whole = self._promised_blocks
        self._promised_blocks = sum(
            min(table.promised_blocks, max(0, peak - len(table.blocks) + table.blocks.count(NULL)))
            for table in self._tables.values()
        )
        try:
            return super()._shortfall(min(total_blocks, max(at_once, peak)), hits)
        finally:
            self._promised_blocks = promised_whole


class FullGroup(ReferenceEngine):
    """One group by itself: the reference, told how much of a prompt all groups hold."""

    name = "reference-groups"
    cache_type: type[PagedCache] = GroupCache
    cache: GroupCache
    key = PoolKey()
    found_tokens = 0

    def found(self, prompt: TokenRun) -> int:
        """Return how many leading tokens of a prompt this group holds."""
        return self.cache.found(super()._prompt_keys(prompt), prompt.stop)

    def gate(self, prompt: TokenRun, first_chunk_tokens: int) -> Admission | None:
        """Return the refusal of a prompt, or `None` where this group would take it."""
        short = self.cache.gate(prompt.stop, self._prompt_keys(prompt), first_chunk_tokens)
        if short is None:
            return None
        return Admission(refusal=replace(self._refusal(short), pool=self.key))

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool under its own key."""
        return tuple(replace(shot, key=self.key) for shot in super().snapshot(since))

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        return super()._prompt_keys(prompt)[: self.found_tokens // self.cache.block_size]


class WindowGroup(FullGroup, WindowEngine):
    """One group with a sliding window."""

    cache_type: type[PagedCache] = WindowGroupCache
    cache: WindowGroupCache

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.cache.window_tokens = self.window_tokens
