"""LMDeploy as it really runs, against tables worked out by hand: blocks go out in order, from the first."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import RefusalReason, Release
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.ledger.atomic import state_digest
from kvsuite.replay.judged import judged_replay
from kvsuite.trace.request import RequestId
from kvsuite.trace.synthetic import synthetic
from tests.adapters.built import opened
from tests.adapters.driving import admit, counts, run, tables

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine

A, B = RequestId("a"), RequestId("b")


def lmdeploy(block_size: int = 4, num_blocks: int = 8, **others: Any) -> Engine:
    return opened("lmdeploy", block_size, num_blocks, **others)


def test_blocks_of_chunks_and_of_an_answer() -> None:
    """10 tokens by 5, 4 and 1 in blocks of 4: 2, 3 and 3 blocks. 12 still fit, the 13th takes a fourth."""
    engine = lmdeploy()
    assert admit(engine, A, 10, chunk=5) == 0
    sizes = [len(tables(engine)[0])]
    engine.done(0, {A: 5})
    for step, (start, stop) in enumerate([(5, 9), (9, 10), (10, 12), (12, 13)]):
        assert engine.extend(A, run(stop, start))
        engine.done(step + 1, {A: stop})
        sizes.append(len(tables(engine)[0]))
    assert sizes == [2, 3, 3, 3, 4]
    assert tables(engine) == [[0, 1, 2, 3]]
    (shot,) = engine.snapshot()
    assert (shot.free.tolist(), shot.lengths.tolist()) == ([4, 5, 6, 7], [13])


def test_a_piece_that_ends_a_prompt_and_begins_its_answer() -> None:
    """A prompt of 6 has 4; the next 5 tokens are its last 2 and 3 of the answer: 9 tokens, 3 blocks."""
    engine = lmdeploy()
    admit(engine, A, 6, chunk=4)
    engine.done(0, {A: 4})
    assert engine.extend(A, run(9, 4))
    assert tables(engine) == [[0, 1, 2]]


def test_a_prompt_is_found_from_the_step_that_computes_it_on() -> None:
    """8 tokens come twice in a step: floor(7 / 4) * 4 are found. The copy of the second block goes back."""
    engine = lmdeploy()
    admit(engine, A, 8)
    assert admit(engine, B, 8) == 4
    assert tables(engine) == [[0, 1], [0, 1]]
    assert counts(engine) == {0: 2, 1: 2}
    engine.release(A, Release.FINISH)
    engine.release(B, Release.FINISH)
    (shot,) = engine.snapshot()
    assert (sorted(shot.cached.tolist()), len(shot.free), counts(engine)) == ([0, 1], 6, {})


def test_reserved_blocks_are_never_handed_out() -> None:
    engine = lmdeploy(options={"null_blocks": 2})
    admit(engine, A, 8)
    (shot,) = engine.snapshot()
    assert (tables(engine), shot.never_allocatable.tolist()) == ([[2, 3]], [0, 1])
    told = engine.admit(B, run(25, key=2), first_chunk_tokens=25).refusal
    assert told is not None
    assert told.reason is RefusalReason.NEVER_FITS


def test_a_refusal_tells_the_truth_and_changes_nothing() -> None:
    """8 blocks: 2 cached, 3 held, 3 free. A prompt of 6 that finds the 2 needs 4 and may have 3 + 0."""
    engine = lmdeploy()
    admit(engine, A, 8)
    engine.done(0, {A: 8})
    engine.release(A, Release.FINISH)
    admit(engine, B, 11, key=3)
    before = state_digest(engine.snapshot())
    told = engine.admit(A, run(24), first_chunk_tokens=24).refusal
    assert told is not None
    assert (told.needed_blocks, told.free_blocks, told.reclaimable_blocks) == (4, 3, 0)
    assert told.reason is RefusalReason.NO_BLOCKS
    assert not engine.extend(B, run(11 + 24, 11, key=3))
    assert state_digest(engine.snapshot()).differences(before) == []


def test_a_chunk_that_is_promised_keeps_others_out() -> None:
    """8 blocks: a prompt of 6 has 1 and 5 to come. One of 3 would fit the 7 that are free, and waits."""
    engine = lmdeploy()
    admit(engine, A, 24, chunk=4)
    told = engine.admit(B, run(12, key=2), first_chunk_tokens=12).refusal
    assert told is not None
    assert (told.reason, told.free_blocks) == (RefusalReason.PROMISED, 7)
    assert admit(engine, B, 8, key=2) == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_workload_under_pressure_breaks_no_law(prefix_cache: bool) -> None:
    """Every answer judged and every token read at every step, in a pool that has to evict and preempt."""
    trace = synthetic("churn").head(10)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    done = judged_replay(trace, lmdeploy(16, -(-longest // 16) * 2, prefix_cache=prefix_cache))
    assert list(done.violations) == []
    assert done.content.mismatches == 0
    assert (done.timeline.pools[0].total("evicted") > 0) is prefix_cache


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 4}, "unknown option 'window'"),
        ({"max_requests": 0}, "max_requests is 0"),
        ({"null_blocks": 8}, "8 of 8 blocks are reserved"),
    ],
    ids=str,
)
def test_what_lmdeploy_cannot_do_is_said(options: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        lmdeploy(options=options)


@pytest.mark.skipif(importlib.util.find_spec("lmdeploy") is not None, reason="it is installed here")
def test_a_missing_package_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"install lmdeploy 0\.18\.0, or ask for lmdeploy@0\.18\.0"):
        open_engine("lmdeploy", EngineConfig(model_layout("tiny"), 4, 8))
