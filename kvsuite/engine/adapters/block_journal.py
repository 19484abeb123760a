"""What changed in a pool since it was last looked at, for adapters whose engine keeps no such list.

The adapter marks blocks where it sees the engine move them; full snapshots are taken from the engine's own
structures and never from here, so the replay's comparison of the two judges the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import NO_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.snapshot import Int32Array, Int64Array

LIVE, FREE, CACHED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Moved:
    """Blocks whose state is another than when last asked, int32 each, ids ascending."""

    live: Int32Array
    free: Int32Array
    cached: Int32Array
    touched: Int32Array
    """All that were marked, those that are back where they were included."""


class BlockJournal:
    """The state of each of ``num_blocks`` blocks, all free at first but those of ``never_allocatable``.

    >>> journal = BlockJournal(4)
    >>> journal.mark([1, 2], LIVE); journal.mark([2], CACHED); journal.mark([1], FREE)
    >>> moved = journal.take()
    >>> moved.live.tolist(), moved.free.tolist(), moved.cached.tolist()
    ([], [], [2])
    """

    def __init__(self, num_blocks: int, never_allocatable: Sequence[int] = ()) -> None:
        self._state = np.full(num_blocks, FREE, np.int8)
        self._state[list(never_allocatable)] = LIVE
        self._told = self._state.copy()
        self._touched: list[Int64Array] = []

    def mark(self, blocks: Sequence[int] | Int64Array, state: int) -> None:
        """Note that ``blocks`` are now in ``state``."""
        ids = np.asarray(blocks, np.int64)
        if len(ids):
            self._state[ids] = state
            self._touched.append(ids)

    def take(self) -> Moved:
        """Return, once, the blocks that are in another state than when this was last called."""
        if not self._touched:
            return Moved(NO_BLOCKS, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)
        touched = np.unique(np.concatenate(self._touched))
        self._touched = []
        ids = touched[self._state[touched] != self._told[touched]]
        states = self._told[ids] = self._state[ids]
        live, free, cached = (ids[states == state].astype(np.int32) for state in (LIVE, FREE, CACHED))
        return Moved(live, free, cached, touched.astype(np.int32))
