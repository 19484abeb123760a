"""A host tier: what is copied out comes back as it was, or not at all.

Every transfer pins both its ends until it ends, a copy that failed is never found, a full tier makes room,
and a reset covers all of it. The clock stands still unless a case moves it.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, RefusalReason, Release
from kvsuite.replay.tier_verbs import (
    ask,
    begin,
    compute,
    crowd_the_host,
    end,
    evict,
    flush,
    host_now,
    host_spec,
    judge_pins,
    of,
    room_tokens,
    store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 8
NEVER_US = 10**12
"""A time by which every deadline has passed."""
pytestmark = pytest.mark.requires(Capability.HOST_TIER, Capability.PREFIX_CACHE)


@pytest.mark.parametrize("tokens", [B - 1, B, B + 1, 2 * B, 2 * B + 1, 3 * B + 3])
def test_a_copy_comes_back_token_for_token(kv_scene: Callable[..., Scene], tokens: int) -> None:
    """Two prompts copied out, one asked for under pressure: its own floor((n - 1) / b) blocks are found."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", tokens)
    store(scene, "b", tokens)
    evict(scene)
    assert scene.admit("squatter", B).accepted
    admission = ask(scene, "again", "a", tokens)
    scene.step()
    assert scene.extend("again")
    scene.step()
    scene.judge()
    assert admission.hit_tokens == (tokens - 1) // B * B
    end(scene)


@pytest.mark.parametrize("how", ["failed", "expired", "expired, then answered"])
def test_a_failed_load_is_never_a_hit(kv_scene: Callable[..., Scene], how: str) -> None:
    """Two blocks were to be loaded and were not: nothing is found, all is computed."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    evict(scene)
    refusal = scene.admit("again", 2 * B + 1, content=of(scene, "a")).refusal
    assert refusal is not None, "a prompt that only the host holds is admitted before it is loaded"
    assert refusal.reason is RefusalReason.LOADING
    loads = begin(scene)
    if how != "failed":
        scene.tick(NEVER_US)
    for transfer in loads:
        if how == "expired":
            scene.transfers.remove(transfer)
        else:
            scene.acknowledge(transfer, ok=False)
    admission = scene.admit("again", 2 * B + 1, content=of(scene, "a"))
    assert admission.accepted, f"a failed load keeps the request waiting: {scene.lifecycle[-1]}"
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 0
    end(scene)


def test_a_late_answer_ends_no_other_transfer(kv_scene: Callable[..., Scene]) -> None:
    """Two loads expire, two others begin, and then the first are answered: the others are still under way."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    for prompt in ("a", "b"):
        store(scene, prompt, 2 * B + 1)
    evict(scene)
    assert scene.admit("again a", 2 * B + 1, content=of(scene, "a")).refusal is not None
    late = begin(scene)
    scene.tick(NEVER_US)
    scene.transfers.clear()
    assert scene.admit("again b", 2 * B + 1, content=of(scene, "b")).refusal is not None
    under_way = begin(scene)
    assert len(late) == len(under_way) == 2
    scene.transfers[:0] = late
    for transfer in late:
        scene.acknowledge(transfer, ok=False)
    judge_pins(scene)
    for transfer in under_way:
        scene.acknowledge(transfer)
    admission = ask(scene, "again b", "b", 2 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 2 * B
    end(scene)


@pytest.mark.parametrize("how", ["failed", "expired"])
def test_a_failed_store_leaves_no_copy(kv_scene: Callable[..., Scene], how: str) -> None:
    """What never reached the host is not found there."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 2 * B + 1)
    stores = begin(scene)
    assert stores, "nothing of a finished prompt is copied out"
    if how == "expired":
        scene.tick(NEVER_US)
        scene.transfers.clear()
    else:
        for transfer in stores:
            scene.acknowledge(transfer, ok=False)
    assert scene.admit("filler", room_tokens(scene)).accepted
    scene.release("filler", Release.CANCEL)
    admission = ask(scene, "again", "a", 2 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 0
    end(scene)


def test_both_ends_are_pinned_until_the_transfer_ends(kv_scene: Callable[..., Scene]) -> None:
    """A load is under way while the host is filled with other prompts: what arrives is what was stored."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    evict(scene)
    scene.admit("again", 2 * B + 1, content=of(scene, "a"))
    loads = begin(scene)
    assert len(loads) == 2
    crowd_the_host(scene)
    for transfer in loads:
        scene.acknowledge(transfer)
    admission = ask(scene, "again", "a", 2 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 2 * B
    end(scene)


def test_a_look_up_is_checked_again_at_use(kv_scene: Callable[..., Scene]) -> None:
    """Loaded, then evicted from both tiers before the request is admitted: a shorter hit, and no crash."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    evict(scene)
    assert scene.admit("again", 2 * B + 1, content=of(scene, "a")).refusal is not None
    flush(scene)
    crowd_the_host(scene)
    evict(scene)
    admission = ask(scene, "again", "a", 2 * B + 1)
    assert admission.accepted
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 0
    end(scene)


def test_an_end_is_unpinned_once(kv_scene: Callable[..., Scene]) -> None:
    """A prompt is found on the device while it is copied out: when that ends, one holder is left of two."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 2 * B + 1)
    begin(scene)
    assert scene.admit("b", 2 * B + 1, content=of(scene, "a")).hit_tokens == 2 * B
    for transfer in list(scene.transfers):
        scene.acknowledge(transfer)
    scene.step()
    scene.extend("b")
    scene.step()
    end(scene)


def test_a_prompt_sent_twice_is_stored_once(kv_scene: Callable[..., Scene]) -> None:
    """The second copy of a known key moves nothing and pins nothing."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    compute(scene, "a", 2 * B + 1)
    moved = flush(scene)
    judge_pins(scene, [])
    scene.judge()
    assert moved == 0
    assert len(host_now(scene).cached) == 2
    end(scene)


@pytest.mark.parametrize("acknowledged", ["before the cancel", "after the cancel"])
def test_a_preempted_request_that_is_cancelled_leaves_the_host(
    kv_scene: Callable[..., Scene], acknowledged: str
) -> None:
    """Its copies are nobody's any more: reclaimable at once."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 4 * B, Release.PREEMPT)
    if acknowledged == "before the cancel":
        flush(scene)
        scene.cancel("first a")
    else:
        begin(scene)
        scene.cancel("first a")
    flush(scene)
    judge_pins(scene, [])
    scene.step()
    scene.judge()
    host = host_now(scene)
    assert len(host.free) + len(host.cached) == host_spec(scene).usable_blocks
    end(scene)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_transfers_may_end_in_any_order(kv_scene: Callable[..., Scene], order: tuple[int, ...]) -> None:
    """Three stores, then three loads, acknowledged in the same order."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 3 * B + 1)
    for load in (False, True):
        if load:
            evict(scene)
            scene.admit("again", 3 * B + 1, content=of(scene, "a"))
        begun = begin(scene)
        assert len(begun) == 3
        for place in order:
            scene.acknowledge(begun[place])
            judge_pins(scene)
        scene.judge()
    admission = ask(scene, "again", "a", 3 * B + 1)
    scene.step()
    scene.judge()
    assert admission.hit_tokens == 3 * B
    end(scene)
