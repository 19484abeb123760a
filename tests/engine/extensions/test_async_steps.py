"""The asynchronous engine: blocks wait for the steps that were in flight when their sequence left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Engine, Release
from kvsuite.engine.extensions.async_steps import AsyncEngine
from kvsuite.errors import BlockError
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene
from kvsuite.trace.load import load_trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot

A, B, C = (RequestId(name) for name in "abc")


def engine_of(num_blocks: int = 8, block_size: int = 4) -> AsyncEngine:
    return AsyncEngine(EngineConfig(model_layout("tiny"), block_size, num_blocks))


def admit(engine: AsyncEngine, request_id: RequestId, tokens: int, key: int = 0) -> bool:
    run = TokenRun(TokenContent((key,), ()), 0, tokens)
    return engine.admit(request_id, run, first_chunk_tokens=tokens).accepted


def shot(engine: AsyncEngine) -> PoolSnapshot:
    return engine.snapshot()[0]


def test_it_claims_one_capability_more_than_the_reference() -> None:
    engine = engine_of()
    assert isinstance(engine, Engine)
    assert engine.spec.claims(Capability.ASYNC_STEPS)
    assert engine.spec.name == "reference-async"


def test_without_a_step_in_flight_blocks_are_free_at_once() -> None:
    engine = engine_of()
    admit(engine, A, 5)
    engine.release(A, Release.FINISH)
    assert len(shot(engine).free) == 8


def test_blocks_wait_for_every_step_in_flight_in_any_order() -> None:
    """Two blocks, steps 3 and 4 in flight at the release, 5 launched later: 5 does not count."""
    for order in ((3, 4), (4, 3)):
        engine = engine_of()
        admit(engine, A, 5)
        engine.launched(3)
        engine.launched(4)
        engine.release(A, Release.CANCEL)
        engine.launched(5)
        held = shot(engine)
        assert sorted(held.quarantined.tolist()) == sorted(held.pinned.tolist()) == [0, 1]
        assert held.ref_counts is not None
        assert held.ref_counts.tolist() == [1, 1]
        engine.done(order[0], {})
        assert len(shot(engine).quarantined) == 2
        engine.done(order[1], {})
        assert len(shot(engine).quarantined) == 0
        assert len(shot(engine).free) == 8


def test_quarantined_blocks_are_not_given_out() -> None:
    """Eight blocks, two in quarantine: seven do not fit, six do."""
    engine = engine_of()
    admit(engine, A, 5)
    engine.launched(0)
    engine.release(A, Release.PREEMPT)
    assert not admit(engine, B, 25, key=1)
    assert admit(engine, B, 24, key=1)


def test_a_shared_block_is_pinned_and_not_quarantined() -> None:
    """One full block is shared with a live child: two holders, one of them the step."""
    engine = engine_of()
    admit(engine, A, 4)
    engine.fork(A, B)
    engine.launched(0)
    engine.release(A, Release.FINISH)
    held = shot(engine)
    assert held.pinned.tolist() == [0]
    assert held.quarantined.tolist() == []
    assert held.ref_counts is not None
    assert held.ref_counts.tolist() == [2]
    engine.done(0, {})
    after = shot(engine).ref_counts
    assert after is not None
    assert after.tolist() == [1]


def test_a_published_block_is_cached_after_its_quarantine_and_can_be_hit_during_it() -> None:
    engine = engine_of()
    admit(engine, A, 9)
    engine.launched(0)
    engine.done(0, {A: 9})
    engine.launched(1)
    engine.release(A, Release.FINISH)
    run = TokenRun(TokenContent((0,), ()), 0, 9)
    assert engine.admit(B, run, first_chunk_tokens=9).hit_tokens == 8
    engine.release(B, Release.FINISH)
    engine.done(1, {})
    assert sorted(shot(engine).cached.tolist()) == [0, 1]


def test_an_unknown_sequence_is_refused_with_a_step_in_flight() -> None:
    engine = engine_of()
    engine.launched(0)
    with pytest.raises(BlockError, match="unknown sequence 'a'"):
        engine.release(A, Release.FINISH)


@pytest.mark.parametrize("workload", ["churn", "divergence-burst", "cancel-burst"])
def test_a_replay_settles_every_step_and_comes_to_the_reference_rows(workload: str) -> None:
    """Nothing is ever in flight there, so the engine is the reference."""
    trace = load_trace(workload).head(40)
    config = EngineConfig(model_layout("tiny"), 16, 100)
    done = replay(trace, AsyncEngine(config))
    assert done.violations == ()
    assert done.timeline.pools[0].total("finished") > 0


def test_scenes_with_two_steps_in_flight_keep_every_law() -> None:
    scene = Scene(engine_of())
    scene.admit("a", 6)
    scene.launch()
    scene.extend("a")
    scene.launch()
    scene.settle()
    scene.release("a", Release.CANCEL)
    scene.admit("b", 8)
    scene.launch()
    assert scene.column("quarantined") == 8
    scene.settle()
    scene.settle()
    scene.drain()
    assert scene.found() == []
