"""The model beside an engine: silent on clean engines, and it names what no law of a snapshot can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.driver import Outcome, replay
from kvsuite.replay.endings import endings, pressure_without_cause
from kvsuite.replay.judged import JudgedEngine, judged_replay
from kvsuite.replay.model import LifecycleModel
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ForkKind, RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.trace.model import Trace

    MakeEngine = Callable[..., Engine]
    MakeTrace = Callable[..., Trace]

A, B, C = (RequestId(name) for name in "abc")


@pytest.fixture
def model(make_engine: MakeEngine) -> LifecycleModel:
    return LifecycleModel(make_engine(block_size=4).spec)


def run(tokens: int, *, key: int = 1, after: int | None = None) -> TokenRun:
    """Return a prompt that is key 1's up to ``after``, and another's from there on."""
    content = TokenContent((1,), ())
    return TokenRun(content if after is None else content.forked(after, key), 0, tokens)


def test_what_can_be_found_was_settled_and_leaves_a_token(model: LifecycleModel) -> None:
    model.admit(A, run(10), 10)
    assert model.longest_hit(run(10)) == 0  # allocated, and not computed yet
    model.settle(A, 6)
    assert model.longest_hit(run(10)) == 4
    model.settle(A, 10)
    assert [model.longest_hit(run(tokens)) for tokens in (4, 5, 8, 9, 40)] == [0, 4, 4, 8, 8]
    assert model.longest_hit(run(12, key=2, after=6)) == 4
    model.release(A)
    assert model.longest_hit(run(10)) == 8
    model.reset()
    assert model.longest_hit(run(10)) == 0


def test_how_many_blocks_contents_need(model: LifecycleModel) -> None:
    """Three share 6 tokens, then two write: block 0 is one content, the tails become three."""
    model.admit(A, run(6), 6)
    model.fork(A, B)
    model.fork(A, C)
    assert (model.distinct_contents(4), model.table_entries(4)) == (2, 6)
    model.extend(A, TokenRun(TokenContent((1,), ()), 6, 7))
    model.extend(B, TokenRun(TokenContent((1,), ()).forked(6, 2), 6, 7))
    assert (model.distinct_contents(4), model.table_entries(4)) == (4, 6)


def test_promises_are_made_to_prompts_under_way_only(model: LifecycleModel) -> None:
    model.admit(A, run(10), 4)
    assert model.prefilling()
    model.extend(A, TokenRun(run(10).content, 4, 10))
    assert not model.prefilling()


@pytest.mark.parametrize("workload", ["boundary", "divergence-burst", "thrash", "cancel-burst"])
def test_clean_engines_are_silent(workload: str, make_engine: MakeEngine) -> None:
    trace = load_trace(workload).head(16)
    for name in ("reference", "contiguous-pow2"):
        engine = make_engine(name, block_size=16, num_blocks=48)
        assert judged_replay(trace, engine, scheduler=SchedulerConfig(16, 64)).violations == ()


SHORT_AND_LONG = [{"prompt_tokens": 4 - answers, "output_tokens": answers} for answers in (1, 3)]
CHILD = {"prompt_tokens": 5, "output_tokens": 2, "parent": 0, "fork_kind": ForkKind.SAMPLE, "fork_at": 5}
BROKEN: dict[str, tuple[list[dict[str, Any]], int, str]] = {
    "writes-shared-block": ([{"prompt_tokens": 5, "output_tokens": 2}, CHILD], 8, "blocks"),
    "surplus-at-boundary": ([{"prompt_tokens": 4, "output_tokens": 1}], 8, "blocks"),
    "publish-on-allocation": (
        [{"nodes": [0, 1], "prompt_tokens": 8}, {"nodes": [0, 1, 2], "prompt_tokens": 9}],
        16,
        "hits",
    ),
    "first-chunk-admission": (
        [{"prompt_tokens": 12, "output_tokens": 4}, {"prompt_tokens": 80}],
        22,
        "promise",
    ),
    "paged-needs-a-run": (
        [*SHORT_AND_LONG * 3, {"prompt_tokens": 8, "arrival_us": 100_000}],
        6,
        "contiguity",
    ),
    "growth-refused-for-good": ([{"prompt_tokens": 7, "output_tokens": 6}] * 3, 6, "contiguity"),
}
"""Traces in pools of so many blocks, and what the model says of the engine."""


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_engines_are_named(fault: str, make_engine: MakeEngine, make_trace: MakeTrace) -> None:
    rows, num_blocks, invariant = BROKEN[fault]
    broken, clean = (
        JudgedEngine(make_engine(name, num_blocks=num_blocks, prefix_cache="publish" in fault))
        for name in (f"mutant:{fault}", "reference")
    )
    for engine in (broken, clean):
        replay(make_trace(*rows, block_size=4), engine, scheduler=SchedulerConfig(6, 32), read_all=True)
    assert invariant in {violation.invariant for violation in broken.violations}
    assert clean.violations == []


class TestEndings:
    def test_what_must_finish_has_all_its_answers(
        self, make_engine: MakeEngine, make_trace: MakeTrace
    ) -> None:
        trace = make_trace(
            {"prompt_tokens": 5, "output_tokens": 3},
            {"prompt_tokens": 5, "output_tokens": 3, "cancel_after": 1},
            {"prompt_tokens": 64, "output_tokens": 1},
        )
        done = replay(trace, make_engine(num_blocks=16))
        assert not list(endings(trace, done))
        for index, ending, generated in (
            (0, Ending.CANCELLED, 3),
            (0, Ending.FINISHED, 2),
            (1, Ending.FINISHED, 3),
            (1, Ending.CANCELLED, 2),
            (2, Ending.FINISHED, 1),
            (0, None, 0),
        ):
            (found,) = endings(trace, with_outcome(done, index, ending, generated))
            assert found.invariant == "endings"
            assert found.message.startswith(f"r{index} ")

    def test_a_contiguous_pool_may_reject_what_its_holes_are_too_short_for(
        self, make_engine: MakeEngine, make_trace: MakeTrace
    ) -> None:
        trace = make_trace({"prompt_tokens": 5, "output_tokens": 3})
        done = replay(trace, make_engine("contiguous-pow2"))
        assert not list(endings(trace, with_outcome(done, 0, Ending.REJECTED, 0)))

    def test_nobody_is_refused_where_there_is_room_for_all(
        self, make_engine: MakeEngine, make_trace: MakeTrace
    ) -> None:
        """Two requests of 3 blocks: 6 hold both at once, and 5 may refuse."""
        trace = make_trace(*[{"prompt_tokens": 8, "output_tokens": 4}] * 2)
        done = replay(trace, make_engine(num_blocks=6))
        assert not list(pressure_without_cause(trace, done))
        done.timeline.pools[0].column("preempted")[0] = 1
        (found,) = pressure_without_cause(trace, done)
        assert "0 refused_admissions, 0 refused_growths, 1 preempted" in found.message
        tight = replay(trace, make_engine(num_blocks=5))
        assert tight.timeline.pools[0].total("preempted") > 0
        assert not list(pressure_without_cause(trace, tight))


def with_outcome(done: Any, index: int, ending: Ending | None, generated: int) -> Any:
    """Return a replay in which one request ended otherwise."""
    from dataclasses import replace

    outcomes: list[Outcome] = list(done.outcomes)
    outcomes[index] = replace(outcomes[index], ending=ending, generated_tokens=generated)
    return replace(done, outcomes=tuple(outcomes))
