"""A replay beside an engine in another process comes to what it comes to in this one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.registry import open_engine
from kvsuite.errors import EngineError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.replay.judged import judged_replay
from kvsuite.replay.scene import Scene
from kvsuite.replay.step_costs import StepCosts
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.hosted.engine import HostedEngine

SMALL = SchedulerConfig(max_sequences=12, max_step_tokens=96, lookahead_tokens=2)
ENGINES = (
    *("reference", "reference-eager", "reference-lookahead", "reference-window", "reference-groups"),
    *("reference-state", "reference-async", "reference-tiers", "reference-observed", "contiguous-exact"),
)


@pytest.mark.parametrize("read_all", [False, True], ids=["sampled", "read-all"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_comes_to_the_same(
    engine: str,
    read_all: bool,
    hosted: Callable[..., HostedEngine],
    config_for: Callable[..., Any],
    everything: Callable[..., Any],
) -> None:
    trace = synthetic("churn").head(16)
    config = config_for(trace, block_size=16, num_blocks=48)
    here = replay(trace, open_engine(engine, config), scheduler=SMALL, read_all=read_all)
    there = replay(trace, hosted(engine, config), scheduler=SMALL, read_all=read_all)
    assert len(here.timeline.steps) > 50
    assert everything(there) == everything(here)


@pytest.mark.parametrize(
    ("workload", "requests", "column"),
    [
        ("divergence-burst", 60, "copied"),
        ("cancel-burst", 60, "cancelled"),
        ("thrash", 16, "preempted"),
        ("shared-prefix", 60, "hit"),
    ],
)
def test_every_kind_of_life_comes_to_the_same(
    workload: str,
    requests: int,
    column: str,
    hosted: Callable[..., HostedEngine],
    config_for: Callable[..., Any],
    everything: Callable[..., Any],
) -> None:
    trace = synthetic(workload).head(requests)
    config = config_for(trace, block_size=16, num_blocks=96)
    calls: dict[str, list[tuple[int, int]]] = {"here": [], "there": []}
    here = replay(
        trace, open_engine("reference", config), progress=lambda *ended: calls["here"].append(ended)
    )
    there = replay(trace, hosted("reference", config), progress=lambda *ended: calls["there"].append(ended))
    assert here.timeline.pools[0].total(column) > 0
    assert everything(there) == everything(here)
    assert calls["there"] == calls["here"]


@pytest.mark.parametrize("engine", ["reference", "reference-groups", "reference-tiers", "contiguous-exact"])
def test_steps_that_last_as_long_as_what_they_do(
    engine: str,
    hosted: Callable[..., HostedEngine],
    config_for: Callable[..., Any],
    everything: Callable[..., Any],
) -> None:
    trace = synthetic("churn").head(16)
    config = config_for(trace, block_size=16, num_blocks=48)
    costs = StepCosts(1000.0, 100.0, 0.5, 3.0, 0.25, 7.0, 11.0)
    scheduler = replace(SMALL, costs=costs)
    here = replay(trace, open_engine(engine, config), scheduler=scheduler)
    there = replay(trace, hosted(engine, config), scheduler=scheduler)
    assert here.clock is not None
    assert len(here.clock.step_end_us) == len(here.timeline.steps)
    assert everything(there) == everything(here)


@pytest.mark.parametrize(
    ("mutant", "workload", "law"),
    [("copy-skipped", "divergence-burst", "content"), ("leak-on-cancel", "cancel-burst", "drain")],
)
def test_a_mutant_dies_of_the_same_law(
    mutant: str,
    workload: str,
    law: str,
    hosted: Callable[..., HostedEngine],
    config_for: Callable[..., Any],
    everything: Callable[..., Any],
) -> None:
    trace = synthetic(workload).head(60)
    config = config_for(trace, block_size=16, num_blocks=100)
    here = replay(trace, open_engine(f"mutant:{mutant}", config), read_all=True)
    there = replay(trace, hosted(f"mutant:{mutant}", config), read_all=True)
    assert law in {violation.invariant for violation in here.violations}
    assert everything(there) == everything(here)


def test_a_judged_replay_goes_verb_by_verb(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any], everything: Callable[..., Any]
) -> None:
    trace = synthetic("boundary").head(12)
    config = config_for(trace, block_size=16, num_blocks=24)
    here = judged_replay(trace, open_engine("reference", config))
    there = judged_replay(trace, hosted("reference", config))
    assert everything(there) == everything(here)


def test_a_scene_is_played_verb_by_verb(hosted: Callable[..., HostedEngine]) -> None:
    scene = Scene(hosted("reference"))
    assert scene.admit("a", 17).accepted
    scene.step()
    assert scene.fork("a", "b")
    assert scene.extend("a")
    assert scene.extend("b")
    scene.step()
    scene.drain()
    scene.judge()
    assert [int(len(pool.free) + len(pool.cached)) for pool in scene.engine.snapshot()] == [64]


def test_transfers_of_a_scene_end_in_the_host(hosted: Callable[..., HostedEngine]) -> None:
    scene = Scene(hosted("reference-tiers"))
    assert scene.admit("a", 9).accepted
    scene.step()
    scene.release("a")
    scene.step()
    scene.tick(10**6)
    scene.cancel("nobody")
    scene.drain()
    scene.judge()


def test_answers_in_numpy_arrive_as_they_are(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any], everything: Callable[..., Any]
) -> None:
    trace = synthetic("boundary").head(10)
    config = config_for(trace, block_size=16)
    there = replay(trace, hosted("AnswersInNumPy", config))
    assert everything(there) == everything(replay(trace, open_engine("reference", config)))


def test_what_was_broken_before_a_failure_is_told_with_it(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any]
) -> None:
    """A fork that is granted and not made: the child is shown with no tokens, and settling it fails."""
    trace = synthetic("divergence-burst").head(20)
    engine = hosted("ForksWithoutTable", config_for(trace, block_size=16))
    with pytest.raises(EngineError, match=r"live.*(?s:.*)broken before that: lengths at step"):
        replay(trace, engine, read_all=True)


def test_a_replay_that_is_given_up_leaves_the_process_ready(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any], everything: Callable[..., Any]
) -> None:
    trace = synthetic("churn").head(200)
    config = config_for(trace, block_size=16, num_blocks=200)
    engine = hosted("reference", config)
    parts = engine.replay_parts(trace, SchedulerConfig(), read_all=True)
    assert next(parts)[0] == "Opening"
    assert next(parts)[0] == "Frame"
    with pytest.raises(EngineError, match="a replay in the same process is under way"):
        engine.snapshot()
    parts.close()
    (pool,) = engine.snapshot()
    assert len(pool.free) < 200
    fresh = hosted("reference", config)
    assert fresh.host is engine.host
    assert everything(replay(trace, fresh)) == everything(replay(trace, open_engine("reference", config)))
