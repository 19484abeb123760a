"""SGLang as it really runs, against slots worked out by hand: page 0 is padding, pages go out in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from kvsuite.engine.contract import Capability, RefusalReason, Release
from kvsuite.ledger.atomic import state_digest
from kvsuite.replay.judged import judged_replay
from kvsuite.replay.scene import Scene
from kvsuite.trace.request import RequestId
from kvsuite.trace.synthetic import synthetic
from kvsuite.trace.tokens import TokenContent, TokenRun
from tests.adapters.built import opened
from tests.adapters.driving import admit, run, tables

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine, SupportsResetCache, SupportsSlots

A, B = RequestId("a"), RequestId("b")
BROKEN = Path(__file__).with_name("broken.py")


def sglang(block_size: int = 16, num_blocks: int = 64, **others: Any) -> Engine:
    return opened("sglang", block_size, num_blocks, **others)


def test_pages_and_slots_of_two_prompts() -> None:
    """20 and 70 tokens in pages of 16: pages 1, 2 and 3..7. Tokens 21 and 71 go to 2*16 + 4 and 7*16 + 6."""
    engine = sglang()
    admit(engine, A, 20, key=1)
    admit(engine, B, 70, key=2)
    assert tables(engine) == [[1, 2], [3, 4, 5, 6, 7]]
    engine.launched(0)
    engine.done(0, {A: 20, B: 70})
    assert engine.extend(A, run(21, 20, key=1))
    assert engine.extend(B, run(71, 70, key=2))
    slots = cast("SupportsSlots", engine)
    assert [slots.write_slots(name)[0].tolist() for name in (A, B)] == [[36], [118]]
    assert slots.read_slots(A)[0].tolist() == [*range(16, 37)]
    assert tables(engine) == [[1, 2], [3, 4, 5, 6, 7]]


def test_slots_of_single_tokens() -> None:
    engine = sglang(1, 9)
    admit(engine, A, 3)
    assert cast("SupportsSlots", engine).read_slots(A)[0].tolist() == [1, 2, 3]
    (shot,) = engine.snapshot()
    assert (shot.free.tolist(), shot.never_allocatable.tolist()) == ([4, 5, 6, 7, 8], [0])
    assert shot.ref_count_ids is None


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_all_but_the_last_token_can_be_found(block_size: int) -> None:
    """A prompt of 64 tokens comes again: floor(63 / b) * b of it is found, and it gets pages of its own for
    the rest, which go back when they are computed: both end on the same pages."""
    engine = sglang(block_size, 300)
    admit(engine, A, 64)
    engine.done(0, {A: 64})
    assert admit(engine, B, 64) == 63 // block_size * block_size
    first, second = tables(engine)
    shared = 63 // block_size
    assert first[:shared] == second[:shared]
    assert first[shared] != second[shared]
    engine.done(1, {B: 64})
    assert tables(engine) == [first, first]


def test_nothing_is_found_before_it_is_computed() -> None:
    engine = sglang()
    admit(engine, A, 64)
    assert admit(engine, B, 64) == 0


def test_an_answer_is_found_when_its_request_ends_and_not_when_it_is_retracted() -> None:
    """16 + 17 tokens: two full pages. Ended, 32 are found; retracted, the 16 of the prompt."""
    for reason, found in ((Release.FINISH, 32), (Release.CANCEL, 32), (Release.PREEMPT, 16)):
        engine = sglang()
        admit(engine, A, 16)
        engine.done(0, {A: 16})
        for step in range(17):
            assert engine.extend(A, run(17 + step, 16 + step))
            engine.done(step + 1, {A: 17 + step})
        engine.release(A, reason)
        assert admit(engine, B, 40) == found


def test_a_refusal_tells_the_truth_and_changes_nothing() -> None:
    """8 usable pages of 16: 3 cached, 2 held, 3 free. A prompt that finds 2 idle ones may have 3 + 1 more."""
    engine = sglang(16, 9)
    admit(engine, A, 48)
    engine.done(0, {A: 48})
    engine.release(A, Release.FINISH)
    admit(engine, B, 32, key=3)
    engine.done(1, {B: 32})
    before = state_digest(engine.snapshot())
    two_found = TokenRun(TokenContent((7, 8), (40,)), 0, 7 * 16)
    told = engine.admit(A, two_found, first_chunk_tokens=16).refusal
    assert told is not None
    assert (told.needed_blocks, told.free_blocks, told.reclaimable_blocks) == (5, 3, 1)
    assert told.reason is RefusalReason.NO_BLOCKS
    never = engine.admit(A, run(8 * 16 + 1, key=9), first_chunk_tokens=16).refusal
    assert never is not None
    assert never.reason is RefusalReason.NEVER_FITS
    assert not engine.extend(B, run(32 + 7 * 16, 32, key=3))
    assert state_digest(engine.snapshot()).differences(before) == []


def test_the_least_recently_used_page_is_listed_and_goes_first() -> None:
    """Two prompts of one page, the first used again: the second is the next to go, and does.

    Three of 5 pages are free then. A prompt of 3 asks for one page more than it takes, so one goes.
    """
    engine = sglang(16, 6)
    for name, key in ((A, 1), (B, 2), (A, 1)):
        admit(engine, name, 17, key=key)
        engine.done(0, {name: 17})
        engine.release(name, Release.FINISH)
    (shot,) = engine.snapshot()
    assert shot.cached.tolist() == [2, 1]
    admit(engine, B, 48, key=3)
    (shot,) = engine.snapshot()
    assert shot.cached.tolist() == [1]


def test_a_flush_forgets_and_is_refused_while_somebody_lives() -> None:
    engine = sglang(16, 9)
    flush = cast("SupportsResetCache", engine).reset_cache
    admit(engine, A, 48)
    engine.done(0, {A: 48})
    assert not flush()
    engine.release(A, Release.FINISH)
    assert flush()
    assert admit(engine, B, 48) == 0
    assert tables(engine) == [[1, 2, 3]]


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_workload_under_pressure_breaks_no_law(block_size: int, prefix_cache: bool) -> None:
    """Every answer judged and every token read at every step, in a pool that has to evict and retract."""
    trace = synthetic("churn").head(10)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    usable = -(-longest // block_size) * 2
    engine = sglang(block_size, usable + 1, prefix_cache=prefix_cache)
    assert engine.spec.claims(Capability.PREFIX_CACHE) is prefix_cache
    done = judged_replay(trace, engine)
    assert list(done.violations) == []
    assert done.content.mismatches == 0
    assert (done.timeline.pools[0].total("evicted") > 0) is prefix_cache


def test_a_double_free_is_seen_by_the_ledger() -> None:
    """Two pages given back twice: the free list holds 10 entries of 8 pages, and SGLang does not mind."""
    scene = Scene(sglang(4, 9, prefix_cache=False, factory=f"{BROKEN}:DoubleFree"))
    scene.admit("a", 8)
    scene.step()
    scene.release("a")
    (shot,) = scene.engine.snapshot()
    assert np.bincount(shot.free, minlength=9).tolist() == [0, 2, 2, 1, 1, 1, 1, 1, 1]
    scene.drain()
    found = {violation.invariant: violation.message for violation in scene.found()}
    assert found["partition"].startswith("block 1 is free and free, expected exactly one state (2 blocks")
    assert "closure" in found


def test_a_use_after_free_is_seen_by_the_ledger_and_in_the_content() -> None:
    """Pages given back while their request lives go to the next one: two tokens share a slot."""
    scene = Scene(sglang(4, 9, prefix_cache=False, factory=f"{BROKEN}:UseAfterFree"))
    scene.admit("a", 8)
    scene.step()
    scene.step()
    scene.admit("b", 8)
    scene.step()
    found = {violation.invariant: violation.message for violation in scene.found()}
    assert {"partition", "content"} <= found.keys()
