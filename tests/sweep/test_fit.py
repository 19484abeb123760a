"""The fit: the least squares of costs that are not negative, and what noise can do to it at most."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.device.timing.rounds import Load, Timing, What
from kvsuite.errors import ConfigError
from kvsuite.sweep.calibrate import fitted_together
from kvsuite.sweep.fit import BASE, TERMS, PartTimings, nonnegative_least_squares
from tests.sweep.calibrations import LOADS, costs_of, planted_us, timings

if TYPE_CHECKING:
    from kvsuite.sweep.fit import FloatArray

parts = st.sampled_from(sorted(TERMS))


def design(part: str, loads: tuple[Load, ...]) -> FloatArray:
    rows = [[1.0 if term == BASE else float(getattr(load, term)) for term in TERMS[part]] for load in loads]
    return np.array(rows)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_no_other_costs_come_closer(seed: int, columns: int, rows: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: no cost is negative, and where one can still fall or rise,
    the error does not shrink."""
    chance = np.random.default_rng(seed)
    matrix, target = chance.normal(size=(rows, columns)), chance.normal(size=rows)
    found = nonnegative_least_squares(matrix, target)
    slope = matrix.T @ (matrix @ found - target)
    assert found.min() >= 0
    assert slope.min() >= -1e-8
    assert abs(found * slope).max() <= 1e-8


@given(parts, st.integers(0, 2**32), st.floats(0, 0.2))
def test_planted_costs_are_missed_by_no_more_than_the_noise(part: str, seed: int, noise: float) -> None:
    """Costs that are not negative are a cone, and going to its nearest point brings no two points further
    apart: in the fit's own weights the fit is as close to the planted times as the timings are, or closer."""
    size = 16 if part in ("attention", "manager") else None
    mine = [
        t
        for t in timings(noise, seed)
        if (t.what.part, t.what.block_size, t.what.cold) == (part, size, part == "attention")
    ]
    costs = PartTimings(part, {size: mine}).costs()[0]
    loads = LOADS[part]
    planted = np.array([planted_us(part, costs_of(part, size), load) for load in loads])
    measured = np.array([np.median(t.rounds_us) for t in mine])
    fitted = design(part, loads) @ costs
    weights = measured**-0.5
    assert costs.min() >= 0
    assert (
        np.linalg.norm(weights * (fitted - planted)) <= np.linalg.norm(weights * (measured - planted)) + 1e-9
    )


@given(st.integers(0, 2**32))
def test_without_noise_every_cost_is_found(seed: int) -> None:
    for together in fitted_together(timings(0.0, seed)):
        for size, costs in zip(together.sizes, together.costs(), strict=True):
            assert costs == pytest.approx(costs_of(together.part, size))


def test_without_noise_there_is_no_spread_and_no_residual() -> None:
    for together in fitted_together(timings()):
        for fit in together.fits():
            assert fit.low_us == pytest.approx(fit.costs_us)
            assert fit.high_us == pytest.approx(fit.costs_us)
            assert fit.residual_max == pytest.approx(0, abs=1e-9)


def test_costs_that_sizes_share_are_the_joint_least_squares() -> None:
    """Solved in one go: shared columns, and a column of tokens for each size."""
    given_timings = [t for t in timings(0.01, 5) if t.what.part == "attention" and t.what.cold]
    by_size = {
        size: list(each) for size, each in groupby(given_timings, key=lambda timing: timing.what.block_size)
    }
    measured = np.array([[np.median(t.rounds_us) for t in mine] for mine in by_size.values()])
    one = design("attention", LOADS["attention"])
    weights = measured.mean(axis=0) ** -0.5
    count = len(by_size)
    whole = np.zeros((count * len(one), 2 + count))
    for index in range(count):
        rows = slice(index * len(one), (index + 1) * len(one))
        whole[rows, :2] = one[:, :2]
        whole[rows, 2 + index] = one[:, 2]
    scale = np.tile(weights, count)
    due = np.linalg.lstsq(whole * scale[:, None], measured.ravel() * scale, rcond=None)[0]
    assert due.min() > 0
    found = PartTimings("attention", by_size).costs()
    assert found[:, :2] == pytest.approx(np.tile(due[:2], (count, 1)))
    assert found[:, 2] == pytest.approx(due[2:])


def test_quartiles_of_the_bootstrap_lie_around_the_costs_and_widen_with_noise() -> None:
    def spread(noise: float) -> float:
        fits = [fit for each in fitted_together(timings(noise, 1)) for fit in each.fits()]
        for fit in fits:
            assert all(low <= high for low, high in zip(fit.low_us, fit.high_us, strict=True))
        return sum(fit.high_us[-1] - fit.low_us[-1] for fit in fits if fit.part == "attention")

    assert 0 < spread(0.01) < spread(0.2)


def test_residuals_are_relative_to_what_was_measured() -> None:
    """Times 10, 10 and 40 of 1, 2 and 3 sequences, of a part without a base: with weights of one over the
    root of the time the cost is sum(n) / sum(n^2 / t) = 6 / (1/10 + 4/10 + 9/40) = 240 / 29."""
    mine = [
        Timing(What(part="manager", load=Load(sequences=n, blocks=b)), (us,) * 9)
        for n, b, us in ((1, 0, 10.0), (2, 0, 10.0), (3, 0, 40.0), (0, 1, 7.0))
    ]
    (fit,) = PartTimings("manager", {None: mine}).fits()
    assert fit.costs_us == pytest.approx((240 / 29, 7.0))
    assert fit.residual_max == pytest.approx(480 / 290 - 1)
    assert fit.residual_median == pytest.approx((50 / 290 + 440 / 1160) / 2)
    assert fit.us(Load(sequences=2, blocks=1)) == pytest.approx(480 / 29 + 7)


def test_loads_that_do_not_tell_costs_apart_are_refused() -> None:
    mine = [Timing(What(part="rest", load=Load(sequences=4)), (us,) * 9) for us in (10.0, 11.0, 12.0)]
    with pytest.raises(ConfigError, match="do not tell base, sequences apart"):
        PartTimings("rest", {None: mine})


def test_sizes_timed_at_different_loads_are_refused() -> None:
    by_size: dict[int | None, list[Timing]] = {
        size: [Timing(What(part="attention", load=load, block_size=size), (1.0,) * 9) for load in loads]
        for size, loads in ((1, LOADS["attention"]), (16, LOADS["attention"][::-1]))
    }
    with pytest.raises(ConfigError, match="not of the same loads"):
        PartTimings("attention", by_size)
