"""Copies at the fork: when they are made, what they cost, and when a fork is refused."""

from __future__ import annotations

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import BlockCopy, Capability, Release
from kvsuite.engine.extensions.eager_fork import EagerForkEngine
from kvsuite.engine.registry import open_engine
from kvsuite.engine.snapshot import PoolKey
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId

A, B, C = (RequestId(name) for name in "abc")


def engine_of(num_blocks: int = 8) -> EagerForkEngine:
    engine = open_engine("reference-eager", EngineConfig(model_layout("tiny"), 4, num_blocks))
    assert isinstance(engine, EagerForkEngine)
    return engine


def scene_of(engine: EagerForkEngine, tokens: int) -> Scene:
    scene = Scene(engine)
    scene.admit("a", tokens)
    scene.step()
    return scene


def test_it_says_when_it_copies() -> None:
    spec = engine_of().spec
    assert spec.effective["cow"] == "at_fork"
    assert spec.claims(Capability.FORK)
    assert spec.claims(Capability.COPY_ON_WRITE)


def test_a_part_full_block_is_copied_at_the_fork_and_no_write_copies_again() -> None:
    engine = engine_of()
    scene = scene_of(engine, 6)
    assert scene.fork("a", "b")
    assert [list(table.blocks) for table in engine.cache.tables.values()] == [[0, 1], [0, 2]]
    assert engine.take_ops().copies == (BlockCopy(PoolKey(), 1, 2, 2, B),)
    assert scene.extend("a")
    assert scene.extend("b")
    assert engine.take_ops().copies == ()


def test_full_blocks_are_shared_and_cost_nothing() -> None:
    engine = engine_of(num_blocks=2)
    scene = scene_of(engine, 8)
    assert engine.cache.pool.available_blocks == 0
    assert scene.fork("a", "b")
    assert engine.take_ops().copies == ()


@pytest.mark.parametrize(("num_blocks", "granted"), [(2, False), (3, True)])
def test_a_fork_without_a_block_for_its_copy_is_refused_and_changes_nothing(
    num_blocks: int, granted: bool
) -> None:
    engine = engine_of(num_blocks)
    scene = scene_of(engine, 6)
    if granted:
        assert scene.fork("a", "b")
    else:
        with scene.unchanged("a fork"):
            assert not scene.fork("a", "b")
    scene.step()
    scene.drain()
    scene.judge()


def test_a_pending_copy_is_kept_as_long_as_another_one_reads_from_it() -> None:
    engine = engine_of()
    scene = scene_of(engine, 6)
    assert scene.fork("a", "b")
    assert scene.fork("b", "c")
    scene.release("b", Release.CANCEL)
    assert [(copy.source, copy.target) for copy in engine.take_ops().copies] == [(1, 2), (2, 3)]


def test_the_copy_of_a_cancelled_child_is_dropped() -> None:
    engine = engine_of()
    scene = scene_of(engine, 6)
    assert scene.fork("a", "b")
    scene.release("b", Release.CANCEL)
    assert engine.take_ops().copies == ()


def test_a_workload_of_forks_keeps_every_law() -> None:
    config = EngineConfig(model_layout("tiny"), 16, 100)
    done = replay(load_trace("divergence-burst").head(168), open_engine("reference-eager", config))
    assert done.violations == ()
    assert sum(kin.copies for kin in done.fork_families) > 0
