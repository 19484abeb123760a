"""The reference engine with what an operator sees: gauges, a memory budget, and the bytes it claims to hold.

The pool is sized on a device that exists on paper; `paper_device` lists its options. It is never larger than
asked for, and all ranks use what the smallest holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cache.block_table import blocks_for
from kvsuite.cache.paged import PagedCache
from kvsuite.engine.contract import Admission, Capability, Release
from kvsuite.engine.extensions.paper_device import paper_device
from kvsuite.engine.reference import POOL, ReferenceEngine
from kvsuite.engine.snapshot import Budget, Gauges, MemoryClaim, Storage
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from array import array

    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

PAGE_BYTES = 4096
TABLE_ROWS = 8
_FIRST_POINTER = 0x7F00_0000_0000


class TouchedCache(PagedCache):
    """Remembers every block that was ever taken: a system backs memory only once it is written."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        watermark_blocks: int = 0,
        never_allocatable_blocks: int = 0,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size,
            prefix_cache=prefix_cache,
            watermark_blocks=watermark_blocks,
            never_allocatable_blocks=never_allocatable_blocks,
        )
        self.touched: set[int] = set()

    def _take(self, count: int) -> array[int]:
        taken = super()._take(count)
        self.touched.update(taken)
        return taken


class ObservedEngine(ReferenceEngine):
    """The reference engine that reports gauges, its memory budget and its storages.

    **Raises:** `ConfigError` for an unknown option, and for a device that leaves no usable block.
    """

    name = "reference-observed"
    cache_type = TouchedCache

    def __init__(self, config: EngineConfig) -> None:
        self.device, rest = paper_device(config)
        self.block_bytes = config.layout.block_bytes(config.block_size)
        self.rank_blocks = tuple(
            max(0, self.room_bytes(rank) // self.priced_block_bytes) for rank in self.device.rank_bytes
        )
        blocks = min(self.agreed_blocks(), self.asked_blocks(config))
        if blocks < 1:
            raise ConfigError(
                f"the budget leaves {min(map(self.room_bytes, self.device.rank_bytes))} bytes to the pool, a "
                f"block takes {self.priced_block_bytes}: give a larger device or fraction"
            )
        super().__init__(replace(config, num_blocks=blocks, options=rest))
        self._spec = replace(
            self._spec,
            capabilities=self._spec.capabilities | {Capability.GAUGES, Capability.BUDGET, Capability.MEMORY},
            effective={
                **self._spec.effective,
                "memory_percent": self.effective_percent(),
                "fraction_of": self.device.fraction_of,
            },
        )
        self._hit_tokens = 0
        self._preempted: set[RequestId] = set()

    @property
    def priced_block_bytes(self) -> int:
        """What one more block costs, in the pool and in a draft model's."""
        return self.block_bytes + self.device.draft_block_bytes

    def effective_percent(self) -> int:
        """The fraction in force."""
        return self.device.memory_percent

    def charged_bytes(self) -> int:
        """What is taken from the budget before the pool."""
        return self.device.own_bytes

    def room_bytes(self, rank_bytes: int) -> int:
        """What the budget leaves to the pool on a rank of ``rank_bytes``."""
        if self.device.fraction_of == "free":
            free_bytes = rank_bytes - self.device.neighbour_bytes - self.charged_bytes()
            return self.effective_percent() * free_bytes // 100
        return self.effective_percent() * rank_bytes // 100 - self.charged_bytes()

    def asked_blocks(self, config: EngineConfig) -> int:
        """The most blocks the pool may have, whatever the budget holds."""
        if not self.device.sequences or config.max_model_tokens is None:
            return config.num_blocks
        needed = self.device.sequences * blocks_for(config.max_model_tokens, config.block_size)
        return min(config.num_blocks, needed)

    def agreed_blocks(self) -> int:
        """The blocks that every rank can hold."""
        return min(self.rank_blocks)

    def budget(self) -> Budget:
        """Return how the pool came to its size, on rank 0."""
        device, rank_bytes = self.device, self.device.rank_bytes[0]
        room_bytes = self.room_bytes(rank_bytes)
        if device.fraction_of == "free":
            kept_back_bytes = rank_bytes - device.neighbour_bytes - device.own_bytes - room_bytes
        else:
            kept_back_bytes = (
                rank_bytes - device.neighbour_bytes - self.effective_percent() * rank_bytes // 100
            )
        pool_bytes = self.spec.pools[0].num_blocks * (self.block_bytes + device.draft_block_bytes)
        return Budget(
            observed_bytes=rank_bytes,
            weights_bytes=device.weights_bytes,
            activation_bytes=device.activation_bytes,
            graphs_bytes=device.graphs_bytes,
            other_bytes=device.other_bytes,
            pool_bytes=pool_bytes,
            slack_bytes=kept_back_bytes + room_bytes - pool_bytes,
            requested_fraction=device.memory_percent / 100,
            effective_fraction=self.effective_percent() / 100,
            fraction_of=device.fraction_of,
            rank_pool_blocks=self.rank_blocks,
            neighbour_bytes=device.neighbour_bytes,
        )

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in; hits count at its first admission only (vllm #25780)."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            self._hit_tokens += 0 if request_id in self._preempted else admission.hit_tokens
            self._preempted.discard(request_id)
        return admission

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds."""
        super().release(request_id, reason)
        if reason is Release.PREEMPT:
            self._preempted.add(request_id)

    def used_blocks(self) -> int:
        """Blocks with a holder."""
        return int(np.count_nonzero(np.frombuffer(self.cache.pool.ref_counts, np.int32)))

    def cached_blocks(self) -> int:
        """Blocks without a holder that can still be hit."""
        return self.cache.pool.num_cached

    def capacity_tokens(self) -> int:
        """The longest sequence that the empty pool takes."""
        return self.cache.pool.usable_blocks * self.cache.block_size

    def gauges(self) -> tuple[Gauges, ...]:
        """Return the shares of the pool, its capacity, and the hits so far."""
        pool = self.cache.pool
        return (
            Gauges(
                key=POOL,
                used=self.used_blocks() / pool.usable_blocks,
                cached=self.cached_blocks() / pool.usable_blocks,
                free=pool.num_free / pool.usable_blocks,
                capacity_tokens=self.capacity_tokens(),
                hit_tokens=self._hit_tokens,
            ),
        )

    def storages(self) -> tuple[Storage, ...]:
        """Return the pool, the block tables and the workspace, each on pages of its own."""
        pool = self.spec.pools[0]
        sizes = {
            "pool": pool.pool_bytes,
            "tables": TABLE_ROWS * pool.usable_blocks * pool.table_entry_bytes,
            "workspace": self.device.activation_bytes,
        }
        held, pointer = [], _FIRST_POINTER
        for role, nbytes in sizes.items():
            held.append(Storage(role, pointer, nbytes, owner=self.name))
            pointer += blocks_for(nbytes, PAGE_BYTES) * PAGE_BYTES
        return tuple(held)

    def committed_bytes(self) -> int:
        """Return the bytes of every page that a block ever taken meets; blocks lie side by side."""
        assert isinstance(self.cache, TouchedCache)
        blocks = np.fromiter(self.cache.touched, np.int64)
        pages = np.zeros(blocks_for(self.spec.pools[0].pool_bytes, PAGE_BYTES) + 1, np.int64)
        np.add.at(pages, blocks * self.block_bytes // PAGE_BYTES, 1)
        np.add.at(pages, ((blocks + 1) * self.block_bytes - 1) // PAGE_BYTES + 1, -1)
        return int(np.count_nonzero(np.cumsum(pages))) * PAGE_BYTES

    def memory(self) -> MemoryClaim:
        """Return the storages, what of them is cache, and what of that memory backs."""
        held = self.storages()
        return MemoryClaim(held, self.spec.pools[0].pool_bytes, self.committed_bytes())
