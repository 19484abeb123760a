"""The edges of a block, of a pool and of a window, where one-off faults live."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.contract import Capability, RefusalReason
from kvsuite.errors import ConfigError
from kvsuite.ledger.admission import Offer, never_fits, promise, told_and_taken
from kvsuite.ledger.counts import (
    empty_pool_verdict,
    fits_empty_pool,
    judge_counts,
    kept_back,
    window_blocks,
    window_blocks_bound,
)
from kvsuite.ledger.invariants import raise_violations
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Admission
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene
    from kvsuite.trace.tokens import TokenContent

    Play = Callable[..., Scene]

BLOCK = 4
LONGEST = 5 * BLOCK
pytestmark = pytest.mark.requires(Capability.PAGED)


@pytest.fixture
def play(kv_scene: Play, open_engine: EngineOpener) -> Play:
    """Open a scene on a pool with exactly so many usable blocks, whatever is null in the engine."""

    def opened(*, usable_blocks: int, options: dict[str, int] | None = None, **config: Any) -> Scene:
        config |= {"options": options} if options else {}
        try:
            pool = open_engine(num_blocks=usable_blocks + 8, **config).spec.pools[0]
        except ConfigError as refusal:
            if options:
                pytest.skip(f"takes no option {', '.join(options)}: {refusal}")
            raise
        try:
            return kv_scene(num_blocks=usable_blocks + pool.never_allocatable_blocks, **config)
        except ConfigError as refusal:
            pytest.skip(f"refuses a pool of {usable_blocks} blocks at the start: {refusal}")

    return opened


def offer(scene: Scene, name: str, tokens: int, *, content: TokenContent | None = None) -> Offer:
    """Offer a prompt and return it with the first pool before and after."""
    (before, *_) = scene.engine.snapshot()
    admission = scene.admit(name, tokens, content=content)
    (after, *_) = scene.engine.snapshot()
    return Offer(scene.engine.spec.pools[0], RequestId(name), tokens, admission, before, after)


def judged_on_empty(scene: Scene, tokens: int, name: str = "a") -> Admission:
    """Offer a prompt to a scene with nothing running and judge the verdict; a refusal must leave no trace."""
    made = offer(scene, name, tokens)
    if not made.admission.accepted:
        assert made.after.free.tolist() == made.before.free.tolist(), "a refused prompt changed the free list"
    raise_violations(list(empty_pool_verdict(scene.engine.spec.pools, tokens, made.admission)))
    return made.admission


def around_the_need() -> list[tuple[int, int]]:
    """Boundary lengths, and pools that can be opened: n, need - 1 to need + 1 blocks."""
    lengths = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, LONGEST - 1, LONGEST)
    return [
        (n, blocks) for n in lengths for blocks in range(-(-n // BLOCK) - 1, -(-n // BLOCK) + 2) if blocks
    ]


@pytest.mark.parametrize("null_blocks", [0, 1], ids=["no-null", "null"])
@pytest.mark.parametrize(("tokens", "usable_blocks"), around_the_need())
def test_boundary_lengths_in_pools_around_their_need(
    play: Play, tokens: int, usable_blocks: int, null_blocks: int
) -> None:
    """Admitted with ceil(n / b) blocks when and only when they are there; then grown to the pool's end."""
    options = {"null_blocks": 1} if null_blocks else None
    scene = play(
        usable_blocks=usable_blocks,
        options=options,
        block_size=BLOCK,
        max_model_tokens=usable_blocks * BLOCK,
    )
    pools = scene.engine.spec.pools
    length = tokens if judged_on_empty(scene, tokens).accepted else 0
    scene.step()
    while length and fits_empty_pool(pools, length + 1):
        judge_counts(pools, scene.engine.snapshot())
        assert scene.extend("a"), f"{length + 1} tokens fit {usable_blocks} blocks of {BLOCK}"
        length += 1
        scene.step()
    judge_counts(pools, scene.engine.snapshot())
    scene.drain()
    scene.judge()


