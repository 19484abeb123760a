"""In use is in use: no block is handed out, evicted or overwritten while somebody may still touch it.

Somebody is a live sequence, a step that was launched and is not done, or a transfer under way. What comes
of a fault here is wrong text with status 200, so these cases read every token back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.counts import kept_back
from kvsuite.replay.tier_verbs import ask, begin, compute, end, evict, of, room_tokens, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 8
NEVER_US = 10**12
"""A time by which every deadline has passed."""
REASONS = [Release.FINISH, Release.CANCEL, Release.PREEMPT]
tiers = pytest.mark.requires(Capability.HOST_TIER, Capability.PREFIX_CACHE)
in_flight = pytest.mark.requires(Capability.ASYNC_STEPS)


@pytest.mark.requires(Capability.SLIDING_WINDOW)
@pytest.mark.parametrize("ahead", [1, 2, B])
def test_a_window_lets_go_on_the_settled_count(kv_scene: Callable[..., Scene], ahead: int) -> None:
    """One token short of letting a block go, with tokens scheduled beyond: nothing is let go.

    With ``W + b - 2`` tokens settled, ``floor((W + b - 2 - W + 1) / b) = 0`` blocks have fallen out; the
    scheduled count would give 1. One token more is settled, and one block goes.
    """
    scene = kv_scene(block_size=B, num_blocks=32)
    spec = next(pool for pool in scene.engine.spec.pools if pool.kind is PoolKind.WINDOW)
    assert spec.window_tokens is not None
    pool = scene.engine.spec.pools.index(spec)
    settled = spec.window_tokens + spec.block_size - 2
    assert scene.admit("a", settled).accepted, scene.lifecycle[-1]
    scene.step()
    assert scene.extend("a", ahead)
    scene.step()
    assert scene.extend("a")
    scene.step()
    scene.judge()
    due = (settled + ahead - spec.window_tokens + 1) // spec.block_size
    assert scene.column("window_dropped", pool) == due * spec.block_size
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_two_equal_prompts_at_once_keep_their_own_blocks(kv_scene: Callable[..., Scene]) -> None:
    """Both computed in one step, so only one can be the cached one; the other goes on with its own blocks."""
    scene = kv_scene(block_size=B, num_blocks=2 * NUM_BLOCKS)
    prompt = scene.prompts.of(("prompt", 2 * B), ("end", 1))
    for name in ("a", "b"):
        assert scene.admit(name, 2 * B + 1, content=prompt).accepted
    scene.step()
    scene.step()
    assert scene.admit("c", room_tokens(scene)).accepted
    for _ in range(2):
        scene.step()
        assert scene.extend("b"), scene.lifecycle[-1]
    scene.release("a")
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PREFIX_CACHE, Capability.CHUNKED_PREFILL, Capability.PREEMPTION)
@pytest.mark.parametrize("reason", [Release.PREEMPT, Release.CANCEL], ids=["preempt", "cancel"])
def test_a_chunk_in_the_cache_is_gone_when_its_blocks_are_reused(
    kv_scene: Callable[..., Scene], reason: Release
) -> None:
    """Chunk 1 of 2 is published, its sequence leaves, and another takes the whole pool: nothing to find."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    usable = scene.engine.spec.pools[0].usable_blocks
    prompt = scene.prompts.of(("prompt", 10**6))
    scene.admit("a", 4 * B, content=prompt, first_chunk=2 * B)
    scene.step()
    scene.release("a", reason)
    kept = kept_back(scene.engine.spec)
    assert scene.admit("other", (usable - 3 - kept) * B).accepted
    assert scene.admit("small", 3 * B).accepted
    assert not kept or scene.extend("other", kept * B)
    scene.step()
    scene.release("small", Release.CANCEL)
    found = scene.admit("c", 2 * B + 1, content=prompt)
    scene.step()
    scene.drain()
    scene.judge()
    assert found.hit_tokens == 0


