"""What each generation of transformers really allocates, against values worked out by hand.

C takes ``(n + 1) // b + 1`` blocks for a prompt of n tokens, D ``ceil(n / b)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, RefusalReason
from kvsuite.errors import InvariantViolation, UnsupportedBlockSize
from kvsuite.ledger.atomic import state_digest
from kvsuite.replay.scene import Scene
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun
from tests.adapters.transformers.built import transformers

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine

B = 16
OLD, NEW, NEWEST = "5.17.0", "5.18.0", "5.24.0"
EITHER = pytest.mark.parametrize("version", [OLD, NEWEST])


def run(stop: int, start: int = 0, key: int = 7) -> TokenRun:
    return TokenRun(TokenContent((key,), ()), start, stop)


def blocks_held(engine: Engine, tokens: int) -> int:
    name = RequestId(f"of {tokens}")
    assert engine.admit(name, run(tokens, key=tokens), first_chunk_tokens=tokens).accepted
    (shot,) = engine.snapshot()
    return len(shot.table(shot.request_ids.index(name)))


@pytest.mark.parametrize(
    ("version", "expected"),
    [("5.0.0", [2, 2, 2, 3, 3, 3]), (OLD, [2, 2, 2, 3, 3, 3])]
    + [(version, [1, 1, 2, 2, 2, 3]) for version in (NEW, NEWEST)],
)
def test_blocks_around_a_boundary(version: str, expected: list[int]) -> None:
    engine = transformers(version)
    assert [blocks_held(engine, n) for n in (15, 16, 17, 31, 32, 33)] == expected


def test_the_extra_block_breaks_the_slack_law() -> None:
    """15 tokens in 2 blocks of 16: 17 slots are empty, and nothing declares them."""
    scene = Scene(transformers(OLD))
    scene.admit("a", B - 1)
    scene.step()
    with pytest.raises(InvariantViolation, match=r"slack at step 0 .* slack 17, expected 0 to 15"):
        scene.judge()


def test_the_newest_version_is_told_apart_by_its_effective_values() -> None:
    old, new = transformers(OLD).spec, transformers(NEWEST).spec
    assert (old.version, old.effective["generation"], old.effective["eviction"]) == (OLD, "C", "newest_first")
    assert (new.version, new.effective["generation"], new.effective["eviction"]) == (NEWEST, "D", "flush_all")
    assert old.claims(Capability.FORK)
    assert not old.claims(Capability.RESET_CACHE)
    assert new.claims(Capability.RESET_CACHE)


@EITHER
def test_trash_blocks_are_never_given_out(version: str) -> None:
    """The first two ids since 5.18, the last two before."""
    engine = transformers(version, usable_blocks=6)
    (empty,) = engine.snapshot()
    trash = [0, 1] if version == NEWEST else [6, 7]
    assert empty.never_allocatable.tolist() == trash
    assert sorted(empty.free.tolist()) == [block for block in range(8) if block not in trash]
    assert blocks_held(engine, 6 * B - 2) == 6
    (full,) = engine.snapshot()
    assert sorted(full.table_blocks.tolist()) == sorted(empty.free.tolist())


@EITHER
def test_a_fork_copies_the_part_full_block_alone(version: str) -> None:
    """20 tokens: 16 are shared, and 4 are copied to a block of the child's own."""
    engine = transformers(version)
    scene = Scene(engine)
    scene.admit("parent", 20)
    scene.step()
    assert scene.fork("parent", "child")
    (shot,) = engine.snapshot()
    parent, child = shot.table(0).tolist(), shot.table(1).tolist()
    assert len(parent) == len(child) == 2
    assert parent[0] == child[0]
    (copy,) = engine.take_ops().copies
    assert (copy.source, copy.target, copy.num_tokens) == (parent[1], child[1], 4)
    counts = dict(zip(shot.ref_count_ids.tolist(), shot.ref_counts.tolist(), strict=True))  # type: ignore[union-attr]
    assert counts == {parent[0]: 2, parent[1]: 1, child[1]: 1}


def fill_then_fork_twice(version: str) -> Scene:
    """10 blocks: 5 for 70 tokens, 4 for 60, 1 for the first child; a second child finds none."""
    scene = Scene(transformers(version, usable_blocks=10))
    scene.admit("parent", 70)
    scene.admit("other", 60)
    scene.step()
    assert scene.fork("parent", "first")
    with scene.unchanged("a second fork"):
        assert not scene.fork("parent", "second")
    return scene


def test_a_failed_fork_leaks_in_the_first_release() -> None:
    """The parent's 4 full blocks keep the holder that never came to be, and rest no more: 8 of 12 do."""
    scene = fill_then_fork_twice("5.0.0")
    scene.drain()
    laws = {violation.invariant: violation.message for violation in scene.found()}
    assert laws["atomic"] == "a second fork was refused and changed ref_counts"
    assert laws["drain"] == "8 of 12 blocks rest with nothing running"
    assert "has ref_count 1, expected 0: held by nobody (4 blocks are wrong)" in laws["recount"]


