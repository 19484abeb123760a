"""On a clock of costs the compiled core comes to the driver's rows, and to its times bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cases.conformance.test_lifecycles import Lifecycle, lifecycles
from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.compiled import ends
from kvsuite.replay.compiled import replay as compiled
from kvsuite.replay.driver import replay
from kvsuite.replay.step_costs import FEATURES, StepCosts
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ABSENT, ForkKind, Trace
from kvsuite.trace.synthetic import workload_names

if TYPE_CHECKING:
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.compiled.state import Int64Array, State
    from kvsuite.replay.driver import Replay
    from kvsuite.replay.step_clock import ClockLog

HoldAgainst = Callable[[Trace, EngineConfig, SchedulerConfig], None]

SLOW_LIFECYCLES = 1000
STEP_US = 50_000
LAYOUT = model_layout("tiny")
SPEC = ReferenceEngine(EngineConfig(LAYOUT, 4, 64)).spec
COSTS = StepCosts(1234.5, 67.8, 0.09, 1.1, 0.0123, 4.56, 7.89)
NARROW = SchedulerConfig(max_sequences=7, max_step_tokens=64, costs=COSTS)
MS = st.floats(0, 1e5) | st.integers(0, 3).map(lambda k: k * 25_000.0)
SMALL = st.just(0.0) | st.floats(0, 5e3)


@st.composite
def times(draw: st.DrawFn, trace: Trace) -> Trace:
    """Let some clients that do not go after so many answers go at a time, inside a step or between two."""
    count = len(trace)
    free = trace.cancel_after == ABSENT
    at = np.array(draw(st.lists(st.just(ABSENT) | st.integers(0, 40), min_size=count, max_size=count)))
    cancel_at_us = np.where(free & (at != ABSENT), trace.arrival_us + 12_500 * at, ABSENT)
    return replace(trace, cancel_at_us=cancel_at_us)


@st.composite
def clocked(draw: st.DrawFn) -> Lifecycle:
    """Draw a lifecycle with costs, such that many a step begins just when somebody arrives."""
    lifecycle = draw(lifecycles(SPEC))
    costs = StepCosts(draw(MS), *(draw(SMALL) for _ in FEATURES[1:]))
    scheduler = replace(lifecycle.scheduler, costs=costs)
    return replace(lifecycle, trace=draw(times(lifecycle.trace)), scheduler=scheduler)


def engine_of(lifecycle: Lifecycle) -> EngineConfig:
    return EngineConfig(
        LAYOUT, lifecycle.block_size, lifecycle.num_blocks, prefix_cache=lifecycle.prefix_cache
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=clocked())
def test_any_lifecycle(drawn: Lifecycle, hold_against_the_driver: HoldAgainst) -> None:
    hold_against_the_driver(drawn.trace, engine_of(drawn), drawn.scheduler)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=clocked())
def test_clients_that_go_at_a_time_on_steps_of_one_length(
    drawn: Lifecycle, hold_against_the_driver: HoldAgainst
) -> None:
    hold_against_the_driver(drawn.trace, engine_of(drawn), replace(drawn.scheduler, costs=None))


@pytest.mark.slow
@settings(
    max_examples=SLOW_LIFECYCLES,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=clocked())
def test_a_thousand_lifecycles(drawn: Lifecycle, hold_against_the_driver: HoldAgainst) -> None:
    hold_against_the_driver(drawn.trace, engine_of(drawn), drawn.scheduler)


def tight(trace: Trace) -> EngineConfig:
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    return EngineConfig(LAYOUT, 8, -(-longest // 8) + 5)


@pytest.mark.parametrize("name", workload_names())
def test_every_workload(name: str, hold_against_the_driver: HoldAgainst) -> None:
    trace = load_trace(name).head(40)
    hold_against_the_driver(trace, tight(trace), NARROW)


@settings(max_examples=50, deadline=None)
@given(drawn=clocked())
def test_each_feature_is_what_the_ledger_says_of_it(drawn: Lifecycle) -> None:
    done, log = driven(drawn)
    ledger = {name: done.timeline.pools[0].column(name) for name in ("table_entries", "written", "running")}
    blocks = done.timeline.pools[0].column("allocated") + done.timeline.pools[0].column("freed")
    features = dict(zip(FEATURES, log.features.T, strict=True))
    assert features["table_entries"].tolist() == ledger["table_entries"].tolist()
    assert features["blocks"].tolist() == blocks.tolist()
    assert (features["sequences"] + features["prefill_tokens"]).tolist() == ledger["written"].tolist()
    assert log.running.tolist() == ledger["running"].tolist()
    assert done.timeline.steps.tolist() == list(range(len(log.step_end_us)))


@settings(max_examples=50, deadline=None)
@given(drawn=clocked())
def test_every_token_of_an_answer_is_written_once(drawn: Lifecycle) -> None:
    done, log = driven(drawn)
    trace = drawn.trace
    request, first, last = log.token_spans.T
    tokens = np.bincount(request, last - first + 1, len(trace)).astype(int)
    shared = (trace.parent != ABSENT) & (trace.fork_kind != ForkKind.SPAWN)
    taken_over = np.where(shared, trace.fork_at - trace.prompt_tokens, 0)
    for index, outcome in enumerate(done.outcomes):
        if outcome.ending is Ending.FINISHED:
            assert tokens[index] == trace.output_tokens[index] - taken_over[index]
        if outcome.ending in (Ending.REJECTED, Ending.ORPHANED, Ending.FORK_DENIED):
            assert tokens[index] == 0


@settings(max_examples=50, deadline=None)
@given(drawn=lifecycles(SPEC))
def test_steps_that_all_last_as_long_are_steps_of_one_length(drawn: Lifecycle) -> None:
    config = engine_of(drawn)
    fixed = replay(drawn.trace, ReferenceEngine(config), scheduler=drawn.scheduler)
    costs = StepCosts(base_us=STEP_US)
    done, log = driven(replace(drawn, scheduler=replace(drawn.scheduler, costs=costs)))
    np.testing.assert_array_equal(done.timeline.pools[0].rows, fixed.timeline.pools[0].rows)
    assert log.step_end_us.tolist() == ((fixed.timeline.steps + 1) * float(STEP_US)).tolist()
    steps = [*fixed.timeline.steps.tolist(), None]
    for now, before in zip(done.outcomes, fixed.outcomes, strict=True):
        assert now.ending == before.ending
        assert steps[-1 if now.ended_step is None else now.ended_step] == before.ended_step
        assert steps[-1 if now.first_token_step is None else now.first_token_step] == before.first_token_step


@pytest.mark.parametrize("left_out", range(len(FEATURES)), ids=FEATURES)
def test_a_core_that_leaves_a_feature_out_is_told(
    left_out: int, monkeypatch: pytest.MonkeyPatch, hold_against_the_driver: HoldAgainst
) -> None:
    opened = compiled.open_compiled

    def forgets(asked: Requests, spec: EngineSpec, scheduler: SchedulerConfig) -> State:
        state = opened(asked, spec, scheduler)
        state.costs[left_out] = 0.0
        return state

    monkeypatch.setattr(compiled, "open_compiled", forgets)
    trace = load_trace("thrash").head(8)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        hold_against_the_driver(trace, tight(trace), NARROW)


def test_a_core_that_forgets_a_lapsed_token_is_told(
    monkeypatch: pytest.MonkeyPatch, hold_against_the_driver: HoldAgainst
) -> None:
    spans = ends._token_spans

    def forgets(noted: Int64Array) -> Int64Array:
        return spans(noted * np.array([1, 1, 1, 0]))

    trace = load_trace("divergence-burst").head(60)
    scheduler = SchedulerConfig(max_sequences=16, max_step_tokens=24, costs=COSTS)
    hold_against_the_driver(trace, tight(trace), scheduler)
    monkeypatch.setattr(ends, "_token_spans", forgets)
    with pytest.raises(AssertionError):
        hold_against_the_driver(trace, tight(trace), scheduler)


@pytest.mark.slow
@pytest.mark.parametrize("relative", ["azure/AzureLLMInferenceTrace_conv.csv"], ids=["azure"])
def test_a_real_trace(
    relative: str, real_trace: Callable[[str], object], hold_against_the_driver: HoldAgainst
) -> None:
    trace = load_trace(str(real_trace(relative))).head(1000)
    config = EngineConfig(LAYOUT, 16, 2**14 // 16)
    hold_against_the_driver(
        trace, config, SchedulerConfig(costs=StepCosts(20_000, 50, 0.05, 20, 0.001, 0.1, 1))
    )


def driven(drawn: Lifecycle) -> tuple[Replay, ClockLog]:
    done = replay(drawn.trace, ReferenceEngine(engine_of(drawn)), scheduler=drawn.scheduler)
    assert done.clock is not None
    return done, done.clock
