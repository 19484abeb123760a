"""Exact times: decimal numbers in any unit to integer microseconds from the earliest arrival."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation, localcontext
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.tokens import Int64Array

Time = int | Decimal
"""A time as a file states it, exact."""

TimeUnit = Literal["s", "ms", "us", "ns"]
TIME_UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")
DECIMAL_SHIFT: dict[TimeUnit, int] = {"s": 6, "ms": 3, "us": 0, "ns": -3}
"""Decimal places from each unit to microseconds."""

_EXACT = Context(prec=64, traps=[Inexact, InvalidOperation])
MAX_US = 2**62
_MAX_DIGITS = 20


class TimeRangeError(ValueError):
    """A time that 64 digits, or 2**62 microseconds from the earliest arrival, cannot hold."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def microseconds(times: Sequence[Time], unit: TimeUnit, origin: Time) -> Int64Array:
    """Return the exact differences to ``origin``, rounded half to even to whole microseconds.

    **Raises:** `TimeRangeError` with the index of the first time out of range.
    """
    shift = DECIMAL_SHIFT[unit]
    if shift >= 0 and type(origin) is int and all(type(time) is int for time in times):
        exact = [(time - origin) * 10**shift for time in times]
    else:
        exact = _rounded(times, shift, origin)
    for index, value in enumerate(exact):
        if abs(value) > MAX_US:
            raise TimeRangeError(index)
    return np.array(exact, np.int64)


def _rounded(times: Sequence[Time], shift: int, origin: Time) -> list[int]:
    rounded: list[int] = []
    with localcontext(_EXACT):
        for time in times:
            try:
                exact = (Decimal(time) - origin).scaleb(shift)
            except (Inexact, InvalidOperation):
                raise TimeRangeError(len(rounded)) from None
            if exact.adjusted() > _MAX_DIGITS:
                raise TimeRangeError(len(rounded))
            rounded.append(int(exact.to_integral_value(ROUND_HALF_EVEN)))
    return rounded


def milliseconds(microseconds: int) -> Time:
    """Return a time in milliseconds, exact, a whole number where it is one."""
    whole, rest = divmod(microseconds, 1000)
    return whole if rest == 0 else Decimal(microseconds).scaleb(-3)
