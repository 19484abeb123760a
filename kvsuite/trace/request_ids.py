"""Request ids that a rule gives, as sequences that hold none of them: equal to the tuples they stand for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, overload

import numpy as np

from kvsuite.trace.request import RequestId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.trace.tokens import Int64Array

_SHOWN = 3


class RuledIds(Sequence[RequestId]):
    """Ids made when they are asked for; equal to any sequence of the same ids, hash as their tuple."""

    __slots__ = ()

    @property
    @abstractmethod
    def distinct(self) -> bool:
        """Whether no id stands twice."""

    @abstractmethod
    def at(self, index: int) -> RequestId:
        """Return the id at ``index``, from 0 up."""

    @overload
    def __getitem__(self, index: int) -> RequestId: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RequestId, ...]: ...
    def __getitem__(self, index: int | slice) -> RequestId | tuple[RequestId, ...]:
        if isinstance(index, slice):
            return tuple(self.at(place) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"request {index} of {len(self)}")
        return self.at(place)

    def __iter__(self) -> Iterator[RequestId]:
        return map(self.at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple | RuledIds):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        shown = ", ".join(islice(self, _SHOWN))
        return f"<{len(self)} request ids: {shown}{', ...' if len(self) > _SHOWN else ''}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NumberedIds(RuledIds):
    """``r0``, ``r1``, ...: what requests are called by their row where a file names none.

    >>> NumberedIds(3) == ("r0", "r1", "r2")
    True
    """

    rows: int

    def __len__(self) -> int:
        return self.rows

    @property
    def distinct(self) -> bool:
        """Whether no id stands twice: always so."""
        return True

    def at(self, index: int) -> RequestId:
        """Return ``r`` and the index."""
        return RequestId(f"r{index}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PickedIds(RuledIds):
    """Some of other ids, in any order: those of the rows that were kept."""

    ids: RuledIds
    places: Int64Array

    def __len__(self) -> int:
        return len(self.places)

    @property
    def distinct(self) -> bool:
        """Whether no id stands twice."""
        rising = bool((self.places[1:] > self.places[:-1]).all())
        return self.ids.distinct and (rising or len(np.unique(self.places)) == len(self.places))

    def at(self, index: int) -> RequestId:
        """Return the id at the place that ``index`` picks."""
        return self.ids[int(self.places[index])]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TiledIds(RuledIds):
    """The ids of each copy of a trace: ``NAME~0`` ..., then ``NAME~1`` ..., and so on.

    >>> TiledIds(("a", "b"), 2) == ("a~0", "b~0", "a~1", "b~1")
    True
    """

    ids: Sequence[RequestId]
    copies: int

    def __len__(self) -> int:
        return len(self.ids) * self.copies

    @property
    def distinct(self) -> bool:
        """Whether no id stands twice: the copy is what follows the last ``~``, the rest an id of ``ids``."""
        return are_distinct(self.ids)

    def at(self, index: int) -> RequestId:
        """Return the id in its copy."""
        copy, place = divmod(index, len(self.ids))
        return RequestId(f"{self.ids[place]}~{copy}")


def are_distinct(ids: Sequence[RequestId]) -> bool:
    """Return whether no id stands twice."""
    return ids.distinct if isinstance(ids, RuledIds) else len(set(ids)) == len(ids)


def picked(ids: Sequence[RequestId], rows: Int64Array) -> Sequence[RequestId]:
    """Return the ids of ``rows``."""
    if isinstance(ids, PickedIds):
        return PickedIds(ids.ids, ids.places[rows])
    if isinstance(ids, RuledIds):
        return PickedIds(ids, rows)
    return tuple(ids[row] for row in rows.tolist())