@pytest.mark.parametrize("version", ["5.12.1", OLD, NEW, NEWEST])
def test_a_failed_fork_leaves_nothing_since_it_is_asked_for(version: str) -> None:
    scene = fill_then_fork_twice(version)
    scene.drain()
    assert {violation.invariant for violation in scene.found()} == set()


@pytest.mark.parametrize(("version", "hit"), [(OLD, 31), (NEWEST, 16)])
def test_a_prompt_of_whole_blocks_that_is_cached(version: str, hit: int) -> None:
    """32 tokens again: C finds all and computes the last in the shared block, D computes the last block."""
    engine = transformers(version)
    first = RequestId("first")
    assert engine.admit(first, run(32), first_chunk_tokens=32).hit_tokens == 0
    engine.launched(0)
    engine.done(0, {first: 32})
    assert engine.admit(RequestId("again"), run(32), first_chunk_tokens=32).hit_tokens == hit


@EITHER
def test_a_block_computed_twice_is_kept_once(version: str) -> None:
    engine = transformers(version)
    names = [RequestId("a"), RequestId("b")]
    for name in names:
        assert engine.admit(name, run(20), first_chunk_tokens=20).hit_tokens == 0
    (before,) = engine.snapshot()
    engine.launched(0)
    engine.done(0, dict.fromkeys(names, 20))
    (after,) = engine.snapshot()
    assert before.table(0)[0] != before.table(1)[0]
    assert after.table(0).tolist() == before.table(0).tolist()
    assert after.table(1).tolist() == [before.table(0)[0], before.table(1)[1]]
    assert len(after.free) == len(before.free) + 1


@pytest.mark.parametrize(("version", "left"), [(OLD, 7), (NEWEST, 0)])
def test_what_becomes_of_cached_blocks_under_pressure(version: str, left: int) -> None:
    """10 blocks, 8 of them cached, and 3 wanted of 2 free: C drops the one it lacks, D all."""
    engine = transformers(version, usable_blocks=10)
    scene = Scene(engine)
    scene.admit("gone", 8 * B + 1)
    scene.step()
    scene.release("gone")
    (shot,) = engine.snapshot()
    assert (len(shot.cached), len(shot.free)) == (8, 2)
    scene.admit("next", 3 * B - 3)
    (shot,) = engine.snapshot()
    assert len(shot.cached) == left
    assert len(shot.table_blocks) + len(shot.free) + len(shot.cached) == 10


def test_the_safety_margin_drops_every_cached_block() -> None:
    """20 blocks, 18 cached: 2 are free, a tenth, and a step with a margin of 15 % leaves none cached."""
    for percent, cached in ((15, 0), (10, 18)):
        engine = transformers(NEWEST, usable_blocks=20, options={"safety_margin_percent": percent})
        scene = Scene(engine)
        scene.admit("gone", 18 * B + 1)
        scene.step()
        scene.release("gone")
        engine.done(1, {})
        (shot,) = engine.snapshot()
        assert (len(shot.cached), len(shot.free)) == (cached, 20 - cached)


@EITHER
def test_a_refused_prompt_with_hits_leaves_the_eviction_order(version: str) -> None:
    engine = transformers(version, usable_blocks=10)
    scene = Scene(engine)
    content = TokenContent((7,), ())
    for key, name in ((7, "a"), (8, "b")):
        scene.admit(name, 2 * B + 2, content=TokenContent((key,), ()))
    scene.step()
    scene.release("a")
    scene.release("b")
    scene.admit("holder", 5 * B)
    before = state_digest(engine.snapshot())
    refused = engine.admit(RequestId("a again"), TokenRun(content, 0, 9 * B), first_chunk_tokens=B).refusal
    assert refused is not None
    assert refused.reason is RefusalReason.NO_BLOCKS
    assert state_digest(engine.snapshot()) == before


@pytest.mark.parametrize(("version", "wanted"), [(OLD, 11), (NEWEST, 11)])
def test_what_is_larger_than_the_empty_pool_is_told_so(version: str, wanted: int) -> None:
    """161 tokens of 10 blocks of 16, which both generations count as 11."""
    engine = transformers(version, usable_blocks=10)
    refusal = engine.admit(RequestId("a"), run(161), first_chunk_tokens=B).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.needed_blocks) == (RefusalReason.NEVER_FITS, wanted)


def test_a_block_size_that_the_engine_refuses() -> None:
    with pytest.raises(UnsupportedBlockSize, match=r"takes blocks of 4 tokens or more, 2 were asked for"):
        transformers(OLD, block_size=2)
    assert blocks_held(transformers(NEWEST, block_size=2), 3) == 2
