"""Unbroken runs of slots by first fit, with the holes between them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kvsuite.errors import BlockError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Holes:
    """The free runs of ``num_slots`` slots, lowest first; neighbours are always one hole.

    >>> holes = Holes(10)
    >>> [holes.take(3) for _ in range(3)]
    [0, 3, 6]
    >>> holes.give_back(0, 3); holes.give_back(6, 3)
    >>> list(holes), holes.free_slots, holes.largest      # 6..9 has joined the hole at 9
    ([(0, 3), (6, 10)], 7, 4)
    >>> holes.take(5) is None                             # 7 slots are free, but no 5 in a row
    True
    """

    __slots__ = ("_starts", "_stops", "free_slots", "num_slots")

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.free_slots = num_slots
        self._starts = [0]
        self._stops = [num_slots]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    @property
    def largest(self) -> int:
        """Slots of the longest hole."""
        return max((stop - start for start, stop in self), default=0)

    def take(self, size: int) -> int | None:
        """Return the start of a run of ``size`` slots from the first hole that holds it, if any does."""
        for index, (start, stop) in enumerate(self):
            if stop - start >= size:
                self._shorten(index, size)
                return start
        return None

    def take_at(self, start: int, size: int) -> bool:
        """Take ``size`` slots from ``start``, where a hole begins; False: they are not free."""
        index = bisect_left(self._starts, start)
        if index == len(self._starts) or self._starts[index] != start or self._stops[index] - start < size:
            return False
        self._shorten(index, size)
        return True

    def give_back(self, start: int, size: int) -> None:
        """Make a run free again and join it to its neighbours.

        **Raises:** `BlockError` when a slot of it is free already or outside the pool; nothing changes then.
        """
        stop, starts, stops = start + size, self._starts, self._stops
        index = bisect_left(starts, start)
        overlaps_left = index > 0 and stops[index - 1] > start
        overlaps_right = index < len(starts) and starts[index] < stop
        if start < 0 or stop > self.num_slots or size < 1 or overlaps_left or overlaps_right:
            raise BlockError(
                f"slots {start}..{stop} of {self.num_slots} are given back, but are not all taken: "
                "give each run back once, as it was taken"
            )
        first = index - 1 if index > 0 and stops[index - 1] == start else index
        last = index + 1 if index < len(starts) and starts[index] == stop else index
        starts[first:last], stops[first:last] = (
            [min([start, *starts[first:last]])],
            [max([stop, *stops[first:last]])],
        )
        self.free_slots += size

    def _shorten(self, index: int, size: int) -> None:
        self._starts[index] += size
        if self._starts[index] == self._stops[index]:
            del self._starts[index], self._stops[index]
        self.free_slots -= size
