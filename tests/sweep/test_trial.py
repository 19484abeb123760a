"""What becomes of a size that is tried before it ships."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec import structs

from kvsuite.errors import EngineError
from kvsuite.sweep import fullest, lifecycle, trial
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.lifecycle import lived_through
from kvsuite.sweep.measure import Measured, Measurement, clock_cell, measure, phase
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.trial import Trials
from kvsuite.trace.overlay import apply_overlay
from tests.sweep.stretches import COSTS, SOURCE, cell, together

if TYPE_CHECKING:
    from kvsuite.record.decision_rows import LifecycleRow
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.clock import ClockedReplay, StepCosts
    from kvsuite.sweep.fullest import Stretch
    from kvsuite.trace.model import Trace


def measured_of(trace: Trace, blocks: int, slo: Slo, seats: int = 16) -> tuple[Measurement, Measured]:
    asked = cell(trace, blocks, seats=seats)
    measurement = measure([("block 4", asked)], trace, SOURCE, slo, clock_cell)
    return measurement, measurement.options[0]


def trials(trace: Trace, measurement: Measurement, slo: Slo, declared: int) -> Trials:
    return Trials(
        trace=trace,
        source=SOURCE,
        slo=slo,
        clock=clock_cell,
        measurement=measurement,
        declared_burst=declared,
    )


SLO = Slo(ttft_us=10**7, itl_us=10**6)


def test_a_declared_burst_beyond_what_is_borne_ships_without_sharing() -> None:
    """9 blocks are held at most; tables of 16 rows of 3 entries take 192 bytes, and so one block of 15."""
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    assert option.spare_blocks == 14 - 9
    borne = trials(trace, measurement, SLO, 5)(option)
    assert (borne.sharing, borne.unfit, borne.unshared_tokens) == (True, None, ())
    beyond = trials(trace, measurement, SLO, 6)(option)
    assert (beyond.sharing, beyond.unfit) == (False, None)
    assert beyond.burst is not None
    assert beyond.burst.largest == 5
    # All arrive in the steady phase, as none is in the first 5 %: 12 tokens, shared or not.
    assert beyond.unshared_tokens == (12, 12, 12)


def test_an_option_whose_like_without_sharing_is_compared_too_does_not_ship() -> None:
    """Where prefix-cache is varied, its value ``true`` cannot ship with sharing off: that is ``false``."""
    trace = together(3, 6, 4)
    shared = cell(trace, 15)
    cells = [("shared", shared), ("unshared", replace(shared, prefix_cache=False))]
    measurement = measure(cells, trace, SOURCE, SLO, clock_cell)
    tried = trials(trace, measurement, SLO, 6)(measurement.options[0])
    assert tried.unfit == "bears a divergence burst of 5 and 6 are declared; with sharing off it is unshared"
    assert trials(trace, measurement, SLO, 5)(measurement.options[0]).unfit is None


def test_without_sharing_all_is_clocked_and_lived_again_with_the_draws_of_each_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    source = StatedCosts(device="here", kernel="stated", spread=0.1, blocks=dict.fromkeys((4,), COSTS))
    clocked: list[tuple[bool, StepCosts]] = []
    lived: list[bool] = []

    def clock(cell: Cell, trace: Trace, costs: StepCosts) -> ClockedReplay:
        clocked.append((cell.prefix_cache, costs))
        return clock_cell(cell, trace, costs)

    def live(stretch: Stretch) -> LifecycleRow:
        lived.append(stretch.cell.prefix_cache)
        return lived_through(stretch)

    monkeypatch.setattr(trial, "lived_through", live)
    replace(trials(trace, measurement, SLO, 6), source=source, clock=clock)(option)
    draws = [source.draw(4, repeat) for repeat in range(3)]
    assert len(set(draws)) == 3
    assert clocked == [(True, draws[0]), *((False, draw) for draw in draws), (False, draws[0])]
    assert lived == [False]


def test_tokens_without_sharing_are_those_of_the_steady_phase() -> None:
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    late = replace(measurement, cold_until_us=1e9)
    assert trials(trace, late, SLO, 6)(option).unshared_tokens == (0, 0, 0)


@pytest.mark.parametrize("declared", [0, 6])
def test_what_does_not_survive_is_unfit_with_sharing_and_without(
    monkeypatch: pytest.MonkeyPatch, declared: int
) -> None:
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    monkeypatch.setattr(
        trial, "lived_through", lambda stretch: structs.replace(lived_through(stretch), broken="r3 starves")
    )
    tried = trials(trace, measurement, SLO, declared)(option)
    assert (tried.sharing, tried.unfit) == (declared == 0, "does not survive its lifecycle: r3 starves")


def test_an_option_that_serves_nobody_without_sharing_does_not_ship() -> None:
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    hopeless = trials(trace, measurement, replace(SLO, itl_us=1), 6)(option)
    assert hopeless.unfit == (
        "bears a divergence burst of 5 and 6 are declared, and with sharing off it qualifies no token"
    )


def test_an_option_that_shares_nothing_has_no_burst_to_bear() -> None:
    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    unshared = replace(option, cell=replace(option.cell, prefix_cache=False))
    tried = trials(trace, measurement, SLO, 100)(unshared)
    assert (tried.burst, tried.sharing, tried.unfit) == (None, False, None)


def test_a_child_counts_where_its_line_stands_in_the_trace() -> None:
    """The child is listed at 0 with its parent, and comes when a step of 1 ms or more has ended."""
    trace = apply_overlay(together(1, 6, 8), "fork:every=1,n=2")
    asked = cell(trace, 40)
    clocked = clock_cell(asked, trace, COSTS)
    assert clocked.times.arrival_us[1] >= 1000
    assert phase(clocked, trace, SLO, (-np.inf, 500)).requests == 2
    assert phase(clocked, trace, SLO, (500, np.inf)).requests == 0


def test_an_engine_that_leaves_nothing_to_judge_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise EngineError("table of r3 is gone\nsecond line")

    trace = together(3, 6, 4)
    measurement, option = measured_of(trace, 15, SLO)
    for where in (lifecycle, fullest):
        with monkeypatch.context() as patched:
            patched.setattr(where, "replay", broken)
            stepped = replace(option, cell=replace(option.cell, core="step"))
            tried = trials(trace, measurement, SLO, 1)(stepped)
        assert tried.unfit == "does not survive its lifecycle: table of r3 is gone"
        assert (tried.burst, tried.lifecycle.requests) == (None, 3)
