"""Nothing is left behind of a request that goes while its blocks are loaded or copied out.

The states: looked up, loading, loaded and still waiting, and being copied out; cancel and acknowledgement in
every order, or no acknowledgement at all and the clock past the deadline.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, RefusalReason, Release
from kvsuite.replay.tier_verbs import ask, begin, compute, end, evict, flush, judge_pins, of, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 8
NEVER_US = 10**12
"""A time by which every deadline has passed."""
LEAVING = [Release.CANCEL, Release.PREEMPT, Release.ERROR]
pytestmark = pytest.mark.requires(Capability.HOST_TIER, Capability.PREFIX_CACHE)


def loading(scene: Scene) -> None:
    """Bring a request of 4 blocks to where 3 of them are on their way from the host."""
    store(scene, "a", 3 * B + 1)
    evict(scene)
    refusal = scene.admit("again", 3 * B + 1, content=of(scene, "a")).refusal
    assert refusal is not None, "a prompt that only the host holds is admitted before it is loaded"
    assert refusal.reason is RefusalReason.LOADING
    assert len(begin(scene)) == 3


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_lost_acknowledgement_gives_back_at_the_deadline(
    kv_scene: Callable[..., Scene], cancelled: bool
) -> None:
    """The sender dies: every block of both tiers is reclaimable once the deadline has passed."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    loading(scene)
    if cancelled:
        scene.cancel("again")
    scene.transfers.clear()
    scene.tick(NEVER_US)
    begin(scene)
    admission = scene.admit("all", scene.engine.spec.pools[0].usable_blocks * B)
    end(scene)
    assert admission.accepted, scene.lifecycle


@pytest.mark.parametrize("order", list(permutations(["cancel", "first", "others"])))
def test_a_load_ends_whether_its_request_is_there_or_not(
    kv_scene: Callable[..., Scene], order: tuple[str, ...]
) -> None:
    """Cancel and the acknowledgements of three blocks in every order: all blocks back, no pin left."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    loading(scene)
    acknowledged = {"first": scene.transfers[:1], "others": scene.transfers[1:]}
    for event in order:
        if event == "cancel":
            scene.cancel("again")
        for transfer in acknowledged.get(event, []):
            scene.acknowledge(transfer)
        judge_pins(scene)
    end(scene)


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("reason", [Release.FINISH, *LEAVING], ids=str)
def test_what_is_copied_out_is_let_go(
    kv_scene: Callable[..., Scene], reason: Release, order: tuple[int, ...]
) -> None:
    """Three blocks are copied out after the request has left; as each copy ends, both its ends come free."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 3 * B + 1, reason)
    stores = begin(scene)
    assert len(stores) == 3
    for place in order:
        scene.acknowledge(stores[place])
        judge_pins(scene)
    end(scene)


def test_a_request_cancelled_after_its_load_and_before_its_turn(kv_scene: Callable[..., Scene]) -> None:
    """Received, still queued, cancelled: its blocks are reclaimable like any cached ones."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    loading(scene)
    for transfer in list(scene.transfers):
        scene.acknowledge(transfer)
    begin(scene)
    scene.cancel("again")
    begin(scene)
    scene.judge()
    assert scene.column("free") + scene.column("cached") == scene.engine.spec.pools[0].usable_blocks * B
    end(scene)


@pytest.mark.parametrize("order", list(permutations(["resume", "acknowledge", "cancel"])))
def test_a_cancel_while_a_copy_is_under_way(kv_scene: Callable[..., Scene], order: tuple[str, ...]) -> None:
    """Preempted and being copied out, the request comes back, or not, and is cancelled, in every order."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    compute(scene, "a", 2 * B + 1, Release.PREEMPT)
    stores = begin(scene)
    assert len(stores) == 2
    for event in order:
        if event == "resume":
            assert scene.admit("first a", 2 * B + 1, content=of(scene, "a")).hit_tokens == 2 * B
        elif event == "acknowledge":
            for transfer in stores:
                scene.acknowledge(transfer)
        elif "first a" in scene.running:
            scene.release("first a", Release.CANCEL)
        else:
            scene.cancel("first a")
        judge_pins(scene)
    end(scene)


@pytest.mark.parametrize("moment", ["before the load begins", "under way", "ended"])
def test_a_look_up_is_let_go_by_cancel(kv_scene: Callable[..., Scene], moment: str) -> None:
    """Looked up on the host and cancelled before it has a block of its own: no lock is left there."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    store(scene, "a", 2 * B + 1)
    evict(scene)
    assert scene.admit("again", 2 * B + 1, content=of(scene, "a")).refusal is not None
    if moment == "under way":
        begin(scene)
    if moment == "ended":
        flush(scene)
    scene.cancel("again")
    flush(scene)
    judge_pins(scene, [])
    assert ask(scene, "later", "a", 2 * B + 1).accepted
    scene.step()
    end(scene)
