"""What the prefix map holds over time: nothing before it is computed, nothing after it is gone.

A key comes when its block is computed, stays while it is found, and goes with the block's content: by
eviction, by reuse, by a reset. Answers are judged as in `test_key.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, Release
from kvsuite.ledger.invariants import raise_violations
from kvsuite.ledger.prefix_keys import cached_full, hit_unit, map_fits
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.asker import Asker
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 32
pytestmark = pytest.mark.requires(Capability.PREFIX_CACHE)


@pytest.mark.parametrize("units", [1, 3])
def test_a_prompt_that_was_evicted_is_gone(kv_scene: Callable[..., Scene], units: int) -> None:
    """nano-vllm #163: computed, evicted to the last block, asked again: nothing is found."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    words = play.scene.prompts.of(("words", units * play.unit))
    play.once("first", words, units * play.unit + 1)
    for name in play.fill("tenant"):
        play.release(name)
    found = play.once("again", words, units * play.unit + 1)
    play.once("once more", words, units * play.unit + 1, kept=True)
    play.end()
    assert found == 0 or play.scene.engine.spec.claims(Capability.HOST_TIER)


def test_an_evicted_block_belongs_to_its_new_owner_alone(kv_scene: Callable[..., Scene]) -> None:
    """vllm #4764: the block is taken while a request still fills it; its old prompt must miss it."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    words = play.scene.prompts.of(("words", 2 * play.unit))
    play.once("first", words, 2 * play.unit + 1)
    tenants = play.fill("tenant", tokens=1)
    room = 4 * play.unit // B
    for name in tenants[:room]:
        play.release(name)
    play.ask("again", words, 2 * play.unit + 1)
    play.step()
    for name in tenants[room:]:
        play.grow(name, 2)
    play.step()
    play.end()


def test_there_are_never_more_prefixes_than_blocks(kv_scene: Callable[..., Scene]) -> None:
    """Three pools' worth of prompts, then each is asked for and dropped at once: |map| <= N."""
    play = Asker(kv_scene(block_size=B, num_blocks=12))
    (pool, *_) = play.scene.engine.spec.pools
    prompts = [play.scene.prompts.of((f"p{number}", play.unit)) for number in range(36)]
    for number, words in enumerate(prompts):
        play.once(f"r{number}", words, play.unit + 1)
    found = 0
    for number, words in enumerate(prompts):
        found += play.ask(f"again{number}", words, play.unit + 1) or 0
        play.release(f"again{number}", Release.CANCEL)
    if not play.scene.engine.spec.claims(Capability.HOST_TIER):
        play.scene.violations += map_fits(pool, found // pool.block_size, play.scene.step_number)
    play.end()


@pytest.mark.parametrize("reason", [Release.CANCEL, Release.ERROR, Release.PREEMPT])
def test_dropped_before_it_is_computed(kv_scene: Callable[..., Scene], reason: Release) -> None:
    """text-generation-inference #2489: blocks of a prompt that never ran are not found by the next one."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = 2 * play.unit + 1
    words = play.scene.prompts.of(("words", tokens))
    play.ask("first", words, tokens)
    play.release("first", reason)
    found = play.ask("second", words, tokens)
    play.step()
    play.end()
    assert found == 0


@pytest.mark.parametrize("reason", list(Release), ids=[reason.value for reason in Release])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_part_full_block_is_never_cached(
    kv_scene: Callable[..., Scene], extra: int, reason: Release
) -> None:
    """The first to come, and gone after one step: at most floor(n / b) blocks of any pool are cached."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = 2 * play.unit + extra
    play.ask("a", play.scene.prompts.of(("words", tokens)), tokens)
    play.step()
    play.release("a", reason)
    play.step()
    engine = play.scene.engine
    for pool, snapshot in zip(engine.spec.pools, engine.snapshot(), strict=True):
        play.scene.violations += cached_full(pool, len(snapshot.cached), tokens, play.scene.step_number)
    play.end()


@pytest.mark.requires(Capability.CHUNKED_PREFILL)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_cancelled_in_the_middle_of_its_prompt(kv_scene: Callable[..., Scene], extra: int) -> None:
    """A chunk is computed, the next one allocated, then the client goes: found is what was computed."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens, chunk = 3 * play.unit + 1, play.unit + extra
    words = play.scene.prompts.of(("words", tokens))
    play.ask("first", words, tokens, chunk=chunk)
    play.step()
    play.grow("first", 2 * play.unit)
    play.release("first", Release.CANCEL)
    found = play.ask("second", words, tokens, kept=True)
    play.step()
    play.end()
    assert found == chunk // play.unit * play.unit


@pytest.mark.requires(Capability.CHUNKED_PREFILL)
def test_chunks_that_cut_a_block(kv_scene: Callable[..., Scene]) -> None:
    """ATOM #902: blocks of 256 filled in chunks of 100: found are 0, 0 and 256, and it stays found."""
    play = Asker(kv_scene(block_size=256, num_blocks=16))
    tokens = 2 * play.unit + 1
    words = play.scene.prompts.of(("words", tokens))
    play.ask("first", words, tokens, chunk=100)
    play.step()
    found = []
    for number in range(5):
        name = f"again{number}"
        found.append((play.ask(name, words, tokens, chunk=1), (100 + 100 * number) // play.unit * play.unit))
        play.release(name, Release.CANCEL)
        play.grow("first", 100)
        play.step()
    play.release("first")
    for name in ("last", "very last"):
        play.ask(name, words, tokens, kept=True)
        play.step()
        play.release(name)
    play.end()
    assert [got for got, _ in found] == [due for _, due in found]


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_block_is_found_once_its_last_token_is_computed(kv_scene: Callable[..., Scene], extra: int) -> None:
    """A sequence decodes to k * u - 1, k * u and k * u + 1 tokens beside one that follows it."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    words = play.scene.prompts.of(("words", 1))
    play.ask("first", words, 1)
    play.step()
    for _ in range(2 * play.unit + extra - 1):
        play.grow("first")
        play.step()
    found = play.ask("second", words, 4 * play.unit, kept=True)
    play.step()
    play.end()
    assert found == (2 * play.unit + extra) // play.unit * play.unit


@pytest.mark.requires(Capability.PREEMPTION)
@pytest.mark.parametrize("launched", [False, True])
def test_preempted_and_resumed(kv_scene: Callable[..., Scene], launched: bool) -> None:
    """Preempted as it fills a block, before its token is computed or after: it resumes on what was."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    words = play.scene.prompts.of(("words", 2 * play.unit - 1))
    play.ask("first", words, 2 * play.unit - 1)
    play.step()
    play.grow("first")
    if launched:
        play.step()
    play.release("first", Release.PREEMPT)
    found = play.ask("first", words, 2 * play.unit + 1, kept=True)
    play.step()
    play.grow("first", 2)
    play.step()
    play.end()
    assert found == (2 if launched else 1) * play.unit


def test_a_chain_evicted_in_part_is_found_up_to_the_gap(kv_scene: Callable[..., Scene]) -> None:
    """A chain of four loses blocks one by one: found is a leading part, and it is right each time."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    words = play.scene.prompts.of(("words", 4 * play.unit))
    play.once("first", words, 4 * play.unit + 1)
    tenants = play.fill("tenant")
    for name in tenants[4:]:
        play.release(name)
    play.once("again", words, 4 * play.unit + 1)
    for name in tenants[:4]:
        play.release(name)
    for number in range(4):
        play.once(f"short{number}", words, (number + 1) * play.unit + 1)
    play.end()


@pytest.mark.requires(Capability.RESET_CACHE)
def test_nothing_is_found_after_a_reset(kv_scene: Callable[..., Scene]) -> None:
    """Computed, reset, asked again: 0; and what is computed from then on is found."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = 2 * play.unit + 1
    words = play.scene.prompts.of(("words", tokens))
    play.once("first", words, tokens)
    reset = play.reset()
    found = [play.once(name, words, tokens) for name in ("second", "third")]
    play.end()
    assert (reset, found) == (True, [0, 2 * play.unit])


def test_what_is_evicted_is_told(open_engine: EngineOpener) -> None:
    """TensorRT-LLM #16335: chains of three are evicted block by block.

    A mirror that is fed by changes alone knows the same blocks as cached as the engine does.
    """
    engine = open_engine(block_size=B, num_blocks=8)
    trackers = [PoolTracker(pool) for pool in engine.spec.pools]

    def look(step: int, hits: dict[RequestId, int]) -> None:
        shots = engine.snapshot(trackers[0].revision)
        for tracker, shot in zip(trackers, shots, strict=True):
            tracker.take(shot, StepFacts(hit_tokens=hits), step)
        for tracker, shot in zip(trackers, engine.snapshot(), strict=True):
            tracker.compare_full(shot, step)

    unit = hit_unit(engine.spec.pools)
    look(0, {})
    for step, (key, units) in enumerate([(1, 3), (2, 3), (3, 4), (1, 3)], 1):
        tokens = units * unit + 1
        run = TokenRun(TokenContent((key,), ()), 0, tokens)
        request_id = RequestId(f"r{step}")
        admission = engine.admit(request_id, run, first_chunk_tokens=tokens)
        if not admission.accepted:
            continue
        engine.take_ops()
        engine.launched(step)
        look(step, {request_id: admission.hit_tokens})
        engine.done(step, {request_id: tokens})
        engine.release(request_id, Release.FINISH)
        look(step, {})
    raise_violations([violation for tracker in trackers for violation in tracker.violations])
