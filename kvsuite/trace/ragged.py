"""Columns gathered, repeated and numbered without a Python loop over requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    SignedArray = npt.NDArray[np.signedinteger[Any]]

    from kvsuite.trace.tokens import Int64Array

S = TypeVar("S", bound=np.generic)

CHUNK = 1 << 16
"""Entries that are worked on at once, so that what is in between takes little memory."""
_MAX_GAPS = 4
"""Numbers up to this many times the entries are counted in an array as long as the largest of them."""


def constant(length: int, value: int) -> Int64Array:
    """Return a read-only column of one value; it takes no memory, whatever its length."""
    return np.broadcast_to(np.array(value, np.int64), (length,))


def taken(column: Int64Array, rows: Int64Array) -> Int64Array:
    """Return the entries at ``rows``; a constant column stays one."""
    if column.strides == (0,) and len(column):
        return constant(len(rows), int(column[0]))
    return column[rows]


def repeated(column: Int64Array, copies: int) -> Int64Array:
    """Return the column again and again; a constant column stays one."""
    if column.strides == (0,) and len(column):
        return constant(len(column) * copies, int(column[0]))
    return np.tile(column, copies)


def offsets_of(counts: Int64Array) -> Int64Array:
    """Return int64[n + 1]: where each of ``n`` runs of ``counts`` entries begins, and the end of the last."""
    if counts.strides == (0,) and not counts.any():
        return constant(len(counts) + 1, 0)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def ragged_rows(
    offsets: Int64Array, values: npt.NDArray[S], rows: Int64Array
) -> tuple[Int64Array, npt.NDArray[S]]:
    """Return offsets and values of the given rows of a ragged column, in the order given."""
    counts = offsets[rows + 1] - offsets[rows]
    if not len(values) or not counts.any():
        return constant(len(rows) + 1, 0), values[:0]
    moved = offsets_of(counts)
    places = np.arange(moved[-1], dtype=np.int64)
    places += np.repeat(offsets[rows] - moved[:-1], counts)
    return moved, values[places]


def chunks(length: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run of up to `CHUNK` entries."""
    return ((start, min(start + CHUNK, length)) for start in range(0, length, CHUNK))


def row_chunks(offsets: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield start and stop of runs of rows, of up to `CHUNK` rows and, unless one row has more, entries."""
    start, rows = 0, len(offsets) - 1
    if offsets[-1] == 0:
        yield from chunks(rows)
        return
    while start < rows:
        fitting = int(np.searchsorted(offsets, offsets[start] + CHUNK, side="right")) - 1
        stop = min(max(fitting, start + 1), start + CHUNK, rows)
        yield start, stop
        start = stop


def dense(values: Int64Array) -> tuple[Int64Array, int]:
    """Return numbers from 0 that are equal where ``values`` are, and a bound above them.

    These are the values themselves where they have few gaps.
    """
    if len(values) == 0:
        return values, 0
    bound = int(values.max()) + 1
    if int(values.min()) >= 0 and bound <= _MAX_GAPS * len(values) + CHUNK:
        return values, bound
    distinct, inverse = np.unique(values, return_inverse=True)
    return inverse.reshape(-1), len(distinct)


class Appearances:
    """Numbers values below ``bound`` 0, 1, ... in order of first appearance, a chunk at a time."""

    def __init__(self, bound: int) -> None:
        self._numbers: SignedArray = np.full(bound, -1, np.int32 if bound < 2**31 else np.int64)
        self.count = 0
        """Distinct values so far."""

    def number(self, values: Int64Array) -> Int64Array:
        """Return the number of each value."""
        fresh = values[self._numbers[values] < 0]
        if len(fresh):
            distinct, first = np.unique(fresh, return_index=True)
            new = distinct[np.argsort(first)]
            self._numbers[new] = np.arange(self.count, self.count + len(new))
            self.count += len(new)
        return self._numbers[values].astype(np.int64)


def first_appearance(values: Int64Array) -> Int64Array:
    """Return the values renumbered 0, 1, ... in order of first appearance."""
    numbers, bound = dense(values)
    appearances, result = Appearances(bound), np.empty(len(values), np.int64)
    for start, stop in chunks(len(values)):
        result[start:stop] = appearances.number(numbers[start:stop])
    return result
