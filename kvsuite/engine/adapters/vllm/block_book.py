"""What vLLM's block pool says of each block, kept up to date from the blocks that a call may have changed.

A block is live while its ``ref_cnt`` is above 0, cached while it has a hash and nobody holds it, and free
otherwise. A call changes only blocks that stand in the table it works on, before or after it;
`BlockBook.touch` names them, so that a step costs what it changed and not the size of the pool.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.snapshot import NO_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.snapshot import Int32Array

FREE, CACHED, LIVE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class BlockLists:
    """Blocks by state and claimed reference counts: of the whole pool, or of what changed."""

    free: Int32Array
    cached: Int32Array
    live: Int32Array
    counted: Int32Array
    ref_counts: Int32Array


class BlockBook:
    """States of the blocks of ``pool``, vLLM's own ``BlockPool``."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._blocks = pool.blocks
        self._null = pool.null_block.block_id
        self._states = bytearray(len(pool.blocks))
        self._ref_counts = array("i", bytes(4 * len(pool.blocks)))
        self._counts = [len(pool.blocks) - 1, 0, 0]
        self._touched: list[int] = []
        self._moved: dict[int, int] = {}
        self._recounted: set[int] = set()

    def touch(self, ids: Iterable[int]) -> None:
        """Learn that a call may have changed these blocks; the null block is not among them."""
        self._touched.extend(ids)

    def touch_cached(self) -> None:
        """Learn that a call may have changed every cached block."""
        self._look()
        self.touch(block for block, state in enumerate(self._states) if state == CACHED)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out and hold nothing that can be hit."""
        self._look()
        return self._counts[FREE]

    @property
    def cached_blocks(self) -> int:
        """Blocks that nobody holds and that can still be hit."""
        self._look()
        return self._counts[CACHED]

    def take_changes(self) -> BlockLists:
        """Return what changed since the last lists were taken."""
        self._look()
        by_state: dict[int, list[int]] = {FREE: [], CACHED: [], LIVE: []}
        for block, before in self._moved.items():
            state = self._states[block]
            if state != before:
                by_state[state].append(block)
        counted = list(self._recounted)
        self._moved.clear()
        self._recounted.clear()
        ref_counts = [self._ref_counts[block] for block in counted]
        free, cached, live = (_ids(by_state[state]) for state in (FREE, CACHED, LIVE))
        return BlockLists(free, cached, live, _ids(counted), _ids(ref_counts))

    def take_all(self) -> BlockLists:
        """Return the whole pool, free and cached blocks in the order in which vLLM would hand them out."""
        self._look()
        self._moved.clear()
        self._recounted.clear()
        free: list[int] = []
        cached: list[int] = []
        for block in self._pool.free_block_queue.get_all_free_blocks():
            (free if block.block_hash is None else cached).append(block.block_id)
        held = [block for block in self._blocks if block.ref_cnt and block.block_id != self._null]
        counted = _ids([block.block_id for block in held])
        return BlockLists(_ids(free), _ids(cached), NO_BLOCKS, counted, _ids([b.ref_cnt for b in held]))

    def _look(self) -> None:
        """Read the touched blocks."""
        if not self._touched:
            return
        blocks, states, ref_counts, counts = self._blocks, self._states, self._ref_counts, self._counts
        for number in self._touched:
            block = blocks[number]
            ref_count = block.ref_cnt
            state = LIVE if ref_count else FREE if block.block_hash is None else CACHED
            before = states[number]
            if state != before:
                self._moved.setdefault(number, before)
                counts[before] -= 1
                counts[state] += 1
                states[number] = state
            if ref_count != ref_counts[number]:
                ref_counts[number] = ref_count
                self._recounted.add(number)
        self._touched.clear()


def _ids(numbers: list[int]) -> Int32Array:
    return np.array(numbers, np.int32) if numbers else NO_BLOCKS
