"""The rows of a replay, pool by pool, and what the device said beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.device.reading import DeviceLine
from kvsuite.ledger.row import ABSENT, CATEGORIES, COLUMN_NAMES, INDEX

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array, PoolSpec

__all__ = ["DeviceLine", "PoolTimeline", "RowBuffer", "Timeline"]


@dataclass(frozen=True)
class PoolTimeline:
    """Rows of one pool: int64[steps, len(COLUMNS)]."""

    spec: PoolSpec
    rows: Int64Array

    def column(self, name: str) -> Int64Array:
        """Return one column over time, int64[steps]."""
        return self.rows[:, INDEX[name]]

    def category_bytes(self, name: str) -> Int64Array:
        """Return a category of `CATEGORIES` in bytes over time; padding is `pad_bytes`."""
        return np.asarray(self.column(name) * self.spec.bytes_per_token)

    @property
    def pad_bytes(self) -> int:
        """Bytes at the ends of blocks that no token can use, over the whole pool."""
        return self.spec.num_blocks * self.spec.pad_bytes_per_block

    def closing_gap_bytes(self) -> Int64Array:
        """Return pool bytes minus the sum of the categories and pad, int64[steps]: 0 where it closes."""
        total = sum((self.category_bytes(name) for name in CATEGORIES), np.int64(self.pad_bytes))
        return np.asarray(self.spec.pool_bytes - total, np.int64)

    def total(self, name: str) -> int:
        """Return the sum of an event column."""
        return int(self.column(name).sum())

    def peak(self, name: str) -> int:
        """Return the largest value of a level column; 0 for an empty replay."""
        return int(self.column(name).max(initial=0))


@dataclass(frozen=True)
class Timeline:
    """What happened: step numbers (idle steps leave gaps), rows of each pool, device readings."""

    steps: Int64Array
    pools: tuple[PoolTimeline, ...]
    device: tuple[DeviceLine, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.steps)


class RowBuffer:
    """A growing int64 table that doubles when full."""

    def __init__(self, columns: int = len(COLUMN_NAMES), capacity: int = 1024) -> None:
        self._rows = np.full((capacity, columns), ABSENT, np.int64)
        self._used = 0

    def append(self, row: Int64Array | list[int]) -> None:
        """Add one row."""
        if self._used == len(self._rows):
            self._rows = np.concatenate([self._rows, np.full_like(self._rows, ABSENT)])
        self._rows[self._used] = row
        self._used += 1

    def last(self) -> Int64Array:
        """Return the newest row, writable: the ends of a step are added to it after it was taken."""
        return np.asarray(self._rows[self._used - 1])

    def finish(self) -> Int64Array:
        """Return the rows taken."""
        return self._rows[: self._used].copy()
