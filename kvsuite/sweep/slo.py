"""Which requests were served in time, and what that came to: qualified tokens, goodput, concurrency.

A request *meets* the SLO when it finished, its first token came within the TTFT budget, and the p99 (nearest
rank) of the gaps between its tokens is within the ITL budget. An answer of one token has no gaps: TTFT alone
decides. Refused and cancelled requests are counted apart, and are never a miss or a hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.errors import ConfigError
from kvsuite.replay.batch import Ending

if TYPE_CHECKING:
    from kvsuite.sweep.clock import ClockedReplay, Float64Array, RequestTimes

BoolArray = npt.NDArray[np.bool_]

PERCENTILES = (50, 90, 99)
RESAMPLES = 2000
SEED = 6
"""Of every bootstrap, so that equal figures have equal intervals."""
_NUMBERS = {ending: number for number, ending in enumerate(Ending)}
FINISHED, CANCELLED = _NUMBERS[Ending.FINISHED], _NUMBERS[Ending.CANCELLED]
REFUSED = tuple(_NUMBERS[e] for e in (Ending.REJECTED, Ending.FORK_DENIED, Ending.ORPHANED))


@dataclass(frozen=True, slots=True)
class Slo:
    """Budgets in microseconds, both at least 1.

    **Raises:** `ConfigError` for a budget below 1.
    """

    ttft_us: int
    itl_us: int

    def __post_init__(self) -> None:
        if self.ttft_us < 1 or self.itl_us < 1:
            raise ConfigError(f"SLO {self}: a budget is 1 us or more")

    def __str__(self) -> str:
        return f"ttft={_exact_ms(self.ttft_us)}ms,itl={_exact_ms(self.itl_us)}ms"


@dataclass(frozen=True, slots=True)
class Percentile:
    """A nearest-rank percentile in microseconds with its bootstrap 95 % interval."""

    percent: int
    value_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one clocked replay came to under an SLO, over the requests that arrived in a window.

    ``requests = met + missed + refused + cancelled + unanswered``.
    """

    requests: int
    met: int
    missed: int
    missed_ttft: int
    """Of those that missed: first token too late, whatever the gaps."""
    missed_itl: int
    """Of those that missed: first token in time, gaps too long."""
    refused: int
    """Larger than the empty pool, children that found no room, and orphans."""
    cancelled: int
    unanswered: int
    """Without an answer token at the end of the replay: nothing was asked for, or it never came to an end."""
    completed_tokens: int
    """Output tokens of the requests that finished."""
    qualified_tokens: int
    """Output tokens of those that met the SLO."""
    span_us: float
    """Simulated time of the window."""
    safe_concurrency: int
    """See `safe_concurrency`."""
    ttft: tuple[Percentile, ...]
    """Over the requests that finished; empty where none did."""
    itl: tuple[Percentile, ...]
    """Over the p99 gaps of the requests that finished with two tokens or more."""

    @property
    def goodput(self) -> float:
        """Qualified tokens a second of simulated time; 0 for a window without any."""
        return 1e6 * self.qualified_tokens / self.span_us if self.span_us > 0 else 0.0


def answered(times: RequestTimes) -> BoolArray:
    """Return which requests are judged: finished, with at least one answer token; bool[R]."""
    judged: BoolArray = (times.ending == FINISHED) & ~np.isnan(times.ttft_us) & (times.output_tokens > 0)
    return judged


def met(times: RequestTimes, slo: Slo) -> BoolArray:
    """Return which requests met the SLO, bool[R]. A budget that is just reached is met."""
    gaps = np.isnan(times.itl_p99_us) | (times.itl_p99_us <= slo.itl_us)
    return answered(times) & (times.ttft_us <= slo.ttft_us) & gaps


