"""Who met the SLO, worked out by hand on six requests; percentiles by their definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cli.sizes import parse_slo
from kvsuite.errors import ConfigError
from kvsuite.sweep.clock import ClockedReplay, RequestTimes
from kvsuite.sweep.slo import (
    CANCELLED,
    FINISHED,
    REFUSED,
    Slo,
    answered,
    met,
    percentiles,
    safe_concurrency,
    served,
)

if TYPE_CHECKING:
    from kvsuite.replay.compiled.replay import CompiledReplay

NAN = float("nan")
SLO = Slo(ttft_us=100, itl_us=10)
NO_FEATURES = np.zeros((0, 7), np.int64)
STEP_ENDS = (50.0, 100.0, 150.0, 200.0)


def clocked(
    *rows: tuple[float, float, float, int, int], running: tuple[int, ...] = (1, 1, 1, 1)
) -> ClockedReplay:
    """Return a replay of requests given as (arrival, TTFT, p99 gap, output tokens, ending)."""
    arrival, ttft, itl, output, ending = (np.array(column) for column in zip(*rows, strict=True))
    times = RequestTimes(
        arrival.astype(float), ttft.astype(float), itl.astype(float), output, ending, np.ones_like(output)
    )
    replay: CompiledReplay = None  # type: ignore[assignment]
    return ClockedReplay(replay, times, np.array(STEP_ENDS), np.array(running), NO_FEATURES)


SIX = clocked(
    (0, 100, 10, 7, FINISHED),  # both budgets just reached: met
    (0, 101, 1, 5, FINISHED),  # first token late
    (0, 50, 11, 3, FINISHED),  # gaps too long
    (50, 50, NAN, 1, FINISHED),  # one token has no gap: TTFT alone
    (50, NAN, NAN, 0, REFUSED[0]),
    (50, 20, 1, 9, CANCELLED),  # in time as far as it went, and yet no hit
)


def test_who_met_it() -> None:
    assert answered(SIX.times).tolist() == [True, True, True, True, False, False]
    assert met(SIX.times, SLO).tolist() == [True, False, False, True, False, False]


def test_what_it_came_to() -> None:
    got = served(SIX, SLO)
    assert (got.requests, got.met, got.missed, got.refused, got.cancelled, got.unanswered) == (
        6,
        2,
        2,
        1,
        1,
        0,
    )
    assert (got.missed_ttft, got.missed_itl) == (1, 1)
    assert (got.completed_tokens, got.qualified_tokens) == (7 + 5 + 3 + 1, 7 + 1)
    assert got.span_us == 200
    assert got.goodput == pytest.approx(8 * 1e6 / 200)


def test_windows_part_the_requests_and_the_time() -> None:
    cold, steady = served(SIX, SLO, (-np.inf, 50.0)), served(SIX, SLO, (50.0, np.inf))
    assert (cold.requests, cold.met, cold.qualified_tokens, cold.span_us) == (3, 1, 7, 50)
    assert (steady.requests, steady.met, steady.qualified_tokens, steady.span_us) == (3, 1, 1, 150)


def test_a_request_that_never_ended_is_unanswered_and_neither_hit_nor_miss() -> None:
    got = served(clocked((0, 10, 1, 4, -1), (0, NAN, NAN, 0, FINISHED)), SLO)
    assert (got.requests, got.unanswered, got.met, got.missed, got.completed_tokens) == (2, 2, 0, 0, 0)


def test_a_child_that_never_came_is_refused_in_the_window_without_an_end() -> None:
    """It has no arrival, so that it lies before no moment."""
    replay = clocked((0, 10, 1, 4, FINISHED), (NAN, NAN, NAN, 0, REFUSED[1]))
    assert served(replay, SLO).refused == 1
    cold, steady = served(replay, SLO, (-np.inf, 50.0)), served(replay, SLO, (50.0, np.inf))
    assert (cold.requests, cold.refused) == (1, 0)
    assert (steady.requests, steady.refused) == (1, 1)
    assert served(replay, SLO).span_us == 200


def test_every_refused_ending_counts_apart() -> None:
    got = served(clocked(*((0, NAN, NAN, 0, ending) for ending in REFUSED)), SLO)
    assert (got.requests, got.refused, got.unanswered) == (3, 3, 0)
    assert (got.ttft, got.safe_concurrency) == ((), 0)


def test_nothing_at_all() -> None:
    none, never = np.zeros(0, np.int64), np.zeros(0)
    empty = RequestTimes(never, never, never, none, none, none)
    got = served(ClockedReplay(SIX.replay, empty, never, none, NO_FEATURES), SLO)
    assert (got.requests, got.span_us, got.goodput) == (0, 0, 0)


@pytest.mark.parametrize(
    ("late", "expected"),
    [((), 8), ((8,), 4), ((4,), 2), ((1,), 0), ((2, 8), 1)],
    ids=["all in time", "at 8", "at 4", "at 1", "at 2 and 8"],
)
def test_the_largest_concurrency_whose_requests_all_met_it(late: tuple[int, ...], expected: int) -> None:
    """First tokens at steps with 1, 2, 4 and 8 running; those at ``late`` have gaps that are too long."""
    running = (1, 2, 4, 8)
    rows = [
        (0.0, end, 11.0 if at in late else 1.0, 5, FINISHED)
        for end, at in zip(STEP_ENDS, running, strict=True)
    ]
    replay = clocked(*rows, running=running)
    assert safe_concurrency(replay, Slo(1000, 10), np.ones(4, np.bool_)) == expected


def test_a_first_token_is_found_although_floats_do_not_add_up() -> None:
    """0.1 + 0.2 is more than 0.3: the step that ends at 0.3 wrote the token."""
    times = RequestTimes(
        np.array([0.1]), np.array([0.2]), np.array([NAN]), np.array([1]), np.array([FINISHED]), np.array([1])
    )
    replay = ClockedReplay(SIX.replay, times, np.array([0.3, 0.5]), np.array([3, 9]), NO_FEATURES)
    assert safe_concurrency(replay, SLO, np.ones(1, np.bool_)) == 3


def test_percentiles_are_nearest_rank() -> None:
    """Of 1..200: rank ceil(0.5 * 200) = 100, ceil(0.9 * 200) = 180, ceil(0.99 * 200) = 198."""
    found = percentiles(np.random.default_rng(1).permutation(np.arange(1.0, 201.0)))
    assert [(p.percent, p.value_us) for p in found] == [(50, 100), (90, 180), (99, 198)]


def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    """Held against resampling itself: the ends agree to the noise of either, a few ranks of 400."""
    values = np.sort(np.random.default_rng(3).permutation(np.arange(400.0)))
    resamples = np.random.default_rng(5).choice(values, (20_000, 400))
    for found in percentiles(values):
        drawn = np.sort(
            np.partition(resamples, -(-found.percent * 400 // 100) - 1, axis=1)[
                :, -(-found.percent * 400 // 100) - 1
            ]
        )
        assert abs(found.low_us - drawn[500]) <= 4
        assert abs(found.high_us - drawn[-500]) <= 4
        assert found.low_us <= found.value_us <= found.high_us


def test_one_value_is_every_percentile() -> None:
    assert {(p.value_us, p.low_us, p.high_us) for p in percentiles(np.array([7.0]))} == {(7, 7, 7)}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=60), st.floats(0, 1e9), st.integers(1, 10**9))
def test_a_larger_budget_never_loses_a_token(gaps: list[float], ttft: float, budget: int) -> None:
    replay = clocked(*((0.0, ttft, gap, 3, FINISHED) for gap in gaps))
    small = served(replay, Slo(10**9, budget)).qualified_tokens
    assert small <= served(replay, Slo(10**9, budget + 1)).qualified_tokens
    assert small == 3 * sum(gap <= budget for gap in gaps)


def test_texts() -> None:
    assert parse_slo("ttft=500ms,itl=50ms") == parse_slo(" itl=50000us, ttft=0.5s") == Slo(500_000, 50_000)
    assert str(Slo(500_000, 50_000)) == "ttft=500ms,itl=50ms"
    assert str(Slo(1_000_000_500, 1)) == "ttft=1000000.5ms,itl=0.001ms"


@pytest.mark.parametrize("text", ["", "ttft=1s", "ttft=1s,itl=1s,itl=1s", "ttft=1s,e2e=1s"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a budget for ttft and one for itl"):
        parse_slo(text)


def test_a_budget_needs_its_unit() -> None:
    with pytest.raises(ConfigError, match="no known unit"):
        parse_slo("ttft=500,itl=50ms")
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_slo("ttft,itl")
    with pytest.raises(ConfigError, match="1 us or more"):
        Slo(0, 1)
