"""Columns that grow by batches and hold numbers alone, no Python object an entry."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.trace.ragged import constant, taken
from kvsuite.trace.request import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsuite.trace.tokens import Int64Array


def int64_view(values: array[int]) -> Int64Array:
    """Return an array of eight-byte numbers as NumPy sees it, not copied."""
    return np.frombuffer(values, np.int64)


class GrowingInts:
    """Whole numbers; no memory is taken while every entry is ``absent``."""

    def __init__(self, absent: int = ABSENT) -> None:
        self._absent = absent
        self._count = 0
        self._values: array[int] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> int:
        return self._absent if self._values is None else self._values[row]

    def extend(self, values: Sequence[int]) -> None:
        """Append whole numbers."""
        if self._values is None and values.count(self._absent) != len(values):
            self._values = array("q", [self._absent]) * self._count
        if self._values is not None:
            self._values.extend(array("q", values))
        self._count += len(values)

    def extend_given(self, values: Sequence[int | None]) -> None:
        """Append whole numbers, ``absent`` in place of None."""
        self.extend([self._absent if value is None else value for value in values])

    def column(self, rows: Int64Array | None = None) -> Int64Array:
        """Return the entries, of ``rows`` alone where given."""
        values = constant(self._count, self._absent) if self._values is None else int64_view(self._values)
        return values if rows is None else taken(values, rows)


class GrowingNames:
    """Names as numbers, by first appearance; `ABSENT` for none."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.codes = GrowingInts()

    def extend(self, names: Iterable[str | None]) -> None:
        """Append names."""
        number = self._numbers.setdefault
        self.codes.extend([ABSENT if name is None else number(name, len(self._numbers)) for name in names])

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, by number."""
        return tuple(self._numbers)


class GrowingIds:
    """Ids of rows, kept only once one is not what its row is called anyway: ``r`` and its number."""

    def __init__(self) -> None:
        self._count = 0
        self.given: list[str | None] | None = None
        """None while every row has its own name."""

    def extend(self, ids: Sequence[str | None]) -> None:
        """Append ids, None where the file gives none."""
        if self.given is None and not all(
            name is None or name == f"r{row}" for row, name in enumerate(ids, self._count)
        ):
            self.given = [None] * self._count
        if self.given is not None:
            self.given.extend(ids)
        self._count += len(ids)
