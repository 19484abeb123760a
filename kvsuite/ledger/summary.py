"""A ledger in bounded memory: exact sums and extremes of every column, and one row a bucket of steps.

A replay of ten million requests has as many rows as steps. `SummaryBuilder` takes them as they come and keeps

* of every column its sum, its smallest and its largest value over all steps, exact;
* a digest of all rows: equal exactly where the ledgers are equal;
* at most ``max_buckets`` buckets of consecutive rows: of each, the smallest, largest and last value of every
  column, and its sum. When they are full, neighbours are joined and a bucket holds twice as many rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import ConfigError
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, INDEX

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.ledger.timeline import PoolTimeline

MAX_BUCKETS = 64
"""Few, as joining full buckets is what costs a short replay most."""
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Buckets:
    """Consecutive rows, joined: ``steps`` int64[buckets], the others int64[buckets, columns]."""

    rows_per_bucket: int
    """Rows in each bucket, except that the last may hold fewer."""
    steps: Int64Array
    """Last step of each bucket."""
    low: Int64Array
    high: Int64Array
    last: Int64Array
    total: Int64Array

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class LedgerSummary:
    """What is kept of the rows of one pool; a column that was absent in any row is `ABSENT` here."""

    spec: PoolSpec
    num_steps: int
    """Rows taken: steps with work to do."""
    first_step: int | None
    last_step: int | None
    sums: Int64Array
    """int64[columns], as the two below, in the order of `COLUMN_NAMES`; 0 without any row."""
    minima: Int64Array
    maxima: Int64Array
    digest: str
    """Hex BLAKE2b of every step number and row, in order, as little-endian int64."""
    buckets: Buckets

    def total(self, name: str) -> int:
        """Return the sum of a column over all steps."""
        return int(self.sums[INDEX[name]])

    def peak(self, name: str) -> int:
        """Return the largest value of a column; 0 for an empty replay."""
        return int(self.maxima[INDEX[name]])

    def low(self, name: str) -> int:
        """Return the smallest value of a column; 0 for an empty replay."""
        return int(self.minima[INDEX[name]])


class SummaryBuilder:
    """Takes rows in order, any number at a time: the result does not depend on how they were cut."""

    def __init__(self, spec: PoolSpec, max_buckets: int = MAX_BUCKETS) -> None:
        """**Raises:** `ConfigError` for fewer than two buckets."""
        if max_buckets < 2:
            raise ConfigError(f"a ledger of {max_buckets} buckets: expected 2 or more")
        columns = len(COLUMN_NAMES)
        self._spec = spec
        self._max_buckets = max_buckets
        self._rows_per_bucket = 1
        self._num_rows = 0
        self._first: int | None = None
        self._sums = np.zeros(columns, np.int64)
        self._low = np.zeros(columns, np.int64)
        self._high = np.zeros(columns, np.int64)
        self._absent = np.zeros(columns, np.bool_)
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._steps = np.zeros(max_buckets, np.int64)
        self._buckets = np.zeros((4, max_buckets, columns), np.int64)

    def add(self, numbered_rows: Int64Array) -> None:
        """Take rows as int64[n, 1 + columns]: before its columns, each has the number of its step."""
        if len(numbered_rows) == 0:
            return
        self._hash.update(np.ascontiguousarray(numbered_rows, "<i8").data)
        steps, rows = numbered_rows[:, 0], numbered_rows[:, 1:]
        absent = rows.min(axis=0) == ABSENT
        if absent.any():
            self._absent |= absent
            rows = np.where(absent, 0, rows)
        if self._first is None:
            self._first, self._low, self._high = int(steps[0]), rows[0].copy(), rows[0].copy()
        done = 0
        while done < len(rows):
            done += self._fill(steps[done:], rows[done:])

    def finish(self) -> LedgerSummary:
        """Return what was kept."""
        used = self._used
        low, high, last, total = (np.where(self._absent, ABSENT, values[:used]) for values in self._buckets)
        return LedgerSummary(
            spec=self._spec,
            num_steps=self._num_rows,
            first_step=self._first,
            last_step=int(self._steps[used - 1]) if used else None,
            sums=np.where(self._absent, ABSENT, self._sums),
            minima=np.where(self._absent, ABSENT, self._low),
            maxima=np.where(self._absent, ABSENT, self._high),
            digest=self._hash.hexdigest(),
            buckets=Buckets(self._rows_per_bucket, self._steps[:used].copy(), low, high, last, total),
        )

    @property
    def _used(self) -> int:
        return -(-self._num_rows // self._rows_per_bucket)

    def _fill(self, steps: Int64Array, rows: Int64Array) -> int:
        """Take as many rows as there is room for in buckets of the present size; return how many."""
        size = self._rows_per_bucket
        room = self._max_buckets * size - self._num_rows
        if room == 0:
            self._join_neighbours()
            return 0
        rows, steps = rows[:room], steps[:room]
        begun = self._num_rows % size
        first = self._num_rows // size
        starts = np.arange(-begun, len(rows), size).clip(min=0)
        ends = np.append(starts[1:], len(rows)) - 1
        before = self._buckets[:, first].copy() if begun else None
        here = slice(first, first + len(starts))
        low, high, last, total = self._buckets[:, here]
        np.minimum.reduceat(rows, starts, out=low)
        np.maximum.reduceat(rows, starts, out=high)
        np.add.reduceat(rows, starts, out=total)
        last[:], self._steps[here] = rows[ends], steps[ends]
        self._sums += total.sum(axis=0)
        if before is not None:
            np.minimum(low[0], before[0], out=low[0])
            np.maximum(high[0], before[1], out=high[0])
            total[0] += before[3]
        np.minimum(self._low, low.min(axis=0), out=self._low)
        np.maximum(self._high, high.max(axis=0), out=self._high)
        self._num_rows += len(rows)
        return len(rows)

    def _join_neighbours(self) -> None:
        """Make half as many buckets of twice the size; an odd last one stays half full."""
        pairs = np.arange(0, self._max_buckets, 2)
        lasts = np.minimum(pairs + 1, self._max_buckets - 1)
        low, high, last, total = self._buckets
        joined = (
            np.minimum.reduceat(low, pairs),
            np.maximum.reduceat(high, pairs),
            last[lasts],
            np.add.reduceat(total, pairs),
        )
        for values, kept in zip(self._buckets, joined, strict=True):
            values[: len(pairs)] = kept
        self._steps[: len(pairs)] = self._steps[lasts]
        self._rows_per_bucket *= 2


def summary_of(pool: PoolTimeline, steps: Int64Array, max_buckets: int = MAX_BUCKETS) -> LedgerSummary:
    """Return the summary of rows that were kept whole."""
    builder = SummaryBuilder(pool.spec, max_buckets)
    builder.add(np.column_stack([steps, pool.rows]))
    return builder.finish()
