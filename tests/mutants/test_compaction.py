"""The compacting engine is sound as long as it may move what it must: only its limits are faults."""

from __future__ import annotations

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability
from kvsuite.mutants.frag import CompactingEngine, CompactionStopsEarly
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene
from kvsuite.trace.load import load_trace


def scene(kind: type[CompactingEngine], slots: int = 8) -> Scene:
    return Scene(kind(EngineConfig(model_layout("tiny"), block_size=1, num_blocks=slots)))


def test_every_hole_can_be_gathered() -> None:
    """Slots of a, c, e, g come free; b, d, f, h are moved together, and i takes what follows."""
    played = scene(CompactingEngine)
    for name in "abcdefgh":
        played.admit(name, 1)
    played.step()
    for name in "aceg":
        played.release(name)
    assert played.admit("i", 4).accepted
    played.step()
    assert [played.table(name).tolist() for name in "bdfhi"] == [[0], [1], [2], [3], [4, 5, 6, 7]]
    played.drain()
    played.judge()


def test_a_run_grows_between_neighbours() -> None:
    """b has no room behind it: a and b go down, c goes up, and b takes what lies between."""
    played = scene(CompactingEngine)
    for name, tokens in (("x", 2), ("a", 1), ("b", 2), ("c", 2)):
        played.admit(name, tokens)
    played.step()
    played.release("x")
    assert played.extend("b", 2)
    played.step()
    assert [played.table(name).tolist() for name in "abc"] == [[0], [1, 2, 3, 4], [6, 7]]
    assert not played.extend("b", 2)
    played.drain()
    played.judge()


@pytest.mark.parametrize(("kind", "sound"), [(CompactingEngine, True), (CompactionStopsEarly, False)])
def test_only_the_limited_one_refuses_scattered_slots(kind: type[CompactingEngine], sound: bool) -> None:
    played = scene(kind)
    for name in "abcdefgh":
        played.admit(name, 1)
    played.step()
    for name in "bdfh":
        played.release(name)
    assert played.admit("i", 4).accepted == sound


@pytest.mark.parametrize("workload", ["thrash", "churn", "cancel-burst"])
def test_tokens_survive_their_moves(workload: str) -> None:
    trace = load_trace(workload).head(30)
    engine = CompactingEngine(EngineConfig(model_layout("tiny"), block_size=1, num_blocks=1200))
    assert engine.spec.claims(Capability.PAGED)
    done = replay(trace, engine, scheduler=SchedulerConfig(64), read_all=True)
    assert done.violations == ()
    assert done.timeline.pools[0].total("copied") > 0