def served(
    clocked: ClockedReplay,
    slo: Slo,
    window_us: tuple[float, float] | None = None,
    *,
    listed_us: Float64Array | None = None,
) -> Served:
    """Return what a replay came to over the requests that arrived in ``[start, stop)``, or over all.

    When a child arrives depends on the steps before. Replays are compared over the same requests where
    ``listed_us``, float64[R], has the times that the trace lists: those then tell who is in the window.

    A window without an end (``stop`` is infinite) runs to the last step and has the children that never came.
    """
    times = clocked.times
    start_us, stop_us = window_us or (-np.inf, np.inf)
    arrival_us = times.arrival_us if listed_us is None else listed_us
    came_us = np.where(np.isnan(arrival_us), np.inf, arrival_us)  # a child may never come
    inside = (came_us >= start_us) & ((came_us < stop_us) | (stop_us == np.inf))
    judged, hit = answered(times) & inside, met(times, slo) & inside
    missed = judged & ~hit
    late = missed & (times.ttft_us > slo.ttft_us)
    refused = np.isin(times.ending, REFUSED) & inside
    cancelled = (times.ending == CANCELLED) & inside
    gaps = times.itl_p99_us[judged]
    counts = [int(mask.sum()) for mask in (inside, hit, missed, late, refused, cancelled)]
    requests, num_met, num_missed, num_late, num_refused, num_cancelled = counts
    return Served(
        requests=requests,
        met=num_met,
        missed=num_missed,
        missed_ttft=num_late,
        missed_itl=num_missed - num_late,
        refused=num_refused,
        cancelled=num_cancelled,
        unanswered=requests - num_met - num_missed - num_refused - num_cancelled,
        completed_tokens=int(times.output_tokens[judged].sum()),
        qualified_tokens=int(times.output_tokens[hit].sum()),
        span_us=_span_us(clocked, start_us, stop_us),
        safe_concurrency=safe_concurrency(clocked, slo, inside),
        ttft=percentiles(times.ttft_us[judged]),
        itl=percentiles(gaps[~np.isnan(gaps)]),
    )


def safe_concurrency(clocked: ClockedReplay, slo: Slo, inside: BoolArray) -> int:
    """Return the largest concurrency whose requests all met the SLO.

    The concurrency of a request is the number of sequences that ran in the step that wrote its first token.
    The result is the largest ``n`` that occurs such that every request at ``n`` or fewer met the SLO; 0 where
    the requests at the smallest one did not.
    """
    times = clocked.times
    judged = answered(times) & inside
    if not judged.any():
        return 0
    first_us = times.arrival_us[judged] + times.ttft_us[judged]
    # A first token comes at the end of a step; half a nanosecond makes up for the sum of two floats.
    steps = np.searchsorted(clocked.step_end_us, first_us - 5e-4).clip(max=len(clocked.running) - 1)
    running, hit = clocked.running[steps], met(times, slo)[judged]
    if hit.all():
        return int(running.max())
    below = running[running < running[~hit].min()]
    return int(below.max(initial=0))


def percentiles(values: Float64Array) -> tuple[Percentile, ...]:
    """Return nearest-rank percentiles of ``values`` with bootstrap 95 % intervals; none of no values.

    The k-th smallest of n draws with replacement from n values is the value of rank ``ceil(n U)``, with ``U``
    distributed as Beta(k, n + 1 - k): so a resample costs one draw, and not n.
    """
    ordered, total = np.sort(values), len(values)
    if not total:
        return ()
    found = []
    for percent in PERCENTILES:
        rank = -(-percent * total // 100)
        draws = np.random.default_rng(SEED).beta(rank, total + 1 - rank, RESAMPLES)
        ranks = np.ceil(total * np.sort(draws)).astype(np.int64).clip(1, total)
        low, high = (ordered[ranks[k] - 1] for k in interval_places(RESAMPLES))
        found.append(Percentile(percent, float(ordered[rank - 1]), float(low), float(high)))
    return tuple(found)


def interval_places(resamples: int) -> tuple[int, int]:
    """Return where the ends of a 95 % interval stand among sorted resamples.

    >>> interval_places(2000)
    (49, 1950)
    """
    return resamples // 40 - 1, resamples - resamples // 40


def _exact_ms(us: int) -> str:
    """Return microseconds as milliseconds, with as many digits as it takes.

    >>> _exact_ms(1_000_000_500), _exact_ms(4000)
    ('1000000.5', '4')
    """
    return f"{us // 1000}.{us % 1000:03}".rstrip("0").removesuffix(".")


def _span_us(clocked: ClockedReplay, start_us: float, stop_us: float) -> float:
    if not len(clocked.step_end_us) or not len(clocked.times.arrival_us):
        return 0.0
    begin = max(start_us, float(np.nanmin(clocked.times.arrival_us)))
    end = min(stop_us, float(clocked.step_end_us[-1]))
    return max(end - begin, 0.0)
