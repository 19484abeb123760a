"""Times as files state them, exact, in nine bytes each: digits as an int64, and decimal places.

What does not fit (more than 63 bits of digits, an exponent) is kept as it is, beside the column.
"""

from __future__ import annotations

from array import array
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.trace.clock import DECIMAL_SHIFT, MAX_US, TimeRangeError, microseconds
from kvsuite.trace.growing import int64_view
from kvsuite.trace.ragged import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.clock import Time, TimeUnit
    from kvsuite.trace.tokens import Int64Array

_MAX_TEXT = 20
"""Characters that 63 bits can need, with a sign or a point."""
_ODD = -1
"""Stands for the decimal places of a time that is kept as it is."""


class TimeColumn:
    """A growing column of times, `int` or `Decimal`, each given back as it was written."""

    def __init__(self) -> None:
        self._digits = array("q")
        self._places = array("b")
        self._odd: dict[int, Time] = {}

    def __len__(self) -> int:
        return len(self._digits)

    def extend(self, times: Sequence[Time]) -> None:
        """Append times."""
        whole = [time for time in times if type(time) is int and abs(time) <= MAX_US]
        if len(whole) == len(times):
            self._digits.extend(array("q", whole))
            self._places.extend(array("b", bytes(len(times))))
            return
        for time in times:
            self._append(time)

    def _append(self, time: Time) -> None:
        text = str(time)
        whole, _, decimals = text.partition(".")
        # An exponent makes no number of them; -0.0 would lose its sign.
        if len(text) <= _MAX_TEXT and "E" not in text and whole != "-0":
            digits = int(whole + decimals)
            if abs(digits) <= MAX_US:
                self._digits.append(digits)
                self._places.append(len(decimals))
                return
        self._odd[len(self._digits)] = time
        self._digits.append(0)
        self._places.append(_ODD)

    def __getitem__(self, row: int) -> Time:
        digits, places = self._digits[row], self._places[row]
        if places == _ODD:
            return self._odd[row]
        return Decimal(digits).scaleb(-places) if places else digits

    def earliest(self, rows: Int64Array | None = None) -> Time:
        """Return the earliest time, of ``rows`` alone where given; the first as written of equal ones."""
        return min(self[row] for row in self._candidates(rows, largest=False))

    def latest(self) -> Time:
        """Return the latest time; the first as written of equal ones."""
        return max(self[row] for row in self._candidates(None, largest=True))

    def _candidates(self, rows: Int64Array | None, *, largest: bool) -> list[int]:
        """Return, in order, rows of which one is the smallest or largest."""
        found: set[int] = set()
        digits, places = int64_view(self._digits), np.frombuffer(self._places, np.int8)
        for start, stop in chunks(len(self) if rows is None else len(rows)):
            here = np.arange(start, stop) if rows is None else rows[start:stop]
            decimals = places[here]
            for shared in np.unique(decimals).tolist():
                alike = here[decimals == shared]
                best = digits[alike].argmax() if largest else digits[alike].argmin()
                found.update(alike.tolist() if shared == _ODD else [int(alike[best])])
        return sorted(found)

    def are_whole(self) -> bool:
        """Return whether every time is a whole number, with or without decimals."""
        digits, places = int64_view(self._digits), np.frombuffer(self._places, np.int8)
        for start, stop in chunks(len(self)):
            decimals = np.maximum(places[start:stop], 0).astype(np.int64)
            if (digits[start:stop] % 10**decimals != 0).any():
                return False
        return all(time == int(time) for time in self._odd.values())

    def microseconds(self, unit: TimeUnit, origin: Time, rows: Int64Array | None = None) -> Int64Array:
        """Return what `kvsuite.trace.clock.microseconds` does, of ``rows`` alone where given.

        **Raises:** `TimeRangeError` with the index, among ``rows``, of the first time out of range.
        """
        result = np.empty(len(self) if rows is None else len(rows), np.int64)
        for start, stop in chunks(len(result)):
            here = np.arange(start, stop) if rows is None else rows[start:stop]
            part = self._differences(here, unit, origin)
            if part is None:
                try:
                    part = microseconds([self[row] for row in here.tolist()], unit, origin)
                except TimeRangeError as error:
                    raise TimeRangeError(start + error.index) from None
            result[start:stop] = part
        return result

    def _differences(self, rows: Int64Array, unit: TimeUnit, origin: Time) -> Int64Array | None:
        """Return the microseconds of ``rows``; None where 64 bits might not hold what is in between."""
        if len(str(origin)) > _MAX_TEXT or "E" in str(origin):
            return None
        origin_places = -int(Decimal(origin).as_tuple().exponent)
        origin_digits = int(Decimal(origin).scaleb(origin_places))
        places = np.frombuffer(self._places, np.int8)[rows]
        result = np.empty(len(rows), np.int64)
        for shared in np.unique(places).tolist():
            if shared == _ODD:
                return None
            alike = places == shared
            digits = int64_view(self._digits)[rows[alike]]
            fine = max(shared, origin_places)
            scale, base = 10 ** (fine - shared), origin_digits * 10 ** (fine - origin_places)
            part = _shifted(digits, scale, base, DECIMAL_SHIFT[unit] - fine)
            if part is None:
                return None
            result[alike] = part
        return result


def _shifted(digits: Int64Array, scale: int, base: int, shift: int) -> Int64Array | None:
    """Return ``(digits * scale - base) * 10**shift``, rounded half to even; None if it may be too large."""
    largest = max(abs(int(digits.max())), abs(int(digits.min()))) * scale + abs(base)
    if max(largest, largest * 10 ** max(shift, 0), 2 * 10 ** max(-shift, 0)) > MAX_US:
        return None
    ticks: Int64Array = digits * scale - base
    if shift >= 0:
        return ticks * np.int64(10**shift)
    per_us = 10**-shift
    whole: Int64Array = ticks // per_us
    twice = 2 * (ticks - whole * per_us)
    whole += (twice > per_us) | ((twice == per_us) & (whole % 2 == 1))
    return whole