@tiers
def test_a_cancelled_load_keeps_its_target_until_it_ends(kv_scene: Callable[..., Scene]) -> None:
    """Cancelled while its blocks are written from outside: nobody else gets them before that is over."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 3 * B + 1)
    evict(scene)
    assert scene.admit("again", 3 * B + 1, content=of(scene, "a")).refusal is not None
    loads = begin(scene)
    assert len(loads) == 3
    scene.cancel("again")
    assert scene.admit("b", room_tokens(scene)).accepted
    scene.step()
    for transfer in loads:
        scene.acknowledge(transfer)
    scene.step()
    end(scene)


@tiers
@pytest.mark.parametrize("reason", REASONS, ids=[reason.value for reason in REASONS])
def test_a_block_that_is_copied_out_is_not_overwritten(
    kv_scene: Callable[..., Scene], reason: Release
) -> None:
    """The copy of a sequence that has left is under way while another takes all it can get."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 2 * B + 1, reason)
    stores = begin(scene)
    assert len(stores) == 2
    assert scene.admit("b", room_tokens(scene)).accepted
    scene.step()
    for transfer in stores:
        scene.acknowledge(transfer)
    scene.release("b", Release.CANCEL)
    evict(scene)
    admission = ask(scene, "c", "a", 2 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 2 * B
    end(scene)


@tiers
def test_a_load_that_ends_after_its_deadline_is_not_believed(kv_scene: Callable[..., Scene]) -> None:
    """The lease is over and the source was reused; an acknowledgement comes after all: nothing is found."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    evict(scene)
    assert scene.admit("again", 2 * B + 1, content=of(scene, "a")).refusal is not None
    loads = begin(scene)
    scene.tick(NEVER_US)
    scene.transfers.clear()
    for number in range(NUM_BLOCKS):
        store(scene, f"other {number}", B + 1)
    scene.transfers += loads
    for transfer in loads:
        scene.acknowledge(transfer)
    admission = ask(scene, "again", "a", 2 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 0
    end(scene)


@in_flight
@pytest.mark.parametrize("reason", REASONS, ids=[reason.value for reason in REASONS])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("greedy", [False, True])
def test_what_a_launched_step_uses_is_not_given_away(
    kv_scene: Callable[..., Scene], reason: Release, steps: int, greedy: bool
) -> None:
    """Released with steps in flight, while another takes one block, or all it can get, and is launched."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", 3 * B - 2)
    for _ in range(steps):
        scene.launch()
        assert scene.extend("a")
    scene.release("a", reason)
    assert scene.admit("b", room_tokens(scene) if greedy else 1).accepted
    scene.launch()
    for _ in range(steps + 1):
        scene.settle()
    scene.release("b")
    scene.step()
    scene.drain()
    scene.judge()


@in_flight
def test_quarantine_ends_with_the_last_step_in_flight(kv_scene: Callable[..., Scene]) -> None:
    """Two steps in flight at the release, the older one done: the younger one still reads."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", 3 * B - 2)
    scene.launch()
    assert scene.extend("a")
    scene.launch()
    scene.release("a", Release.CANCEL)
    scene.settle()
    assert scene.admit("b", room_tokens(scene)).accepted
    scene.launch()
    scene.settle()
    scene.settle()
    scene.step()
    scene.drain()
    scene.judge()


@in_flight
@pytest.mark.requires(Capability.PREEMPTION)
@pytest.mark.parametrize("reason", REASONS, ids=[reason.value for reason in REASONS])
def test_one_request_leaves_twice_with_a_step_in_flight(
    kv_scene: Callable[..., Scene], reason: Release
) -> None:
    """Preempted, resumed and gone again while step 0 runs: what it left first is still step 0's."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", B)
    scene.launch()
    scene.release("a", Release.PREEMPT)
    assert scene.admit("a", B + 1).accepted
    scene.launch()
    scene.release("a", reason)
    assert scene.admit("b", room_tokens(scene)).accepted
    scene.launch()
    for _ in range(3):
        scene.settle()
    scene.step()
    scene.drain()
    scene.judge()


@in_flight
def test_a_shared_block_outlives_the_one_who_left(kv_scene: Callable[..., Scene]) -> None:
    """Parent and child in flight, the parent released: what they share stays the child's."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", 2 * B + 1)
    scene.step()
    assert scene.fork("a", "b")
    assert scene.extend("b")
    scene.launch()
    scene.release("a")
    assert scene.extend("b")
    scene.launch()
    scene.settle()
    scene.settle()
    assert scene.extend("b")
    scene.step()
    scene.drain()
    scene.judge()