def test_the_longest_request_is_held_against_usable_blocks(play: Play) -> None:
    """64 blocks of 16, one of them null: 1,008 tokens fit, 1,024 are refused for good, not left waiting."""
    scene = play(usable_blocks=63, options={"null_blocks": 1}, block_size=16, max_model_tokens=1_024)
    usable = scene.engine.spec.pools[0].usable_blocks
    judged_on_empty(scene, (usable + 1) * 16)
    assert judged_on_empty(scene, usable * 16, "b").accepted
    scene.step()
    scene.drain()
    scene.judge()


def test_two_requests_take_turns_in_a_pool_for_one(play: Play) -> None:
    """A pool exactly as large as one request: the second is refused for now, and let in once it is alone."""
    scene = play(usable_blocks=5, block_size=BLOCK, prefix_cache=False)
    assert judged_on_empty(scene, LONGEST).accepted
    scene.step()
    for _ in range(2):
        with scene.unchanged("a prompt beside one that fills the pool"):
            second = offer(scene, "b", LONGEST)
        raise_violations(list(never_fits(second, kept_back(scene.engine.spec))))
        assert second.admission.refusal is not None
    scene.release("a")
    assert scene.admit("b", LONGEST).accepted
    scene.step()
    scene.drain()
    scene.judge()


