"""Relations between two runs: what must come out alike, whatever the right value is. No oracle is asked."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, Release, SupportsResetCache
from kvsuite.ledger.invariants import raise_violations
from kvsuite.ledger.relations import agree, same_ledger, sharing_costs_nothing, standing
from kvsuite.replay.driver import replay
from kvsuite.replay.worker import ProbeWorker
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvsuite.ledger.invariants import Violation
    from kvsuite.ledger.relations import Standing
    from kvsuite.plugin.replays import EngineOpener, Replayer
    from kvsuite.replay.scene import Scene

    Play = Callable[..., Scene]

BLOCK = 4
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 21]


def expect_none(*laws: Iterable[Violation]) -> None:
    """Raise what the laws found."""
    raise_violations([violation for law in laws for violation in law])


@pytest.fixture
def play(kv_scene: Play) -> Play:
    """Play a scene on a pool with room for everybody."""
    return lambda num_blocks=64: kv_scene(
        block_size=BLOCK, num_blocks=num_blocks, max_model_tokens=num_blocks * BLOCK
    )


def ended(scene: Scene, *prompts: tuple[str, int]) -> Standing:
    """Let everybody go, ask for prompts again that go on otherwise, and say how the pool stands."""
    scene.drain()
    found = {}
    for name, tokens in prompts:
        content = scene.prompts.of((f"only {name}", tokens), ("asked again", 1))
        again = scene.admit(f"{name} again", tokens + 1, content=content, max_tokens=tokens + 1)
        found[name] = again.hit_tokens
    scene.step()
    scene.drain()
    shot = scene.engine.snapshot()[0]
    scene.judge()
    return standing(shot, found)


def test_finish_orders_commute(play: Play) -> None:
    """Three sequences with a common prefix, ended in all 6 orders: the pool stands the same."""

    def run(order: tuple[str, ...]) -> Standing:
        scene = play()
        for name in ("a", "b", "c"):
            scene.admit(
                name, 14, max_tokens=14, content=scene.prompts.of(("only common", 8), (f"only {name}", 6))
            )
            scene.step()
        for name in order:
            scene.release(name)
            scene.step()
        return ended(scene, ("common", 8), ("other", 9))

    orders = list(permutations("abc"))
    first = run(orders[0])
    for order in orders[1:]:
        expect_none(agree("commute", f"ends in the orders {orders[0]} and {order}", first, run(order)))


@pytest.mark.requires(Capability.CHUNKED_PREFILL)
@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_chunked_prefill_equals_one_shot(play: Play, tokens: int, chunk: int) -> None:
    """The same blocks are held after the prompt, and the same prefix is found afterwards."""

    def run(chunk: int) -> tuple[Standing, Standing]:
        scene = play()
        computed = scene.admit("r", tokens, first_chunk=min(chunk, tokens)).scheduled_tokens
        scene.step()
        while computed < tokens:
            more = min(chunk, tokens - computed)
            assert scene.extend("r", more)
            computed += more
            scene.step()
        return standing(scene.engine.snapshot()[0]), ended(scene, ("r", tokens))

    for whole, parts in zip(run(tokens), run(chunk), strict=True):
        expect_none(agree("chunked", f"{tokens} tokens at once and in chunks of {chunk}", whole, parts))


@pytest.mark.requires(Capability.PREEMPTION)
@pytest.mark.parametrize("at", LENGTHS)
def test_preempt_and_resume_equals_uninterrupted(play: Play, at: int) -> None:
    """A sequence that gave way at some length stands and ends as one that never did."""

    def run(interrupted: bool) -> tuple[Standing, Standing]:
        scene = play()
        scene.admit("r", at, max_tokens=at + 2 * BLOCK)
        scene.step()
        if interrupted:
            scene.release("r", Release.PREEMPT)
            scene.admit("r", at, max_tokens=at + 2 * BLOCK)
            scene.step()
        for _ in range(2 * BLOCK):
            assert scene.extend("r")
            scene.step()
        return standing(scene.engine.snapshot()[0]), ended(scene, ("r", at + 2 * BLOCK))

    for through, resumed in zip(run(False), run(True), strict=True):
        expect_none(agree("resumed", f"a run through and one preempted at {at}", through, resumed))


@pytest.mark.requires(Capability.PREFIX_CACHE)
@pytest.mark.parametrize("workload", ["chat", "shared-prefix", "divergence-burst"])
def test_a_prefix_cache_changes_where_tokens_lie_and_not_how_many(kv_replay: Replayer, workload: str) -> None:
    """With and without it: the same logical payload at every step, in no more slots."""
    trace = load_trace(workload).head(40)
    on, off = (
        kv_replay(
            trace, block_size=16, num_blocks=2048, slots="probe", read_all=False, prefix_cache=shared
        ).timeline
        for shared in (True, False)
    )
    expect_none(sharing_costs_nothing(on, off))
    assert on.pools[0].total("hit") > 0 or workload == "divergence-burst"
    assert off.pools[0].total("hit") == 0


@pytest.mark.requires(Capability.RESET_CACHE)
@pytest.mark.parametrize("workload", ["chat", "thrash", "divergence-burst"])
def test_a_trace_after_a_reset_gives_the_same_ledger(open_engine: EngineOpener, workload: str) -> None:
    """Trace, reset, trace again, on one engine and one worker: row for row the same."""
    trace = load_trace(workload).head(30)
    engine = open_engine(block_size=16, num_blocks=160)
    worker = ProbeWorker(engine.spec.pools)
    first = replay(trace, engine, worker)
    assert isinstance(engine, SupportsResetCache)
    assert engine.reset_cache()
    second = replay(trace, engine, worker)
    what = "the first run and the one after a reset"
    expect_none(
        first.violations, same_ledger("repeat", what, first.timeline, second.timeline), second.violations
    )


@pytest.mark.parametrize("generated", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("prompt", [BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_cancel_at_any_point_equals_finish_there(play: Play, prompt: int, generated: int) -> None:
    """After the prompt and after each answer, inside a block and at its edge, beside another sequence."""

    def run(reason: Release) -> Standing:
        scene = play()
        scene.admit("other", 5, max_tokens=5)
        scene.admit("r", prompt, max_tokens=prompt + generated)
        scene.step()
        for _ in range(generated):
            assert scene.extend("r")
            scene.step()
        scene.release("r", reason)
        scene.step()
        return ended(scene, ("r", prompt + generated))

    finished = run(Release.FINISH)
    for reason in (Release.CANCEL, Release.ERROR):
        what = f"finish and {reason.value} at {prompt} + {generated} tokens"
        expect_none(agree("cancelled", what, finished, run(reason)))


@pytest.mark.requires(Capability.CHUNKED_PREFILL)
@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("settled", [True, False])
def test_cancel_between_chunks_equals_finish_there(play: Play, chunk: int, settled: bool) -> None:
    """In the middle of a prompt of 21 tokens, with the last chunk computed or only scheduled."""

    def run(reason: Release) -> Standing:
        scene = play()
        scene.admit("r", 21, first_chunk=chunk)
        scene.step()
        scene.extend("r", chunk)
        if settled:
            scene.step()
        scene.release("r", reason)
        scene.step()
        return ended(scene, ("r", 21))

    what = f"finish and cancel after 2 chunks of {chunk}"
    expect_none(agree("cancelled", what, run(Release.FINISH), run(Release.CANCEL)))


@pytest.mark.requires(Capability.FORK)
@pytest.mark.parametrize("at", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1])
@pytest.mark.parametrize("writes", [0, 1])
def test_a_cancelled_child_leaves_no_trace(play: Play, at: int, writes: int) -> None:
    """Fork, let the child write or not, cancel it: the parent goes on and ends as without a child."""

    def run(forked: bool) -> tuple[Standing, Standing]:
        scene = play()
        scene.admit("r", at, max_tokens=at + 2)
        scene.step()
        if forked:
            scene.fork("r", "child")
            for _ in range(writes):
                assert scene.extend("child")
            scene.step()
            scene.release("child", Release.CANCEL)
        assert scene.extend("r", 2)
        scene.step()
        return standing(scene.engine.snapshot()[0]), ended(scene, ("r", at + 2))

    for alone, parent in zip(run(False), run(True), strict=True):
        expect_none(agree("undone", f"no child and one cancelled at {at} tokens", alone, parent))
