"""The host side of `kvsuite.engine.extensions.tiers`: a pool of copies, each free, cached or pinned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cache.block_pool import BlockPool
from kvsuite.cache.prefix_cache import PrefixCache
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.snapshot import PoolSpec
    from kvsuite.trace.tokens import PrefixKey

HOST = PoolKey(tier="host")


class HostTier:
    """Host blocks by prefix key; the copy used longest ago is evicted first, a chain from its tail."""

    def __init__(self, device: PoolSpec, num_blocks: int) -> None:
        self.spec = replace(
            device, key=HOST, num_blocks=num_blocks, never_allocatable_blocks=0, table_entry_bytes=0
        )
        self.pool = BlockPool(num_blocks)
        self.prefixes = PrefixCache()

    def match(self, keys: Sequence[PrefixKey]) -> list[int]:
        """Return the blocks of the leading keys that have a copy here."""
        return self.prefixes.match(keys, len(keys))

    def take(self) -> int | None:
        """Return a pinned block for a new copy, evicting one if need be; ``None``: all are pinned."""
        if not self.pool.available_blocks:
            return None
        (block,), evicted = self.pool.take(1)
        self.prefixes.forget(evicted)
        return int(block)

    def publish(self, block: int, key: PrefixKey) -> None:
        """Give a copy its key."""
        self.prefixes.publish(block, key)

    def pin(self, block: int) -> None:
        """Hold a copy while a transfer reads it."""
        self.pool.hold([block])

    def unpin(self, block: int) -> None:
        """Let go of a block: cached where it has a key, free where it has none."""
        self.pool.drop([block], self.prefixes.key_of)

    def forget(self, blocks: Sequence[int]) -> None:
        """Take the keys of pinned blocks away."""
        self.prefixes.forget(blocks)

    def forget_idle(self) -> None:
        """Make every cached block free."""
        self.prefixes.forget(self.pool.forget_idle())

    def touch(self, key: PrefixKey) -> bool:
        """Return whether ``key`` has a copy here, which is used last from now on."""
        found = self.prefixes.match([key], 1)
        for block in found:
            self.pin(block)
            self.unpin(block)
        return bool(found)

    def touch_parents(self, keys: Sequence[PrefixKey], stop: int) -> None:
        """Make the blocks before block ``stop`` of a chain outlive it, up to the first that has no copy here.

        A copy whose parent is gone can never be found again.
        """
        for index in reversed(range(stop - 1)):
            if not self.touch(keys[index]):
                return

    def snapshot(self, revision: int) -> PoolSnapshot:
        """Return the pool in full; pins are the transfers' and not told here."""
        blocks = self.pool.take_all()
        return PoolSnapshot(
            key=HOST,
            revision=revision,
            since=None,
            request_ids=(),
            lengths=np.zeros(0, np.int64),
            table_rows=NO_BLOCKS,
            table_offsets=np.zeros(1, np.int64),
            table_blocks=NO_BLOCKS,
            free=blocks.free,
            cached=blocks.cached,
            ref_count_ids=blocks.counted,
            ref_counts=blocks.ref_counts,
        )
