"""Nothing is left behind: cancel, preempt, fail or finish, in every state and in every order.

The states: waiting, admitted and not yet run, in the first and second chunk of a prompt, on a block boundary,
decoding, sharing, in flight. What is left must be what a finish at the same point leaves.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.registry import open_engine as open_any
from kvsuite.ledger.invariants import raise_violations
from kvsuite.ledger.lifetimes import blocks_in_use, metadata, slope
from kvsuite.ledger.relations import agree, standing
from kvsuite.replay.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

B = 4
NUM_BLOCKS = 8
LEAVING = [Release.CANCEL, Release.PREEMPT, Release.ERROR]


def admitted(scene: Scene) -> None:
    """Admitted whole, nothing computed."""
    scene.admit("a", 3 * B - 1)


def first_chunk(scene: Scene) -> None:
    """Its first chunk computed, which ends inside a block."""
    scene.admit("a", 3 * B - 1, first_chunk=B + 1)
    scene.step()


def second_chunk(scene: Scene) -> None:
    """Its second chunk scheduled."""
    first_chunk(scene)
    scene.extend("a", B)


def on_a_boundary(scene: Scene) -> None:
    """Computed, and its last block exactly full."""
    scene.admit("a", 2 * B)
    scene.step()


def decoding(scene: Scene) -> None:
    """Two tokens beyond its prompt, over a block boundary."""
    on_a_boundary(scene)
    for _ in range(2):
        scene.extend("a")
        scene.step()


def sharing(scene: Scene) -> None:
    """Holding a prefix that another sequence holds too."""
    prompt = scene.prompts.of(("system", 2 * B), ("question", 1))
    scene.admit("other", 2 * B + 1, content=prompt)
    scene.step()
    scene.admit("a", 2 * B + 2, content=prompt)
    scene.step()


STATES = [admitted, first_chunk, second_chunk, on_a_boundary, decoding, sharing]


@pytest.mark.requires(Capability.CHUNKED_PREFILL, Capability.PREEMPTION)
@pytest.mark.parametrize("state", STATES, ids=[state.__name__ for state in STATES])
@pytest.mark.parametrize("reason", LEAVING, ids=[reason.value for reason in LEAVING])
def test_leaving_at_any_point_is_finishing_there(
    kv_scene: Callable[..., Scene], state: Callable[[Scene], None], reason: Release
) -> None:
    """Whoever is cancelled, preempted or failed leaves the pools as one who finished at that point."""
    left = []
    for why in (reason, Release.FINISH):
        scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
        state(scene)
        scene.release("a", why)
        scene.step()
        scene.drain()
        scene.judge()
        left.append([standing(snapshot) for snapshot in scene.engine.snapshot()])
    for one, other in zip(*left, strict=True):
        raise_violations(list(agree("cancelled", f"{reason.value} and finish", one, other)))


@pytest.mark.requires(Capability.LOOKAHEAD, Capability.PREEMPTION)
@pytest.mark.parametrize("ahead", [1, B + 1])
@pytest.mark.parametrize("reason", LEAVING, ids=[reason.value for reason in LEAVING])
def test_drafts_that_no_step_settled_leave_too(
    kv_scene: Callable[..., Scene], reason: Release, ahead: int
) -> None:
    """It leaves in the step that took blocks for its drafts: those come back with the rest."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    ahead = min(ahead, scene.engine.snapshot()[0].lookahead_tokens)
    assert scene.admit("a", B - 1).accepted
    scene.step()
    assert scene.extend("a", lookahead=ahead)
    scene.release("a", reason)
    scene.step()
    scene.drain()
    scene.judge()


def test_a_waiting_request_that_is_cancelled_leaves_nothing(kv_scene: Callable[..., Scene]) -> None:
    """It came when the pool was full, and never had a block: no trace of it, then or later."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    usable = scene.engine.spec.pools[0].usable_blocks
    assert scene.admit("a", usable * B).accepted
    with scene.unchanged("the admission of b"):
        assert scene.admit("b", B).refusal is not None
    with scene.unchanged("the cancel of b, which was"):
        scene.cancel("b")
    scene.step()
    scene.drain()
    scene.judge()


def test_a_refused_request_takes_nothing_from_any_pool(kv_scene: Callable[..., Scene]) -> None:
    """Refused ten times over for want of token room: not one state slot, host block or reference less."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    usable = scene.engine.spec.pools[0].usable_blocks
    assert scene.admit("a", (usable - 1) * B).accepted
    for attempt in range(10):
        with scene.unchanged(f"admission {attempt} of b"):
            assert scene.admit("b", 2 * B).refusal is not None
    scene.step()
    scene.drain()
    scene.judge()


