"""Whether times that a format calls milliseconds can be anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from kvsuite.errors import AmbiguousTrace

if TYPE_CHECKING:
    from kvsuite.trace.clock import Time
    from kvsuite.trace.times import TimeColumn

_EPOCH_S = (946_684_800, 4_102_444_800)
"""2000-01-01 and 2100-01-01 as seconds since 1970: where an epoch time of this era lies."""
_EPOCH_SCALES = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MAX_RATE_PER_S = 100
"""More requests a second than this, on average, speak for seconds: a trace's rate is then 1000 times less."""
_DAY_MS = 86_400_000
_MAX_GAP_MS = 100_000
"""A larger mean gap over more than a day speaks for microseconds or nanoseconds."""


def check_milliseconds(times: TimeColumn) -> None:
    """Accept times that can only be milliseconds: epoch times of this era, or whole numbers from near 0.

    **Raises:** `AmbiguousTrace` that names ``--time-unit`` and says what speaks against milliseconds.
    """
    first, last = times.earliest(), times.latest()
    scale = next((unit for unit, factor in _EPOCH_SCALES.items() if _in_era(first, last, factor)), None)
    if scale == "ms":
        return
    if scale is not None:
        _refuse(f"times from {first} look like an epoch time in {scale}")
    if first < 0 or last >= _EPOCH_S[0]:
        _refuse(f"times from {first} to {last} are neither near 0 nor an epoch time in ms")
    if not times.are_whole():
        _refuse("times have fractions, which the format's own files do not: they may be seconds")
    span_ms, gaps = last - first, len(times) - 1
    if gaps * 1000 > _MAX_RATE_PER_S * span_ms > 0:
        _refuse(f"{gaps + 1} requests within {span_ms} ms would be more than {_MAX_RATE_PER_S} a second")
    if span_ms > _DAY_MS and span_ms > _MAX_GAP_MS * gaps:
        _refuse(f"{gaps + 1} requests over {span_ms} ms would be less than one in {_MAX_GAP_MS // 1000} s")


def _in_era(first: Time, last: Time, factor: int) -> bool:
    return _EPOCH_S[0] * factor <= first and last < _EPOCH_S[1] * factor


def _refuse(reason: str) -> NoReturn:
    raise AmbiguousTrace(
        f"the file does not say the unit of its times, and the ms of the format is doubtful: {reason}; "
        "give --time-unit s, ms, us or ns"
    )
