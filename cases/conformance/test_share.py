"""Holders and forks: who holds a block, how often it is let go, and in which order a family may end.

A block counts once for each sequence that holds it. Whoever leaves, in whatever order, the others keep what
is theirs, and the last one gives everything back.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, Release
from kvsuite.ledger.prefix_keys import shared_alike
from kvsuite.ledger.sharing import (
    Rest,
    claimed_counts,
    fork_undone,
    full_blocks_shared,
    holder_counts,
    removal_orders_agree,
    tables_of,
)
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 32
BOUNDARY = [2 * B, 2 * B + 1, 3 * B - 1]
"""Fork points: ``n mod b`` is 0, 1 and ``b - 1``."""
forks = pytest.mark.requires(Capability.FORK, Capability.COPY_ON_WRITE)


def family(scene: Scene, shape: str, names: str, tokens: int) -> None:
    """Make one sequence and its forks: all of the first one (``flat``), or each of the one before it."""
    scene.admit(names[0], tokens)
    scene.step()
    for parent, child in pairwise(names):
        origin = names[0] if shape == "flat" else parent
        assert scene.fork(origin, child), f"fork of {origin} refused: {scene.lifecycle[-1]}"


def write_each(scene: Scene, names: str) -> None:
    """Let every sequence write its next token in one step."""
    for name in names:
        assert scene.extend(name), f"growth refused with blocks to spare: {scene.lifecycle[-1]}"
    scene.step()


@forks
@pytest.mark.parametrize("tokens", [1, B - 1, B, B + 1, 2 * B, 2 * B + 1])
@pytest.mark.parametrize("children", [1, 2, 7])
def test_each_holder_counts_once(kv_scene: Callable[..., Scene], children: int, tokens: int) -> None:
    """After m forks a block that all hold has m + 1 holders, whatever place it has in their tables."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    family(scene, "flat", "abcdefgh"[: children + 1], tokens)
    (snapshot, *_) = scene.engine.snapshot()
    shared = snapshot.table(0)[: tokens // B].tolist()
    due = holder_counts(tables_of(snapshot).values())
    assert {due[block] for block in shared if block not in snapshot.null_ids} <= {children + 1}
    scene.step()
    scene.drain()
    scene.judge()


@forks
def test_a_ring_of_blocks_is_let_go_once(kv_scene: Callable[..., Scene]) -> None:
    """vllm #1556: prompt of 12 in a window of 8, fork, the parent writes on, both finish.

    Each block is counted once a holder at the fork, so both ends give it back exactly once.
    """
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("parent", 3 * B)
    scene.step()
    assert scene.fork("parent", "child")
    for _ in range(B + 1):
        assert scene.extend("parent")
        scene.step()
    assert scene.extend("child")
    scene.step()
    (snapshot, *_) = scene.engine.snapshot()
    scene.release("parent")
    scene.step()
    scene.drain()
    scene.judge()
    nulls = set(snapshot.null_ids.tolist())
    held = holder_counts(set(table) - nulls for table in tables_of(snapshot).values())
    assert claimed_counts(snapshot) in (None, held)


@forks
def test_the_parent_keeps_its_blocks_when_the_child_leaves_first(kv_scene: Callable[..., Scene]) -> None:
    """tvm #16666: 32 tokens, fork at 32, the child goes, then the parent: no block is short of a holder."""
    scene = kv_scene(block_size=16, num_blocks=10)
    scene.admit("parent", 32)
    scene.step()
    assert scene.fork("parent", "child")
    scene.step()
    scene.release("child")
    scene.admit("other", 4 * 16)
    assert scene.extend("parent")
    scene.step()
    scene.release("parent")
    scene.step()
    scene.drain()
    scene.judge()


def judge_orders(scenes: dict[tuple[str, ...], Scene]) -> None:
    """Let what is left of each scene go, and expect the same blocks to rest whatever the order was."""
    ends: dict[tuple[str, ...], Rest] = {}
    for order, scene in scenes.items():
        scene.drain()
        ends[order] = Rest.of(scene.engine.snapshot()[0])
    last = scenes[next(reversed(scenes))]
    last.violations += removal_orders_agree(last.engine.spec.pools[0].key, ends, last.step_number)
    for scene in reversed(scenes.values()):
        scene.judge()


@forks
def test_three_generations_leave_in_any_order(kv_scene: Callable[..., Scene]) -> None:
    """tvm #17045: A, B of A, C of B, let go in all 6 orders: empty after each."""
    scenes: dict[tuple[str, ...], Scene] = {}
    for order in permutations("abc"):
        scenes[order] = scene = kv_scene(block_size=16, num_blocks=8)
        family(scene, "chain", "abc", 32)
        scene.step()
        for name in order:
            scene.release(name)
            scene.step()
    judge_orders(scenes)


@forks
@pytest.mark.parametrize("shape", ["flat", "chain"])
@pytest.mark.parametrize("tokens", BOUNDARY)
def test_all_removal_orders_end_equal(kv_scene: Callable[..., Scene], shape: str, tokens: int) -> None:
    """4 members that all wrote after their fork, let go in all 24 orders: the same blocks rest at the end."""
    scenes: dict[tuple[str, ...], Scene] = {}
    for order in permutations("abcd"):
        scenes[order] = scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
        family(scene, shape, "abcd", tokens)
        write_each(scene, "abcd")
        for name in order:
            scene.release(name)
    judge_orders(scenes)


@forks
@pytest.mark.parametrize("tokens", BOUNDARY)
@pytest.mark.parametrize("reason", [Release.FINISH, Release.CANCEL, Release.ERROR])
def test_a_fork_that_is_taken_back_is_nothing(
    kv_scene: Callable[..., Scene], tokens: int, reason: Release
) -> None:
    """A child that goes before it writes leaves tables, counts and resting blocks as they were."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("parent", tokens)
    scene.step()
    before = scene.engine.snapshot()
    assert scene.fork("parent", "child")
    scene.release("child", reason)
    after = scene.engine.snapshot()
    for old, new in zip(before, after, strict=True):
        scene.violations += fork_undone(old.key, old, new, scene.step_number)
    assert scene.extend("parent", B + 1)
    scene.step()
    scene.drain()
    scene.judge()


@forks
def test_a_middle_child_may_go_before_its_first_step(kv_scene: Callable[..., Scene]) -> None:
    """A, B of A, C of B; B is cancelled before any of them wrote: what C reads is still A's."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    family(scene, "chain", "abc", B + 3)
    scene.release("b", Release.CANCEL)
    assert scene.admit("other", B).accepted
    scene.step()
    write_each(scene, "ac")
    scene.drain()
    scene.judge()


@forks
@pytest.mark.parametrize("tokens", BOUNDARY)
def test_full_blocks_stay_shared(kv_scene: Callable[..., Scene], tokens: int) -> None:
    """After all wrote past the fork point, its ``floor(n / b)`` full blocks are still one for all."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    family(scene, "flat", "abcd", tokens)
    for _ in range(B + 1):
        write_each(scene, "abcd")
    for pool, snapshot in zip(scene.engine.spec.pools, scene.engine.snapshot(), strict=True):
        scene.violations += full_blocks_shared(pool, tables_of(snapshot), tokens, scene.step_number)
    scene.drain()
    scene.judge()


@forks
def test_forks_of_forks_share_as_far_as_they_agree(kv_scene: Callable[..., Scene]) -> None:
    """Four generations, each two tokens further: everyone keeps reading its own line of descent."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", B + 1)
    scene.step()
    for parent, child in zip("abc", "bcd", strict=True):
        assert scene.fork(parent, child)
        for _ in range(2):
            write_each(scene, "abcd"[: "abcd".index(child) + 1])
    for name in "bdca":
        scene.release(name)
        scene.step()
    scene.drain()
    scene.judge()


