"""Contiguous controls on the clock, and what becomes of them in a decision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")

from kvsuite.cache.layout import model_layout
from kvsuite.ledger.summary import summary_of
from kvsuite.replay.compiled.replay import CompiledReplay
from kvsuite.replay.driver import Replay
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.cells import CLOCKED_CONTROLS, Cell
from kvsuite.sweep.clock import FEATURES, StepCosts
from kvsuite.sweep.measure import clock_cell
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from tests.sweep.burst_clock import burst
from tests.sweep.decisions import DEEP, SIZES, judged, measured, plan, stated

if TYPE_CHECKING:
    from kvsuite.sweep.cells import Core
    from kvsuite.sweep.clock import ClockedReplay
    from kvsuite.trace.model import Trace

ONE, MAX = "contiguous-one-block", "contiguous-max"
COSTS = StepCosts(
    base_us=100, sequence_us=10, context_token_us=1, prefill_token_us=2, prefill_pair_us=3
)  # fmt: skip
FLAT = StepCosts(base_us=1000)
AMPLE = Slo(10**6, 10**6)


def requests(*rows: dict[str, Any]) -> Trace:
    given = [Row(request_id=f"r{k}", **{"timestamp": 0, **row}) for k, row in enumerate(rows)]
    return trace_of(given, TraceSource("test", "by hand"), block_size=0)


def cell(trace: Trace, engine: str, slots: int, core: Core = "auto", **more: Any) -> Cell:
    """Return a control on so many slots, for four sequences and four tokens a step."""
    layout = model_layout("tiny")
    return Cell(
        trace=TraceRef.of(trace),
        engine=engine,
        block_size=1,
        pool_bytes=slots * layout.bytes_per_token,
        layout=layout,
        core=core,
        **{"scheduler": SchedulerConfig(max_sequences=4, max_step_tokens=4), "prefix_cache": False, **more},
    )


def clocked(cell: Cell, costs: StepCosts = COSTS) -> ClockedReplay:
    return clock_cell(cell, cell.trace.open(), costs)


def drawn_trace() -> Trace:
    """60 requests of 1 to 120 tokens and answers of 0 to 40, a few milliseconds apart."""
    chance = np.random.default_rng(7)
    at = np.cumsum(chance.integers(0, 9, 60)).tolist()
    prompts, answers = chance.integers(1, 121, 60).tolist(), chance.integers(0, 41, 60).tolist()
    rows = zip(at, prompts, answers, strict=True)
    return requests(*({"timestamp": t, "input_length": p, "output_length": o} for t, p, o in rows))


@pytest.mark.parametrize(
    ("engine", "core", "table"), [(ONE, "compiled", 1), (ONE, "step", 1), (MAX, "auto", 9)]
)
def test_one_reservation_lets_the_second_wait(engine: str, core: Core, table: int) -> None:
    """6 + 3 and 2 + 1 tokens at once, 4 a step, on 12 slots: room for one reservation of 9.

    step  does                    lasts                                   ends
    0     0 at positions 0..4     100 + 4*2 + (1+2+3+4)*3 = 138            138
    1     0 at 4..6               100 + 2*2 + (5+6)*3     = 137            275
    2..4  0 at length 7, 8, 9     100 + 10 + 7, 8, 9      = 117, 118, 119  392, 510, 629
    5     1 at 0..2               100 + 2*2 + (1+2)*3     = 113            742
    6     1 at length 3           100 + 10 + 3            = 113            855

    Tables list one block of nine slots, or nine slots, and cost nothing.
    """
    trace = requests({"input_length": 6, "output_length": 3}, {"input_length": 2, "output_length": 1})
    done = clocked(cell(trace, engine, 12, core))
    np.testing.assert_array_equal(done.step_end_us, [138, 275, 392, 510, 629, 742, 855])
    np.testing.assert_array_equal(done.times.ttft_us, [392, 855])
    np.testing.assert_array_equal(done.times.itl_p99_us, [119, np.nan])
    assert done.features[:, FEATURES.index("table_entries")].tolist() == [table] * 7


def test_one_block_each_is_the_reservation_of_the_maximum_on_the_clock_too() -> None:
    """Room for three reservations and a slot; costs whose sums are rounded, and tables that cost nothing."""
    trace = drawn_trace()
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    costs = StepCosts(100.1, 33.3, 0.07, 1.7, 0.003)
    both = [
        clocked(replace(cell(trace, engine, 3 * longest + 1), scheduler=SchedulerConfig(8, 64)), costs)
        for engine in (ONE, MAX)
    ]
    one, most = both
    assert isinstance(one.replay, CompiledReplay)
    assert isinstance(most.replay, Replay)
    np.testing.assert_array_equal(one.step_end_us, most.step_end_us)
    np.testing.assert_array_equal(one.running, most.running)
    for name in ("arrival_us", "ttft_us", "itl_p99_us", "output_tokens", "ending"):
        np.testing.assert_array_equal(getattr(one.times, name), getattr(most.times, name))
    there = summary_of(most.replay.timeline.pools[0], most.replay.timeline.steps)
    for column in ("payload", "admitted", "finished", "written", "refused_admissions"):
        assert one.replay.summary.total(column) == there.total(column)
    assert there.total("refused_admissions") > 0
    assert one.replay.summary.total("slack") == there.total("over_reserved") > 0


@pytest.mark.parametrize("engine", [ONE, "reference"])
def test_driver_and_compiled_core_come_to_the_same_bits(engine: str) -> None:
    """Room for three sequences of the longest, in blocks of 8 where there are any."""
    trace, costs = drawn_trace(), StepCosts(100.1, 33.3, 0.07, 1.7, 0.003)
    asked = replace(
        cell(trace, engine, 3 * 160, scheduler=SchedulerConfig(8, 64)),
        block_size=1 if engine == ONE else 8,
    )
    compiled, stepped = (clocked(replace(asked, core=core), costs) for core in ("compiled", "step"))
    assert isinstance(compiled.replay, CompiledReplay)
    assert isinstance(stepped.replay, Replay)
    assert compiled.replay.spec == stepped.replay.spec
    assert stepped.replay.spec.name == engine
    np.testing.assert_array_equal(compiled.step_end_us, stepped.step_end_us)
    np.testing.assert_array_equal(compiled.features, stepped.features)
    for name in ("ttft_us", "itl_p99_us", "output_tokens", "ending"):
        np.testing.assert_array_equal(getattr(compiled.times, name), getattr(stepped.times, name))


def test_a_trace_is_converted_once_and_another_one_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsuite.replay.compiled import replay as compiled
    from kvsuite.replay.compiled.requests import requests_of

    asked = cell(drawn_trace(), ONE, 3 * 160)
    trace = asked.trace.open()
    converted: list[int] = []

    def counted(trace: Trace, step_us: int) -> object:
        converted.append(len(trace))
        return requests_of(trace, step_us)

    monkeypatch.setattr(compiled, "requests_of", counted)
    assert len(clock_cell(asked, trace, COSTS).times.ttft_us) == 60
    assert converted == []
    assert len(clock_cell(asked, trace.head(5), COSTS).times.ttft_us) == 5
    assert converted == [5]


def test_a_control_that_wins_memory_and_serves_as_many_is_inspected() -> None:
    """8 sequences of 95 to 100 tokens, 1 ms a step and 10 us an entry; without a table 0.5 ms.

    Reservations of 100 leave 5, 4, 3, 2, 1, 0 slots of a sequence empty: 8 * 15 / 6 of 4,000. The step is
    half a millisecond where blocks have 1 ms + 8 * 10 us an entry of a table.
    """
    trace = burst(8, prompt=95, output=5)
    swept = plan(trace, 4000, layout=DEEP, controls=CLOCKED_CONTROLS)
    source = stated(StepCosts(base_us=1000, table_entry_us=10.0), control=StepCosts(base_us=500))
    slo = Slo(ttft_us=10**6, itl_us=4000)
    done = judged(swept, source, slo, clock=clock_cell)
    line = done.line(trace="t", engine="reference")
    row = line.rows[-1]
    assert (row.option, row.control, row.verdict, row.cause) == (ONE, True, "inspect", "dominated")
    assert (row.step_us, row.table_depth, row.table_bytes, row.table_share) == (500, 0, 0, 0)
    assert row.pool_blocks == 4000
    assert row.slack_share == pytest.approx(8 * 15 / 6 / 4000)
    assert [phase.qualified_tokens for phase in row.phases] == [[0] * 3, [40] * 3]
    assert (line.shipped, line.tied) == ("block 8", ["block 4", "block 8", "block 16"])
    assert line.step_slope_us == pytest.approx(80)
    assert line.step_rho == 1.0
    alone = judged(plan(trace, 4000, layout=DEEP, controls=()), source, slo, clock=clock_cell)
    assert alone.line(trace="t", engine="reference").rows == line.rows[:-1]


def mixed() -> Trace:
    """Eight requests of 17 + 3 tokens and one of 197 + 3, all at once."""
    short, long = {"input_length": 17, "output_length": 3}, {"input_length": 197, "output_length": 3}
    return requests(*[short] * 8, long)


def test_a_control_that_over_reserves_is_rejected_for_slack() -> None:
    """1,100 slots hold five reservations of 200, and 100 slots more. Steps of 1 ms: the first five have their
    first token after two, the four that wait for them after six, beyond 5 ms. In blocks all nine run at once.
    """
    source = stated(StepCosts(base_us=1000, table_entry_us=5.0), control=FLAT)
    swept = plan(mixed(), 1100, controls=(ONE, MAX))
    done = judged(swept, source, Slo(ttft_us=5000, itl_us=10_000), clock=clock_cell)
    assert done.decision.result == "ship"
    assert done.decision.shipped is not None
    assert done.decision.shipped.qualified_tokens == (27,) * 3
    for control in (ONE, MAX):
        ruling = done.decision.ruling(control)
        assert ruling.option.qualified_tokens == (15,) * 3
        assert (ruling.verdict, ruling.cause) == ("reject", "slack")
    one, most = (done.decision.ruling(control).option for control in (ONE, MAX))
    assert one.slack_share == most.slack_share > 0.5
    assert one.step_us == most.step_us == (1000,) * 3


def test_a_control_that_finds_no_room_for_one_reservation_is_refused() -> None:
    done = judged(plan(mixed(), 199, controls=(ONE,)), stated(FLAT, control=FLAT), AMPLE, clock=clock_cell)
    row = done.line(trace="t", engine="reference").rows[-1]
    assert (row.verdict, row.cause) == ("reject", "refusal")
    assert row.signal.startswith(f"refused: {ONE}: a pool of 199 slots does not hold one reservation of 200")


def test_neither_the_cold_phase_nor_the_load_is_up_to_a_control() -> None:
    """40 requests of four steps, one a step of 1 ms, each 17 + 3 tokens but for the last of 200.

    In blocks four run at a time, in a pool that is never full: cold ends when a twentieth has come, at 2 ms.
    The control has room for one reservation, so that its pool is full after 1 ms, and runs one at a time.
    """
    rows = [{"timestamp": k, "input_length": 17, "output_length": 3} for k in range(40)]
    trace = requests(*rows[:-1], {**rows[-1], "input_length": 197})
    source = stated(FLAT, control=FLAT)
    with_control, without = (
        measured(plan(trace, 399, sizes=(4,), controls=controls), source, AMPLE, clock=clock_cell)
        for controls in ((ONE,), ())
    )
    assert with_control.cold_until_us == without.cold_until_us == 2000
    assert with_control.load == without.load
    assert with_control.load.sequences == 4
    control = with_control.options[-1]
    assert round(control.mean("running")) == 1
    assert [control.cold[0].requests, control.steady[0].requests] == [2, 38]


def test_a_control_that_serves_where_no_size_does_makes_nothing_ship() -> None:
    source = stated(StepCosts(base_us=10_000), control=FLAT)
    swept = plan(burst(4, prompt=9, output=3), 400, controls=(ONE,))
    done = judged(swept, source, Slo(5000, 5000), clock=clock_cell)
    line = done.line(trace="t", engine="reference")
    assert (line.result, line.shipped, done.exit_code) == ("SLO unreachable on this device", None, 4)
    assert "no block size qualifies a token" in line.sentence
    assert (line.rows[-1].verdict, line.rows[-1].cause) == ("inspect", "dominated")
    assert sum(line.rows[-1].phases[1].qualified_tokens) == 36


def test_a_control_is_no_fifth_size() -> None:
    swept = plan(burst(4, prompt=9, output=3), 400, sizes=SIZES[:4], controls=(ONE,))
    done = judged(swept, stated(FLAT, control=FLAT), AMPLE, clock=clock_cell)
    assert done.decision.result == "no verdict"
    assert "No verdict: 4 block sizes ran, expected 5" in done.line(trace="t", engine="reference").sentence


def test_repeats_of_a_control_are_draws_of_its_own() -> None:
    source = stated(FLAT, spread=0.1, control=FLAT)
    run = measured(plan(burst(4, prompt=9, output=3), 400, controls=(ONE,)), source, AMPLE, clock=clock_cell)
    control = run.options[-1]
    assert control.step_us == [source.draw_control(k).base_us for k in range(3)]
    assert control.step_us[0] == 1000
    assert len({*control.step_us, *(source.draw(size, k).base_us for size in SIZES for k in (1, 2))}) == 13