def test_a_warm_up_that_fails_half_way_gives_all_back(kv_scene: Callable[..., Scene]) -> None:
    """Two dummies of two blocks in a pool of three: the second is refused, and three are free again."""
    scene = kv_scene(block_size=B, num_blocks=4)
    usable = scene.engine.spec.pools[0].usable_blocks
    assert scene.admit("dummy 0", 2 * B).accepted
    rest = usable - 2
    with scene.unchanged("the second dummy"):
        assert scene.admit("dummy 1", (rest + 1) * B).refusal is not None
    scene.release("dummy 0", Release.ERROR)
    scene.drain()
    scene.judge()
    assert len(scene.engine.snapshot()[0].free) == usable


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_a_prompt_removed_before_it_is_settled_is_not_found(kv_scene: Callable[..., Scene]) -> None:
    """Never computed, so never to be hit: its blocks are free, without a key."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    prompt = scene.prompts.of(("prompt", 3 * B))
    scene.admit("a", 3 * B, content=prompt)
    scene.release("a", Release.CANCEL)
    scene.step()
    admission = scene.admit("b", 3 * B, content=prompt)
    scene.step()
    scene.drain()
    scene.judge()
    assert admission.hit_tokens == 0


def test_fifty_cycles_leave_no_block_behind(kv_scene: Callable[..., Scene]) -> None:
    """Fifty times the same mixed traffic, drained each time: the slope of blocks in use is zero.

    Distinct prompts pile up as cached blocks, and those are not in use.
    """
    scene = kv_scene(block_size=B, num_blocks=64)
    usable = scene.engine.spec.pools[0].usable_blocks
    levels: list[int] = []
    refused: list[str] = []
    for cycle in range(50):
        refused += [
            f"{cycle}.{tokens}"
            for tokens in (1, B - 1, B, B + 1, 2 * B)
            if not scene.admit(f"{cycle}.{tokens}", tokens).accepted
        ]
        scene.step()
        for name in scene.running[1:]:
            scene.extend(name)
        scene.step()
        for name, reason in zip(scene.running, (*LEAVING, Release.FINISH, Release.FINISH), strict=False):
            scene.release(name, reason)
        levels.append(blocks_in_use(scene.engine.snapshot()[0], usable))
    scene.violations += slope(levels, str(scene.engine.spec.pools[0].key))
    scene.drain()
    scene.judge()
    assert not refused, f"refused in a pool that holds four such cycles: {refused[0]}"


def test_many_engines_leave_no_object_behind(engine_name: str) -> None:
    """Forty engines are opened, store a prompt, find it again, and are dropped: no object outlives them."""

    def use_one() -> None:
        scene = Scene(open_any(engine_name, EngineConfig(model_layout("tiny"), B, NUM_BLOCKS)))
        prompt = scene.prompts.of(("prompt", 10**6))
        for name in ("a", "b"):
            assert scene.admit(name, 2 * B + 1, content=prompt).accepted
            scene.step()
            scene.release(name)
        scene.judge()

    use_one()
    gc.collect()
    before, engines = len(gc.get_objects()), 40
    for _ in range(engines):
        use_one()
    gc.collect()
    raise_violations(list(metadata(before, len(gc.get_objects()), engines)))


@pytest.mark.requires(Capability.ASYNC_STEPS)
@pytest.mark.parametrize("reason", [Release.FINISH, *LEAVING], ids=str)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_left_in_flight_is_back_when_the_steps_are_done(
    kv_scene: Callable[..., Scene], reason: Release, in_flight: int
) -> None:
    """Released with one or two steps in flight: quarantined, and nothing of it once they are done."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS)
    scene.admit("a", 2 * B - 1)
    for _ in range(in_flight):
        scene.launch()
        assert scene.extend("a")
    scene.release("a", reason)
    for _ in range(in_flight):
        scene.settle()
    scene.step()
    scene.drain()
    scene.judge()
    assert scene.column("quarantined") == 0
