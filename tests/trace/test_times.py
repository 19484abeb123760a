"""Times in nine bytes: given back as they were written, and turned to microseconds as one by one."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvsuite.trace import ragged
from kvsuite.trace.clock import TIME_UNITS, TimeRangeError, TimeUnit, microseconds
from kvsuite.trace.times import TimeColumn

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.trace.tokens import Int64Array

WRITTEN = st.one_of(
    st.integers(-(10**6), 10**6),
    st.integers(-(2**80), 2**80),
    st.decimals(-(10**12), 10**12, allow_nan=False, allow_infinity=False),
    st.decimals(-(10**3), 10**3, allow_nan=False, allow_infinity=False, places=7),
    st.decimals(0, 2, places=25),
    st.sampled_from([Decimal("-0"), Decimal("-0.00"), Decimal("1E+3"), Decimal("2.50"), Decimal("1e-40")]),
)


def column(times: list[int | Decimal], batch: int = 3) -> TimeColumn:
    found = TimeColumn()
    for start in range(0, len(times), batch):
        found.extend(times[start : start + batch])
    return found


def outcome(convert: Callable[[], Int64Array]) -> object:
    """Return microseconds, or the index of the time out of range."""
    try:
        return convert().tolist()
    except TimeRangeError as error:
        return error.index


@given(st.lists(WRITTEN))
def test_times_come_back_as_they_were_written(times: list[int | Decimal]) -> None:
    found = column(times)

    assert [str(found[row]) for row in range(len(found))] == [str(time) for time in times]


@given(st.lists(WRITTEN, min_size=1), st.integers(1, 4))
def test_extremes_are_the_first_of_equal_ones(times: list[int | Decimal], chunk: int) -> None:
    found = column(times)
    rows = np.arange(0, len(times), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "CHUNK", chunk)
        assert str(found.earliest()) == str(min(times))
        assert str(found.latest()) == str(max(times))
        assert str(found.earliest(rows)) == str(min(times[::2]))
        assert found.are_whole() == all(time == int(time) for time in times)


@given(st.lists(WRITTEN, min_size=1), st.sampled_from(TIME_UNITS), st.integers(1, 4))
@example([Decimal("0.0000005"), Decimal("0.0000015"), 0], "s", 4)
@example([500, 1500, 2500, -500, 0], "ns", 4)
def test_microseconds_are_those_of_the_times_one_by_one(
    times: list[int | Decimal], unit: TimeUnit, chunk: int
) -> None:
    found, origin = column(times), min(times)
    rows = np.arange(len(times))[::-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "CHUNK", chunk)
        assert outcome(lambda: found.microseconds(unit, origin)) == outcome(
            lambda: microseconds(times, unit, origin)
        )
        assert outcome(lambda: found.microseconds(unit, origin, rows)) == outcome(
            lambda: microseconds(times[::-1], unit, origin)
        )


def test_a_time_takes_nine_bytes() -> None:
    found = column([Decimal("1700158546.6805900"), 1_700_158_547], batch=1)

    assert (len(found._digits) * found._digits.itemsize, len(found._places), found._odd) == (16, 2, {})