def test_the_last_slot_is_let_go_once(kv_scene: Callable[..., Scene]) -> None:
    """sglang #12224: blocks of 1, a prompt of 5 decodes to its end: each id rests once."""
    scene = kv_scene(block_size=1, num_blocks=16)
    for round_ in range(3):
        name = f"r{round_}"
        scene.admit(name, 5)
        scene.step()
        for _ in range(3):
            assert scene.extend(name)
            scene.step()
        scene.release(name)
        scene.step()
    scene.admit("all", scene.engine.spec.pools[0].usable_blocks)
    scene.step()
    scene.drain()
    scene.judge()


def test_a_session_closed_and_opened_again_shares_no_block_by_mistake(kv_scene: Callable[..., Scene]) -> None:
    """sglang #28754: extend, close, open again, extend, beside another one: no block in two tables.

    Counts still balance where a block has two owners and another has none; ids show it.
    """
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    words = scene.prompts.of(("session", B + 2))
    scene.admit("first", B + 2, content=words)
    scene.step()
    assert scene.extend("first")
    scene.step()
    scene.release("first")
    scene.admit("other", B + 3)
    scene.admit("again", B + 3, content=words)
    scene.step()
    contents = {RequestId("again"): words, RequestId("other"): scene.prompts.of(("only other", B + 3))}
    for _ in range(B):
        assert scene.extend("again")
        assert scene.extend("other")
        scene.step()
    (pool, *_), (snapshot, *_) = scene.engine.spec.pools, scene.engine.snapshot()
    lengths = dict.fromkeys(contents, 2 * B + 3)
    scene.violations += shared_alike(
        pool, tables_of(snapshot), contents, lengths, scene.step_number, null_ids=snapshot.null_ids.tolist()
    )
    scene.drain()
    scene.judge()


def test_free_ids_come_once_and_are_never_null(kv_scene: Callable[..., Scene]) -> None:
    """vllm-ascend #15990: sequences of many lengths go out of order; the free list then fills one request.

    A placeholder or an id given back twice in the free list would be handed out with it.
    """
    scene = kv_scene(block_size=B, num_blocks=16)
    usable = scene.engine.spec.pools[0].usable_blocks
    for name, tokens in zip("abcd", (B - 1, 2 * B, 2 * B + 1, 3 * B), strict=True):
        scene.admit(name, tokens)
    scene.step()
    for _ in range(B):
        for name in "ad":
            assert scene.extend(name)
        scene.step()
    for name in "bdac":
        scene.release(name)
        scene.step()
    scene.admit("all", usable * B)
    (snapshot, *_) = scene.engine.snapshot()
    scene.step()
    scene.drain()
    scene.judge()
    (table,) = tables_of(snapshot).values()
    assert len(set(table)) == usable
    assert not set(table) & set(snapshot.never_allocatable.tolist())
