"""Fewer rows for a long ledger: buckets of steps that lose no event and hide no peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvsuite.ledger.row import ABSENT, COLUMNS, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.record.schema import LedgerLine

SHOWN_PEAKS = ("payload", "live_blocks")
"""Columns whose first maximum always ends a bucket, so that a thinned ledger still shows it."""
EVENTS = frozenset(column.name for column in COLUMNS if column.kind is Kind.EVENT)


def rows_per_bucket(num_rows: int, max_rows: int) -> int:
    """Return how many rows a bucket holds at most, so that at most ``max_rows`` buckets come out.

    ``max_rows`` is at least 3: both peaks may cut a bucket in two.
    """
    return 1 if num_rows <= max_rows else -(-num_rows // (max_rows - len(SHOWN_PEAKS)))


def bucket_ends(rows: Int64Array, columns: Sequence[str], max_rows: int) -> Int64Array:
    """Return the last row of each bucket: every n-th, each first peak of `SHOWN_PEAKS`, and the last.

    ``rows`` is int64[rows, len(columns)].
    """
    size = rows_per_bucket(len(rows), max_rows)
    ends = set(range(size - 1, len(rows), size))
    ends |= {len(rows) - 1} if len(rows) else set()
    for name in SHOWN_PEAKS:
        column = rows[:, columns.index(name)] if name in columns else rows[:0, 0]
        if (column != ABSENT).any():
            ends.add(int(column.argmax()))
    return np.array(sorted(ends), np.int64)


def thinned(rows: Int64Array, columns: Sequence[str], ends: Int64Array) -> Int64Array:
    """Return one row a bucket, int64[len(ends), len(columns)].

    A level is the bucket's last value, an event its sum: `ABSENT` where a part of it was not seen.
    """
    kept = rows[ends]
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    for k, name in enumerate(columns if len(ends) else ()):
        if name in EVENTS:
            column = rows[:, k]
            absent = np.logical_or.reduceat(column == ABSENT, starts)
            kept[:, k] = np.where(
                absent, ABSENT, np.add.reduceat(np.where(column == ABSENT, 0, column), starts)
            )
    return kept


def with_nulls(rows: Int64Array) -> list[list[int | None]]:
    """Return rows as lists, ``None`` where a value is `ABSENT`."""
    return [[None if value == ABSENT else value for value in row] for row in rows.tolist()]


def coarser(line: LedgerLine, max_rows: int) -> LedgerLine:
    """Return a ledger of at most ``max_rows`` rows; totals, peaks and means stay those of every step."""
    if len(line.steps) <= max_rows:
        return line
    rows = np.array([[ABSENT if value is None else value for value in row] for row in line.rows], np.int64)
    ends = bucket_ends(rows, line.columns, max_rows)
    return msgspec.structs.replace(
        line,
        steps=[line.steps[end] for end in ends.tolist()],
        rows=with_nulls(thinned(rows, line.columns, ends)),
        steps_per_row=line.steps_per_row * rows_per_bucket(len(rows), max_rows),
    )
