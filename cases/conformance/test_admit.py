"""Admission: what is promised is taken, what never fits is refused at once, nobody is let in in vain.

``need + idle hits <= |F| + |C|``: a hit that is idle is not room as well. Pools are given in usable blocks,
and the numbers are those of the reports.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, RefusalReason, Release
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSpec
from kvsuite.errors import ConfigError, InvariantViolation
from kvsuite.ledger.admission import (
    Pressure,
    headroom_helps,
    headroom_kept,
    never_fits,
    overcommit,
    packing_control,
    promise,
    recompute_bound,
    standstill,
    told_and_taken,
    window_floor,
)
from kvsuite.ledger.contiguity import admits_what_fits
from kvsuite.ledger.invariants import raise_violations
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.judged import offered
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from kvsuite.ledger.invariants import Violation
    from kvsuite.plugin.replays import EngineOpener, Replayer
    from kvsuite.replay.scene import Scene
    from kvsuite.trace.model import Trace

    Play = Callable[..., Scene]

STEP_MS = 50


def expect_none(*laws: Iterable[Violation]) -> None:
    """Raise what the laws found."""
    raise_violations([violation for law in laws for violation in law])


@pytest.fixture
def pool_of(open_engine: EngineOpener) -> Callable[..., dict[str, Any]]:
    """Say how to open the engine with so many usable blocks; skip where blocks are not those of one pool."""

    def asked(usable: int, block_size: int, **config: Any) -> dict[str, Any]:
        try:
            spec = open_engine(block_size=block_size, num_blocks=usable + 8, **config).spec.pools
        except ConfigError as refusal:
            if config.get("watermark_blocks"):
                pytest.skip(f"keeps no watermark: {refusal}")
            raise
        device = [pool for pool in spec if pool.key.tier == "device"]
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


def traffic(name: str, *rows: Row) -> Trace:
    """Return a trace written out by hand."""
    return trace_of(list(rows), TraceSource("by hand", name), block_size=16)


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
    expect_none(*(never_fits(offer) for offer in (small, beside, alone)))
    assert small.admission.accepted
    assert beside.admission.refusal is not None
    assert beside.admission.refusal.needed_blocks == -(-tokens // 16)
    assert alone.admission.accepted == (tokens <= 160)
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED, Capability.CHUNKED_PREFILL, Capability.PREEMPTION)
def test_a_long_prompt_waits_for_all_of_its_blocks(
    kv_replay: Replayer, pool_of: Callable[..., dict[str, Any]]
) -> None:
    """8 of 10 blocks are held by one that decodes; a prompt of 4 in chunks of 2 waits: 0 preemptions."""
    trace = traffic(
        "first chunk",
        Row(request_id="holder", timestamp=0, input_length=113, output_length=15),
        Row(request_id="prompt", timestamp=STEP_MS, input_length=64, output_length=1),
    )
    scheduler = SchedulerConfig(max_sequences=8, max_step_tokens=33)
    config = pool_of(10, 16, prefix_cache=False)
    done = kv_replay(trace, **config, slots="probe", scheduler=scheduler)
    pool = done.timeline.pools[0]
    expect_none(recompute_bound(pool, alpha=0), standstill(done.timeline))
    assert pool.total("preempted") == 0
    # 113 tokens in chunks of 33, 15 answers; the holder ends after step 3 + 15, so the prompt enters in 19.
    assert [outcome.admitted_step for outcome in done.outcomes] == [0, 19]
    assert [outcome.ending for outcome in done.outcomes] == [Ending.FINISHED] * 2


@pytest.mark.requires(Capability.PAGED)
def test_head_room_is_kept_at_admission(play: Play) -> None:
    """10 blocks, 2 kept back, 5 held: a prompt of 4 blocks would leave 1 and waits, one of 3 leaves 2."""
    scene = play(10, watermark_blocks=2)
    if scene.engine.spec.effective.get("watermark_blocks") != 2:
        scene.judge()
        pytest.skip("keeps no watermark")
    scene.admit("holder", 20)
    four, three = offered(scene, "four", 16), offered(scene, "three", 12)
    expect_none(*(headroom_kept(offer, 2) for offer in (four, three)), promise(four))
    assert four.admission.refusal is not None
    assert four.admission.refusal.reason is RefusalReason.WATERMARK
    assert three.admission.accepted
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED, Capability.PREEMPTION)
def test_preemptions_fall_with_head_room(kv_replay: Replayer, pool_of: Callable[..., dict[str, Any]]) -> None:
    """Answers five times as long as prompts, near the pool: fewer preemptions with every block kept back."""
    rows = [
        Row(request_id=f"r{k}", timestamp=k * STEP_MS, input_length=16, output_length=80) for k in range(24)
    ]
    counted: list[tuple[int, int]] = []
    for watermark in (0, 4, 8, 16):
        config = pool_of(32, 16, watermark_blocks=watermark)
        done = kv_replay(traffic("growth", *rows), **config, slots="probe", read_all=False)
        if done.spec.effective.get("watermark_blocks") != watermark:
            pytest.skip("keeps no watermark")
        assert {outcome.ending for outcome in done.outcomes} == {Ending.FINISHED}
        counted.append((watermark, done.timeline.pools[0].total("preempted")))
    assert counted[0][1] > 0, "this traffic is to preempt without head-room"
    expect_none(headroom_helps(counted, str(PoolKey())))


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


@pytest.mark.requires(Capability.PREEMPTION)
def test_promises_beyond_the_pool_end_nobody(
    kv_replay: Replayer, pool_of: Callable[..., dict[str, Any]]
) -> None:
    """4 caps of 1024 tokens over a pool of 1024: 4 x 300 do not fit at once, and all of them finish."""
    rows = [
        Row(request_id=f"r{k}", timestamp=0, input_length=100, output_length=200, max_output_length=924)
        for k in range(4)
    ]
    done = kv_replay(traffic("over-commit", *rows), **pool_of(64, 16), slots="probe", read_all=False)
    pool = done.timeline.pools[0]
    spec = done.spec.pools[0]
    assert overcommit([1024] * 4, spec) == 4
    expect_none(standstill(done.timeline))
    assert [outcome.ending for outcome in done.outcomes] == [Ending.FINISHED] * 4
    assert pool.total("preempted") + pool.total("refused_admissions") > 0


@pytest.mark.requires(Capability.PAGED, Capability.PREEMPTION)
def test_a_packed_batch_tells_nothing_of_churn(
    kv_replay: Replayer, pool_of: Callable[..., dict[str, Any]], summary_line: Callable[[str], None]
) -> None:
    """The same lengths, packed in one step and as lives that grow: only the second shows refusals.

    16 requests of 160 tokens; their prompts of 64 fill the pool of 64 blocks to the last one. Packed, each is
    there at its prompt's length and never grows.
    """
    packed_rows = [Row(request_id=f"r{k}", timestamp=0, input_length=64, output_length=0) for k in range(16)]
    churn_rows = [
        Row(request_id=f"r{k}", timestamp=k * STEP_MS, input_length=64, output_length=96) for k in range(16)
    ]
    config = pool_of(64, 16)
    batch = kv_replay(traffic("packed", *packed_rows), **config, slots="probe", read_all=False)
    assert batch.timeline.pools[0].column("free").tolist()[0] == 0
    packed = Pressure.of(batch.timeline.pools[0])
    with pytest.raises(InvariantViolation, match="packing"):
        expect_none(packing_control(packed, None))
    lives = kv_replay(traffic("churn", *churn_rows), **config, slots="probe", read_all=False)
    churn = Pressure.of(lives.timeline.pools[0])
    expect_none(packing_control(packed, churn))
    summary_line(
        f"PASS: packed, 16 requests meet {packed.refused} refusals and {packed.preempted} preemptions; as "
        f"churn on the same pool {churn.refused} and {churn.preempted}"
    )