def test_a_block_that_is_exactly_full_brings_no_other(play: Play) -> None:
    """b = 16, decoded to 32 tokens: 2 blocks and (2 - 1) * 16 + 16 = 32 read, not 3 blocks and 48."""
    scene = play(usable_blocks=8, block_size=16)
    assert scene.admit("a", 30).accepted
    for length in range(30, 34):
        if length > 30:
            assert scene.extend("a")
        scene.step()
        scene.judge()
        judge_counts(scene.engine.spec.pools, scene.engine.snapshot())
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_a_cached_prompt_of_whole_blocks_needs_a_block(play: Play, open_engine: EngineOpener) -> None:
    """b = 32, a prompt of 64 that is cached whole: 1 block is found and 1 is new, not 2 and 0."""
    scene = play(usable_blocks=4 + kept_back(open_engine(block_size=32, num_blocks=8).spec), block_size=32)
    text = scene.prompts.of(("text", 64))
    for name, content in (("a", text), ("b", None)):
        assert scene.admit(name, 64, content=content).accepted
        scene.step()
    refused = replace(offer(scene, "c", 64, content=text), expected_hits=(int(scene.table("a")[0]),))
    raise_violations(list(promise(refused)))
    assert refused.admission.refusal is not None, "no block is free, and a prompt that needs one was let in"
    scene.release("b")
    accepted = offer(scene, "c", 64, content=text)
    raise_violations(list(told_and_taken(refused, accepted)))
    assert accepted.admission.hit_tokens == 32
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.SLIDING_WINDOW)
@pytest.mark.parametrize(
    ("window", "block_size", "tokens"),
    [(4_096, 32, 98_012), (16, 4, 37), (17, 4, 37), (15, 4, 37), (16, 4, 40), (17, 4, 41), (15, 4, 41)],
)
def test_an_unaligned_window_touches_one_block_more(
    play: Play, window: int, block_size: int, tokens: int
) -> None:
    """W = 4,096, b = 32, n = 98,012: 3,063 - floor((98,012 - 4,096 + 1) / 32) = 129 blocks, not 128."""
    usable = -(-tokens // block_size) + 1
    scene = play(
        usable_blocks=usable,
        options={"window_tokens": window},
        block_size=block_size,
        prefix_cache=False,
    )
    assert scene.admit("a", tokens - 1).accepted
    scene.step()
    assert scene.extend("a")
    scene.step()
    (pool, *_), (shot, *_) = scene.engine.spec.pools, scene.engine.snapshot()
    assert pool.window_tokens == window
    raise_violations(list(window_blocks(pool, shot)))
    held = int((~(shot.table(0)[:, None] == shot.null_ids).any(axis=1)).sum())
    due = -(-tokens // block_size) - (tokens - window + 1) // block_size
    assert due <= window_blocks_bound(window, block_size)
    assert scene.extend("a")
    scene.step()
    scene.drain()
    scene.judge()
    assert held == due


@pytest.mark.requires(Capability.SLIDING_WINDOW)
@pytest.mark.parametrize("window", [BLOCK, BLOCK + 1, 2 * BLOCK - 1, 100])
def test_a_window_takes_a_sequence_past_its_pool(play: Play, window: int) -> None:
    """Three blocks of 4: with a window inside them a sequence goes on, with W > L it is full at 12."""
    scene = play(
        usable_blocks=3,
        options={"window_tokens": window},
        block_size=BLOCK,
        max_model_tokens=3 * BLOCK if window > 3 * BLOCK else None,
    )
    assert scene.admit("a", 2 * BLOCK).accepted
    scene.step()
    for length in range(2 * BLOCK, 10 * BLOCK):
        if window == 100 and length == 3 * BLOCK:
            with scene.unchanged("growth past the pool"):
                assert not scene.extend("a")
            break
        if not scene.extend("a"):
            break
        scene.step()
    reached = int(scene.engine.snapshot()[0].lengths[0])
    scene.drain()
    scene.judge()
    assert reached == (3 * BLOCK if window == 100 else 10 * BLOCK)


@pytest.mark.requires(Capability.PREFIX_CACHE)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_prompt_found_whole_leaves_a_token_to_compute(play: Play, block_size: int) -> None:
    """b = 16, a prompt of 32 asked for twice: 16 are found, 16 run, and its second block is kept once."""
    scene = play(usable_blocks=8, block_size=block_size)
    tokens = 2 * block_size
    text = scene.prompts.of(("text", tokens))
    assert scene.admit("a", tokens, content=text).accepted
    scene.step()
    again = scene.admit("b", tokens, content=text)
    scene.step()
    scene.drain()
    scene.judge()
    assert 0 < again.scheduled_tokens - again.hit_tokens <= tokens
    assert tokens - block_size <= again.hit_tokens <= tokens - 1
    assert scene.column("cached") == tokens


@pytest.mark.parametrize("tokens", [63, 64, 65])
def test_a_prompt_of_the_greatest_length_has_one_verdict(play: Play, tokens: int) -> None:
    """Lmax = 64 in 4 blocks of 16: 63 and 64 tokens are let in and no 65th is; 65 are refused at arrival."""
    scene = play(usable_blocks=4, block_size=16, max_model_tokens=64)
    admission = judged_on_empty(scene, tokens)
    scene.step()
    if admission.accepted:
        for length in range(tokens, 64):
            assert scene.extend("a"), f"{length + 1} of 64 tokens fit"
            scene.step()
        if fits_empty_pool(scene.engine.spec.pools, 65) is False:
            with scene.unchanged("growth past the greatest length"):
                assert not scene.extend("a"), "65 tokens in 4 blocks of 16"
    else:
        assert admission.refusal is not None
        assert admission.refusal.reason is RefusalReason.NEVER_FITS
    scene.drain()
    scene.judge()


def test_decoding_adds_the_blocks_it_fills(play: Play) -> None:
    """b = 32, a prompt of 64 and 40 tokens of answer: 4 blocks at 104 tokens, not the prompt's 2."""
    scene = play(usable_blocks=8, block_size=32)
    assert scene.admit("a", 64).accepted
    scene.step()
    for _ in range(40):
        assert scene.extend("a")
        scene.step()
    (shot, *_) = scene.engine.snapshot()
    judge_counts(scene.engine.spec.pools, scene.engine.snapshot())
    assert shot.lengths.tolist() == [104]
    scene.drain()
    scene.judge()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_growth_past_a_full_pool_slides_or_is_refused(play: Play, block_size: int) -> None:
    """Two pages of 4, token 9: a window slides, anything else is refused and keeps its eight tokens."""
    scene = play(usable_blocks=2, block_size=block_size, max_model_tokens=2 * block_size)
    assert scene.admit("a", 2 * block_size).accepted
    scene.step()
    (before, *_) = scene.engine.snapshot()
    if fits_empty_pool(scene.engine.spec.pools, 2 * block_size + 1) is False:
        with scene.unchanged("growth past the pool"):
            assert not scene.extend("a"), f"two blocks hold {2 * block_size + 1} tokens"
    else:
        scene.extend("a")
    scene.step()
    (after, *_) = scene.engine.snapshot()
    assert after.lengths[0] >= before.lengths[0]
    scene.drain()
    scene.judge()
