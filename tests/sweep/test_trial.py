"""What a size must bear before it ships, worked out by hand on requests that all run together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep import burst as bursts
from kvsuite.sweep.burst import largest_burst
from kvsuite.sweep.cells import Cell
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.fullest import STRETCH_REQUESTS, Rows, Stretch, fullest_stretch
from kvsuite.sweep.lifecycle import eventful, lived_through
from kvsuite.sweep.measure import Measured, Measurement, clock_cell, measure
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.traces import TraceRef
from kvsuite.sweep.trial import Trials
from kvsuite.trace.model import ABSENT, TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace

LAYOUT = model_layout("tiny").with_(num_layers=32)
COSTS = StepCosts(base_us=1000)
SOURCE = StatedCosts(device="here", kernel="stated", blocks=dict.fromkeys((1, 2, 4, 8), COSTS))


def together(requests: int, prompt: int, output: int, gap_ms: int = 0) -> Trace:
    rows = [
        Row(request_id=f"r{k}", timestamp=k * gap_ms, input_length=prompt, output_length=output)
        for k in range(requests)
    ]
    return trace_of(rows, TraceSource("invented", "together"), block_size=0)


def cell(trace: Trace, blocks: int, *, size: int = 4, seats: int = 16, engine: str = "reference") -> Cell:
    return Cell(
        trace=TraceRef.of(trace),
        engine=engine,
        block_size=size,
        pool_bytes=blocks * LAYOUT.block_bytes(size),
        layout=LAYOUT,
        scheduler=SchedulerConfig(max_sequences=seats, max_step_tokens=4096),
    )


def stretch(trace: Trace, blocks: int, *, seats: int = 16, engine: str = "reference") -> Stretch:
    """Return all of a trace, on a pool of which tables take nothing."""
    return Stretch(trace, cell(trace, blocks, seats=seats, engine=engine), COSTS)


def test_a_burst_takes_a_block_a_sample() -> None:
    """Three requests of 6 + 4 tokens in blocks of 4: 2 blocks each, and 3 from the ninth token on.

    The pool of 14 is fullest when the ninth token is there: 9 blocks. So 5 are spare. A sample that forks
    then shares all nine tokens and diverges at the tenth, in the third block, which it copies: one token.
    """
    burst = largest_burst(stretch(together(3, 6, 4), 14))
    assert (burst.largest, burst.bound, burst.spare_blocks, burst.running) == (5, "blocks", 5, 3)
    assert burst.copied_tokens == 5


def test_the_driver_finds_the_same_burst_and_life() -> None:
    asked = stretch(together(48, 6, 8), 60, seats=64)
    compiled = largest_burst(asked), eventful(asked, 1)[0].cancel_at_us.tolist()
    stepped = replace(asked, cell=replace(asked.cell, core="step"))
    assert (largest_burst(stepped), eventful(stepped, 1)[0].cancel_at_us.tolist()) == compiled


def test_seats_bound_a_burst_too() -> None:
    burst = largest_burst(stretch(together(3, 6, 4), 40, seats=5))
    assert (burst.largest, burst.bound, burst.spare_blocks) == (2, "seats", 31)


def test_a_full_pool_bears_none() -> None:
    burst = largest_burst(stretch(together(3, 6, 4), 9))
    assert (burst.largest, burst.bound, burst.spare_blocks) == (0, "blocks", 0)


def test_where_nobody_decodes_there_is_nothing_to_fork() -> None:
    burst = largest_burst(stretch(together(2, 9, 0), 20))
    assert (burst.largest, burst.bound) == (0, "no sequence to fork")


def test_what_the_others_need_in_the_same_step_is_not_there_for_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked at a step that is not the fullest, of four requests with 16 tokens each, 4 full blocks of 22.

    6 are spare. In the next step each of the four takes a fifth block, and a sample a block of its own: two
    can. Were nobody asked whether a sequence gave way, six would seem to be borne.
    """
    trace = together(4, 6, 12)
    monkeypatch.setattr(Rows, "fullest", property(lambda _: 16 - 6))
    burst = largest_burst(stretch(trace, 22))
    assert (burst.spare_blocks, burst.largest, burst.bound) == (6, 2, "blocks")
    monkeypatch.setattr(bursts, "_DISTRESS", ())
    assert largest_burst(stretch(trace, 22)).largest == 6


def test_half_of_those_under_way_leave_at_the_fullest_step() -> None:
    """16 requests under way, one of them a parent drawn by the fork rule and one by the beam rule or none."""
    trace, leaving = eventful(stretch(together(16, 6, 8), 200, seats=64), seed=1)
    assert trace.rows_added == 1  # one of 16 forks; fewer than 24 are left for beams
    gone = np.flatnonzero(trace.cancel_at_us != ABSENT)
    assert len(gone) == leaving == round(17 / 2)
    assert len(set(trace.cancel_at_us[gone].tolist())) == 1


def test_a_sound_engine_survives() -> None:
    life = lived_through(stretch(together(48, 6, 8), 60, seats=64))
    assert life.broken is None
    assert life.requests == 48 + 3 + 3  # three forks; one of the 45 that are left goes on as four beams
    assert life.left_at_once > 0
    assert life.preempted > 0
    assert life.tokens_read > 48 * 6


@pytest.mark.parametrize(
    ("engine", "law"),
    [
        ("mutant:leak-on-cancel", "closure"),
        ("mutant:copy-skipped", "content"),
        ("mutant:fork-forgets-reference", "closure"),
    ],
)
def test_a_broken_engine_does_not(engine: str, law: str) -> None:
    life = lived_through(stretch(together(48, 6, 8), 60, seats=64, engine=engine))
    assert life.broken is not None
    assert life.broken.startswith(law)


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
    trial = trials(trace, measurement, SLO, 100)(unshared)
    assert (trial.burst, trial.sharing, trial.unfit) == (None, False, None)


def test_a_stretch_is_the_requests_around_the_fullest_step() -> None:
    """3,000 requests a millisecond apart that end at once, but for 40 around the 2,000th, which stay."""
    trace = together(3000, 6, 1, gap_ms=10)
    output = trace.output_tokens.copy()
    output[1990:2030] = 60
    trace = replace(trace, output_tokens=output)
    asked = cell(trace, 4000, seats=64)
    found = fullest_stretch(asked, trace, COSTS, clock_cell(asked, trace, COSTS))
    assert len(found.trace) == STRETCH_REQUESTS
    names = [int(name[1:]) for name in found.trace.request_ids]
    assert names[0] < 1990
    assert names[-1] > 2030
    assert names == list(range(names[0], names[0] + STRETCH_REQUESTS))
