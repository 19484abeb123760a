"""Exact times to microseconds."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.trace.clock import TIME_UNITS, TimeRangeError, TimeUnit, microseconds, milliseconds

PER_UNIT = {"s": Fraction(10**6), "ms": Fraction(1000), "us": Fraction(1), "ns": Fraction(1, 1000)}
TIMES = st.one_of(
    st.integers(-(10**12), 10**12),
    st.decimals(-(10**12), 10**12, allow_nan=False, allow_infinity=False, places=9),
)


@given(st.lists(TIMES, min_size=1), st.sampled_from(TIME_UNITS))
def test_differences_are_exact_and_rounded_half_to_even(times: list[int | Decimal], unit: TimeUnit) -> None:
    origin = min(times)

    # Fraction rounds half to even, and knows no digits to lose.
    expected = [round((Fraction(time) - Fraction(origin)) * PER_UNIT[unit]) for time in times]
    assert microseconds(times, unit, origin).tolist() == expected


@pytest.mark.parametrize(
    ("time", "expected"),
    [("0.0000005", 0), ("0.0000015", 2), ("0.0000025", 2), ("199.961505999999", 199_961_506)],
)
def test_halves_by_hand(time: str, expected: int) -> None:
    assert microseconds([Decimal(time)], "s", 0).tolist() == [expected]


@pytest.mark.parametrize("time", [Decimal("1e400"), Decimal("1e-400"), 10**20, -(10**20), Decimal("1e25")])
def test_what_cannot_be_held_exactly_is_refused_with_its_index(time: int | Decimal) -> None:
    with pytest.raises(TimeRangeError) as caught:
        microseconds([1, Decimal("2.5"), time], "ms", 1)
    assert caught.value.index == 2


@given(st.integers(0, 2**53))
def test_milliseconds_are_exact(time_us: int) -> None:
    time_ms = milliseconds(time_us)

    assert Fraction(time_ms) * 1000 == time_us
    assert isinstance(time_ms, int) == (time_us % 1000 == 0)
