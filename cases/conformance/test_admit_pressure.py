"""Admission under pressure: head-room, chunks, over-commitment, and a packed batch that shows none of it.

Pools are given in usable blocks, and the numbers are those of the reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability, RefusalReason
from kvsuite.engine.snapshot import PoolKey, PoolKind
from kvsuite.errors import ConfigError, InvariantViolation
from kvsuite.ledger.admission import (
    Pressure,
    headroom_helps,
    headroom_kept,
    overcommit,
    packing_control,
    promise,
    recompute_bound,
    standstill,
)
from kvsuite.ledger.counts import kept_back
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
    """Say how to open the engine with so many usable blocks; skip where blocks are not those of one pool.

    With ``beside`` there are the blocks that admission keeps back besides: so many for who is let in.
    """

    def asked(usable: int, block_size: int, *, beside: bool = False, **config: Any) -> dict[str, Any]:
        try:
            spec = open_engine(block_size=block_size, num_blocks=usable + 8, **config).spec
        except ConfigError as refusal:
            if config.get("watermark_blocks"):
                pytest.skip(f"keeps no watermark: {refusal}")
            raise
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


def traffic(name: str, *rows: Row) -> Trace:
    """Return a trace written out by hand."""
    return trace_of(list(rows), TraceSource("by hand", name), block_size=16)


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
    config = pool_of(64, 16, beside=True)
    batch = kv_replay(traffic("packed", *packed_rows), **config, slots="probe", read_all=False)
    assert batch.timeline.pools[0].column("free").tolist()[0] == kept_back(batch.spec) * 16
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
