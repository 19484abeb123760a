"""Admission: what is promised is taken, what never fits is refused at once, nobody is let in in vain.

``need + idle hits <= |F| + |C|``: a hit that is idle is not room as well. Pools are given in usable blocks,
and the numbers are those of the reports.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSpec
from kvsuite.errors import ConfigError, InvariantViolation
from kvsuite.ledger.admission import (
    never_fits,
    promise,
    told_and_taken,
    window_floor,
)
from kvsuite.ledger.contiguity import admits_what_fits
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import raise_violations
from kvsuite.replay.judged import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from kvsuite.ledger.invariants import Violation
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

    Play = Callable[..., Scene]


def expect_none(*laws: Iterable[Violation]) -> None:
    """Raise what the laws found."""
    raise_violations([violation for law in laws for violation in law])


@pytest.fixture
def pool_of(open_engine: EngineOpener) -> Callable[..., dict[str, Any]]:
    """Say how to open the engine with so many usable blocks; skip where blocks are not those of one pool.

    With ``beside`` there are the blocks that admission keeps back besides: so many for who is let in.
    """

    def asked(usable: int, block_size: int, *, beside: bool = False, **config: Any) -> dict[str, Any]:
        spec = open_engine(block_size=block_size, num_blocks=usable + 8, **config).spec
        usable += kept_back(spec) if beside else 0
        device = [pool for pool in spec.pools if pool.key.tier == "device"]
        if len(device) > 1 or device[0].kind is not PoolKind.FULL or device[0].block_size != block_size:
            pytest.skip(
                f"{len(device)} pools, the first {device[0].kind.value} of {device[0].block_size} tokens"
            )
        return {
            "block_size": block_size,
            "num_blocks": usable + device[0].never_allocatable_blocks,
            **config,
        }

    return asked


@pytest.fixture
def play(kv_scene: Play, pool_of: Callable[..., dict[str, Any]]) -> Play:
    """Play a scene on a pool of so many usable blocks."""
    return lambda usable, block_size=4, **config: kv_scene(**pool_of(usable, block_size, **config))


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("tokens", [200, 161, 160])
def test_what_can_never_fit_is_refused_at_arrival_and_blocks_nobody(play: Play, tokens: int) -> None:
    """10 usable blocks of 16: 200 tokens need 13. Refused for good, beside others too; 16 tokens run."""
    scene = play(10, 16)
    small = offered(scene, "small", 16)
    with scene.unchanged(f"a request of {tokens} tokens"):
        beside = offered(scene, "large", tokens)
    scene.step()
    scene.release("small")
    alone = offered(scene, "large again", tokens)
    kept = kept_back(scene.engine.spec)
    expect_none(*(never_fits(offer, kept) for offer in (small, beside, alone)))
    assert small.admission.accepted
    assert beside.admission.refusal is not None
    assert beside.admission.refusal.needed_blocks == -(-tokens // 16)
    assert alone.admission.accepted == (tokens <= 160)
    scene.drain()
    scene.judge()


def window_pool(num_blocks: int) -> PoolSpec:
    """Return the window pool of the report: 4096 tokens, a tenth for a window of 128 in blocks of 256."""
    return PoolSpec(PoolKey(), num_blocks, 256, 1, kind=PoolKind.WINDOW, window_tokens=128)


@pytest.mark.requires(Capability.SLIDING_WINDOW)
def test_a_window_pool_holds_a_window_and_a_block_or_is_refused(open_engine: EngineOpener) -> None:
    """floor(409 / 256) * 256 = 256 < 128 + 256: refused at the start. So is any pool below its own floor."""
    too_small = 4096 // 10 // 256
    with pytest.raises(InvariantViolation, match="holds 256 tokens"):
        expect_none(window_floor(window_pool(too_small)))
    expect_none(window_floor(window_pool(too_small + 1)))
    opened = 0
    for num_blocks in range(1, 24):
        try:
            engine = open_engine(block_size=4, num_blocks=num_blocks)
        except ConfigError:
            continue
        opened += 1
        expect_none(*(window_floor(pool) for pool in engine.spec.pools))
    assert opened, "no pool of up to 23 blocks was accepted"


@pytest.mark.requires(Capability.PAGED, Capability.PREFIX_CACHE)
@pytest.mark.parametrize("first_chunk", [None, 4])
def test_a_hit_in_the_free_queue_is_no_room(play: Play, first_chunk: int | None) -> None:
    """5 blocks can be had and 2 of them are the hits: 4 new ones are refused, and nothing is touched."""
    scene = play(8)
    if first_chunk and not scene.engine.spec.claims(Capability.CHUNKED_PREFILL):
        first_chunk = None
    shared = scene.prompts.of(("system", 8), ("question", 16))
    scene.admit("first", 8, content=scene.prompts.of(("system", 8)))
    scene.step()
    hits = tuple(scene.table("first").tolist())
    scene.admit("other", 4)
    scene.step()
    scene.release("first")
    scene.release("other")
    scene.admit("holder", 12)
    with scene.unchanged("24 tokens that begin with a cached prefix"):
        early = offered(scene, "next", 24, content=shared, first_chunk=first_chunk, expected_hits=hits)
    expect_none(promise(early), admits_what_fits(early))
    assert early.admission.refusal is not None
    assert early.admission.refusal.needed_blocks == 4
    scene.step()
    scene.release("holder")
    late = offered(scene, "next", 24, content=shared, first_chunk=first_chunk)
    expect_none(promise(late), told_and_taken(early, late))
    assert late.admission.hit_tokens == 8
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED, Capability.PREFIX_CACHE, Capability.PREEMPTION)
def test_a_resumed_sequence_counts_its_idle_blocks_once(play: Play) -> None:
    """10 blocks of a preempted sequence, 2 evicted, 8 idle and the last that can be had: 10 > 8, later."""
    scene = play(10)
    assert scene.admit("long", 40).accepted
    scene.step()
    table = scene.table("long").tolist()
    scene.release("long", Release.PREEMPT)
    scene.admit("short", 8)
    scene.step()
    cached = set(scene.engine.snapshot()[0].cached.tolist())
    left = tuple(takewhile(lambda block: block in cached, table))
    with scene.unchanged("the return of a sequence of 10 blocks"):
        early = offered(scene, "long", 40, expected_hits=left)
    expect_none(promise(early), admits_what_fits(early))
    assert not early.admission.accepted
    scene.release("short")
    late = offered(scene, "long", 40)
    expect_none(promise(late))
    assert late.admission.accepted
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED, Capability.PREEMPTION)
@pytest.mark.parametrize("first_chunk", [None, 12])
def test_a_token_not_yet_seen_needs_room_too(play: Play, first_chunk: int | None) -> None:
    """3 full blocks and 1 token come back to 3 free blocks: later, because they need 4."""
    scene = play(8, prefix_cache=False)
    if first_chunk and not scene.engine.spec.claims(Capability.CHUNKED_PREFILL):
        first_chunk = None
    scene.admit("saved", 12)
    scene.step()
    scene.extend("saved")
    scene.step()
    scene.release("saved", Release.PREEMPT)
    scene.admit("holder", 20)
    with scene.unchanged("4 blocks offered to 3"):
        early = offered(scene, "saved", 13, first_chunk=first_chunk, expected_hits=())
    expect_none(promise(early), admits_what_fits(early))
    assert not early.admission.accepted
    scene.step()
    scene.release("holder")
    late = offered(scene, "saved", 13, first_chunk=first_chunk)
    expect_none(promise(late), told_and_taken(early, late))
    scene.step()
    assert late.needed_blocks == 4
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_growth_is_all_or_nothing(play: Play, block_size: int) -> None:
    """2 blocks are left and 3 are asked for: refused, and nothing is kept; later it succeeds."""
    scene = play(10, block_size)
    scene.admit("long", 5 * block_size)
    scene.admit("short", 3 * block_size)
    scene.step()
    with scene.unchanged("growth by 3 blocks with 2 to be had"):
        assert not scene.extend("long", 3 * block_size)
    assert scene.extend("long", 2 * block_size)
    scene.step()
    scene.release("short")
    assert scene.extend("long", 3 * block_size)
    scene.step()
    assert len(scene.table("long")) == 10
    scene.drain()
    scene.judge()
