"""Draws that are the same with every version of NumPy.

They come from NumPy's legacy generator, ``RandomState``, because its streams are frozen (NEP 19) while those
of ``Generator`` may change between versions. Whole numbers are drawn as int64, since the legacy default
follows the platform's C long.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsuite.trace.trie import RawId

BLOCK_SIZE = 16
"""Tokens that a prefix id of a synthetic workload stands for."""


class Draws:
    """Whole numbers from a frozen stream, and prefix ids that were not used before."""

    def __init__(self, seed: int | tuple[int, ...]) -> None:
        self.legacy = np.random.RandomState(seed)
        self._ids = itertools.count()

    def between(self, low: int, high: int) -> int:
        """Return a whole number in ``low..high``, both included, all alike likely."""
        return int(self.legacy.randint(low, high + 1, dtype=np.int64))

    def chance(self, percent: int) -> bool:
        """Return True in ``percent`` of 100 calls."""
        return self.between(1, 100) <= percent

    def ids(self, count: int) -> list[RawId]:
        """Return ``count`` prefix ids that no earlier call returned."""
        return list(itertools.islice(self._ids, count))

    def ids_after(self, prefix: list[RawId], tokens: int) -> list[RawId]:
        """Return the ids of ``tokens`` tokens that start with the full blocks ``prefix``, the rest new."""
        return prefix + self.ids(-(-tokens // BLOCK_SIZE) - len(prefix))
