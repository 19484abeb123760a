"""tokasaurus as it really runs, against tables worked out by hand: blocks come from the end of a list."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, RefusalReason, Release
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


def tokasaurus(block_size: int = 4, num_blocks: int = 8, **others: Any) -> Engine:
    return opened("tokasaurus", block_size, num_blocks, **others)


def test_a_prompt_takes_all_of_its_blocks_at_once() -> None:
    """10 tokens in blocks of 4, of which a first chunk of 1 is asked: blocks 7, 6, 5 of 0..7."""
    engine = tokasaurus()
    answer = engine.admit(A, run(10), first_chunk_tokens=1)
    assert (answer.hit_tokens, answer.scheduled_tokens) == (0, 10)
    assert tables(engine) == [[7, 6, 5]]
    assert not engine.spec.claims(Capability.CHUNKED_PREFILL)
    assert engine.extend(A, run(12, 10))
    assert engine.extend(A, run(13, 12))
    assert tables(engine) == [[7, 6, 5, 4]]
    assert counts(engine) == {7: 1, 6: 1, 5: 1, 4: 1}


def test_a_prompt_is_found_from_the_step_that_computes_it_on() -> None:
    """8 tokens come twice in a step: floor(7 / 4) * 4 are found, and that block names both."""
    engine = tokasaurus()
    admit(engine, A, 8)
    assert admit(engine, B, 8) == 4
    assert tables(engine) == [[7, 6], [7, 5]]
    assert counts(engine) == {7: 2, 6: 1, 5: 1}


def test_what_is_computed_stays_cached_and_what_is_not_is_free() -> None:
    """A prompt of two blocks that never ran leaves nothing; one that ran leaves both."""
    for settled, cached in ((False, 0), (True, 2)):
        engine = tokasaurus()
        admit(engine, A, 8)
        if settled:
            engine.done(0, {A: 8})
        engine.release(A, Release.CANCEL)
        (shot,) = engine.snapshot()
        assert (len(shot.free), len(shot.cached)) == (8 - cached, cached)


def test_a_refusal_tells_the_truth_and_changes_nothing() -> None:
    """8 blocks: 2 cached, 3 held, 3 free. A prompt of 6 that finds the 2 needs 4 and may have 3 + 0."""
    engine = tokasaurus()
    admit(engine, A, 8)
    engine.done(0, {A: 8})
    engine.release(A, Release.FINISH)
    admit(engine, B, 12, key=3)
    before = state_digest(engine.snapshot())
    told = engine.admit(A, run(24), first_chunk_tokens=24).refusal
    assert told is not None
    assert (told.needed_blocks, told.free_blocks, told.reclaimable_blocks) == (4, 3, 0)
    assert told.reason is RefusalReason.NO_BLOCKS
    assert not engine.extend(B, run(12 + 24, 12, key=3))
    never = engine.admit(A, run(33, key=9), first_chunk_tokens=33).refusal
    assert never is not None
    assert never.reason is RefusalReason.NEVER_FITS
    assert state_digest(engine.snapshot()).differences(before) == []


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    engine = tokasaurus(prefix_cache=False)
    admit(engine, A, 8)
    engine.done(0, {A: 8})
    assert admit(engine, B, 8) == 0
    engine.release(A, Release.FINISH)
    (shot,) = engine.snapshot()
    assert (len(shot.free), len(shot.cached)) == (6, 0)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_workload_under_pressure_breaks_no_law(prefix_cache: bool) -> None:
    """Every answer judged and every token read at every step, in a pool that has to evict and preempt."""
    trace = synthetic("churn").head(10)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    done = judged_replay(trace, tokasaurus(16, -(-longest // 16) * 2, prefix_cache=prefix_cache))
    assert list(done.violations) == []
    assert done.content.mismatches == 0
    assert (done.timeline.pools[0].total("evicted") > 0) is prefix_cache


def test_an_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown option 'null_blocks', it takes none"):
        tokasaurus(options={"null_blocks": 1})


@pytest.mark.skipif(importlib.util.find_spec("tokasaurus") is not None, reason="it is installed here")
def test_a_missing_package_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"install tokasaurus 0\.0\.4, or ask for tokasaurus@0\.0\.4"):
        open_engine("tokasaurus", EngineConfig(model_layout("tiny"), 4, 8))
