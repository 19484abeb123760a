"""An engine that copies in tensors of its own: what it copies, what it tells, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import NO_OPS, Capability
from kvsuite.engine.extensions.own_tensors import OwnTensorsEngine
from kvsuite.engine.guard import GuardedEngine
from kvsuite.engine.reference import POOL
from kvsuite.engine.registry import open_engine
from kvsuite.errors import EngineError, InvariantViolation
from kvsuite.replay.driver import Replay, replay
from kvsuite.replay.scene import Scene
from kvsuite.replay.storage import StorageWorker, worker_of
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId, TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array

A, B = (RequestId(name) for name in "ab")


def engine_of(name: str = "reference-tensors", block_size: int = 4, num_blocks: int = 8) -> OwnTensorsEngine:
    engine = open_engine(name, EngineConfig(model_layout("tiny"), block_size, num_blocks))
    assert isinstance(engine, OwnTensorsEngine)
    return engine


def forked(name: str = "reference-tensors") -> Scene:
    """A parent of 6 tokens in blocks 0 and 1, of which a child has just written its seventh."""
    scene = Scene(engine_of(name))
    scene.admit("a", 6)
    scene.step()
    assert scene.fork("a", "b")
    assert scene.extend("b")
    scene.step()
    return scene


def slots(*numbers: int) -> Int64Array:
    return np.array(numbers, np.int64)


def test_a_tag_fills_keys_and_values() -> None:
    engine = engine_of()
    engine.write_storage(POOL, slots(5, 9, 5), slots(70, 80, 90))
    assert engine.read_storage(POOL, slots(9, 5)).tolist() == [[80, 80], [90, 90]]
    engine.values[9] = 81
    matches = StorageWorker(engine, engine.spec.pools).matches(POOL, slots(9, 5), slots(80, 90))
    assert matches.tolist() == [False, True]


def test_a_private_copy_is_made_before_the_write_and_not_reported() -> None:
    scene = Scene(engine := engine_of())
    scene.admit("a", 6)
    scene.step()
    written = engine.keys[4:6].tolist()
    assert scene.fork("a", "b")
    assert scene.extend("b")
    assert engine.take_ops() is NO_OPS
    assert [list(table.blocks) for table in engine.cache.tables.values()] == [[0, 1], [0, 2]]
    assert engine.keys[8:12].tolist() == [*written, 0, 0]
    assert engine.values[8:12].tolist() == [*written, 0, 0]


def test_a_scene_reads_its_tensors() -> None:
    scene = forked()
    assert scene.worker.mode == "engine"
    scene.drain()
    scene.judge()


def test_what_changes_in_its_tensors_is_wrong_content() -> None:
    scene = forked()
    assert isinstance(scene.engine, OwnTensorsEngine)
    scene.engine.values[4] += 1
    scene.step()
    with pytest.raises(InvariantViolation, match="block 1 offset 0 of a was overwritten"):
        scene.judge()


@pytest.mark.parametrize("fault", ["own-copy-forgotten", "own-copy-one-short", "own-copy-of-keys-alone"])
def test_a_bad_copy_is_wrong_content(fault: str) -> None:
    with pytest.raises(InvariantViolation, match=r"^content at step 1 "):
        forked(f"mutant:{fault}").judge()


def burst(name: str, tokens: int = 18, children: int = 3, *, read_all: bool = False) -> Replay:
    """A parent and its samples, all of which write in one step, in blocks of 16."""
    shape: dict[str, Any] = {"timestamp": 0, "input_length": tokens, "output_length": 3}
    rows = [Row(request_id="p", **shape)]
    rows += [
        Row(request_id=f"c{k}", parent="p", fork="sample", fork_at=tokens, **shape) for k in range(children)
    ]
    trace = trace_of(rows, TraceSource("by hand", "burst"), block_size=16)
    return replay(trace, engine_of(name, block_size=16, num_blocks=16), read_all=read_all)


def test_tables_tell_of_the_copies_that_no_operation_does() -> None:
    done = burst("reference-tensors")
    assert done.violations == ()
    assert done.timeline.pools[0].column("copied").tolist() == [0, 3 * 2, 0, 0]
    (kin,) = done.fork_families
    assert (kin.copies, kin.copied_tokens, kin.net_tokens) == (3, 6, 3 * 16 - 6)


@pytest.mark.parametrize("read_all", [False, True])
@pytest.mark.parametrize(
    "fault", ["own-copy-forgotten", "own-copy-one-short", "own-copy-elsewhere", "own-copy-of-keys-alone"]
)
def test_short_and_long_replays_both_see_a_bad_copy(fault: str, read_all: bool) -> None:
    done = burst(f"mutant:{fault}", read_all=read_all)
    assert {violation.invariant for violation in done.violations} == {"content"}


def test_its_ledger_is_that_of_the_reference() -> None:
    trace = load_trace("churn").head(150)
    config = EngineConfig(model_layout("tiny"), 16, 100)
    own, reference = (replay(trace, open_engine(name, config)) for name in ("reference-tensors", "reference"))
    assert own.violations == ()
    assert own.content.mode == "engine"
    assert own.content.tokens_read == reference.content.tokens_read
    assert (own.timeline.pools[0].rows == reference.timeline.pools[0].rows).all()
    assert own.fork_families == reference.fork_families
    assert reference.timeline.pools[0].total("copied") > 100


def test_a_given_worker_gives_way_to_the_engine_s_own_tensors() -> None:
    engine, reference = engine_of(), open_engine("reference", EngineConfig(model_layout("tiny"), 4, 8))
    given = worker_of(reference)
    assert given.mode == "probe"
    assert worker_of(reference, given) is given
    assert worker_of(engine, given).mode == "engine"


def test_copies_it_asks_for_all_the_same_are_made_in_its_tensors() -> None:
    engine = engine_of()
    worker = worker_of(engine)
    worker.write(POOL, slots(4, 5), slots(7, 8))
    worker.copy(POOL, 1, 3, 2)
    assert engine.read_storage(POOL, slots(12, 13, 14)).tolist() == [[7, 7], [8, 8], [0, 0]]
    worker.zero(POOL, 3)
    assert not worker.matches(POOL, slots(12), slots(7)).any()


@pytest.mark.parametrize(
    "answer", [[[1, 1]], np.zeros((2, 1), np.int64), np.zeros((1, 0), np.int64), np.zeros((1, 1), np.int32)]
)
def test_storage_of_another_shape_is_no_answer(answer: object) -> None:
    class Odd(OwnTensorsEngine):
        def read_storage(self, pool: object, slots: object) -> Int64Array:
            return answer  # type: ignore[return-value]

    guarded = GuardedEngine(Odd(EngineConfig(model_layout("tiny"), 4, 8)))
    with pytest.raises(EngineError, match=r"answered read_storage with .*, expected int64\[1, words\]"):
        guarded.read_storage(POOL, slots(3))


def test_copying_itself_is_claimed_beside_copy_on_write() -> None:
    class Half(OwnTensorsEngine):
        def __init__(self, config: EngineConfig) -> None:
            super().__init__(config)
            claims = self._spec.capabilities - {Capability.COPY_ON_WRITE}
            object.__setattr__(self._spec, "capabilities", claims)

    with pytest.raises(EngineError, match="COPIES_ITSELF, expected COPY_ON_WRITE beside it"):
        GuardedEngine(Half(EngineConfig(model_layout("tiny"), 4, 8)))
