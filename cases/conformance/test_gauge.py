"""What an operator sees, held against the blocks (I14).

    used = (live + quarantined) / usable     cached / usable     free / usable     sum 1

Cached blocks that nobody holds are room: after distinct prompts they pile up without a leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.contract import Capability, Engine, Release, SupportsGauges, SupportsResetCache
from kvsuite.engine.snapshot import NO_BLOCKS, Gauges, PoolKey, PoolSnapshot, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.ledger.gauges import (
    fixed_and_rate,
    gauge_capacity,
    gauge_hits,
    gauge_idle,
    gauge_range,
    gauge_shares,
    gauge_sum,
    longest,
)
from kvsuite.ledger.invariants import raise_violations
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.ledger.invariants import Violation
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

    KvScene = Callable[..., Scene]

BLOCK = 4
KIB = 1024


def laws(gauges: Gauges, spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None) -> list[Violation]:
    """Return every law of one reading that does not hold."""
    return [
        *gauge_range(gauges, step),
        *gauge_sum(gauges, step),
        *gauge_shares(gauges, spec, snapshot, step),
        *gauge_idle(gauges, snapshot, step),
    ]


def gauges_of(engine: Engine) -> tuple[Gauges, ...]:
    assert isinstance(engine, SupportsGauges)
    return engine.gauges()


def look(scene: Scene, first_hits: int | None = None) -> Gauges:
    """Read every gauge, hold it against the blocks, and return the first one's."""
    engine, step = scene.engine, scene.step_number
    told = {gauges.key: gauges for gauges in gauges_of(engine)}
    for spec, snapshot in zip(engine.spec.pools, engine.snapshot(), strict=True):
        scene.violations += laws(told[spec.key], spec, snapshot, step)
        if first_hits is not None:
            scene.violations += gauge_hits(told[spec.key], first_hits, step)
    return told[engine.spec.pools[0].key]


def with_null_blocks(kv_scene: KvScene, num_blocks: int, null_blocks: int) -> Scene:
    options = {"null_blocks": null_blocks} if null_blocks else {}
    try:
        return kv_scene(block_size=BLOCK, num_blocks=num_blocks, options=options)
    except ConfigError as error:
        pytest.skip(f"no null block here: {error}")


def host_tier(num_blocks: int, cached: int) -> tuple[PoolSpec, PoolSnapshot]:
    """Return an idle host pool of which the first ``cached`` blocks hold keyed content."""
    key = PoolKey(tier="host")
    ids = np.arange(num_blocks, dtype=np.int32)
    snapshot = PoolSnapshot(
        key=key,
        revision=1,
        since=None,
        request_ids=(),
        lengths=np.zeros(0, np.int64),
        table_rows=NO_BLOCKS,
        table_offsets=np.zeros(1, np.int64),
        table_blocks=NO_BLOCKS,
        free=ids[cached:],
        cached=ids[:cached],
    )
    return PoolSpec(key, num_blocks, BLOCK, bytes_per_token=128), snapshot


@pytest.mark.requires(Capability.GAUGES, Capability.PREFIX_CACHE)
def test_idle_cached_blocks_are_not_in_use(kv_scene: KvScene) -> None:
    """24 distinct prompts of two blocks, all ended: 0 used, 48 cached and reclaimable (imp #1115)."""
    scene = kv_scene(block_size=BLOCK, num_blocks=64)
    for turn in range(24):
        scene.admit(f"r{turn}", 2 * BLOCK)
        scene.step()
        scene.release(f"r{turn}")
        look(scene, first_hits=0)
    told = look(scene, first_hits=0)
    scene.drain()
    scene.judge()
    assert (told.used, told.cached, told.free) == (0, 48 / 64, 16 / 64)


@pytest.mark.requires(Capability.GAUGES)
@pytest.mark.parametrize("null_blocks", [0, 1])
def test_a_full_pool_reads_one(kv_scene: KvScene, null_blocks: int) -> None:
    """8 usable blocks, all held, with a null block beside them or not: 1.0, and not 8 / 9 = 0.889."""
    scene = with_null_blocks(kv_scene, 8 + null_blocks, null_blocks)
    look(scene)
    scene.admit("all", 8 * BLOCK)
    scene.step()
    told = look(scene)
    scene.drain()
    scene.judge()
    assert (told.used, told.cached, told.free) == (1, 0, 0)


@pytest.mark.requires(Capability.GAUGES, Capability.FORK)
def test_gauges_follow_every_verb(kv_scene: KvScene) -> None:
    """A family of five in 6 blocks and a private tail each: 25 table entries, 9 blocks of 16."""
    scene = kv_scene(block_size=BLOCK, num_blocks=16)
    scene.admit("parent", 4 * BLOCK + 1)
    look(scene)
    scene.step()
    for child in range(4):
        assert scene.fork("parent", f"child{child}")
        look(scene)
    for name in ("parent", "child0", "child1", "child2", "child3"):
        scene.extend(name)
        look(scene)
    scene.step()
    told = look(scene)
    for child in range(4):
        scene.release(f"child{child}", Release.CANCEL)
        look(scene)
    scene.release("parent")
    look(scene)
    scene.drain()
    scene.judge()
    assert told.used == (4 + 5) / 16


@pytest.mark.requires(Capability.GAUGES, Capability.PREFIX_CACHE, Capability.PREEMPTION)
def test_what_a_resumed_request_finds_is_no_hit(kv_scene: KvScene) -> None:
    """A prompt nobody shares, preempted and resumed: 16 tokens are found again, 0 are hits (vllm #25780)."""
    scene = kv_scene(block_size=BLOCK, num_blocks=16)
    scene.admit("a", 17)
    scene.step()
    look(scene, first_hits=0)
    scene.release("a", Release.PREEMPT)
    look(scene, first_hits=0)
    assert scene.admit("a", 17).hit_tokens == 16
    look(scene, first_hits=0)
    scene.step()
    twin = scene.admit("b", 17, content=scene.prompts.of(("only a", 17)))
    assert twin.hit_tokens == 16
    look(scene, first_hits=16)
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GAUGES)
def test_a_refused_operation_moves_no_gauge(kv_scene: KvScene) -> None:
    scene = kv_scene(block_size=BLOCK, num_blocks=8)
    scene.admit("a", 6 * BLOCK)
    scene.step()
    before = look(scene)
    assert not scene.admit("b", 3 * BLOCK).accepted
    after = look(scene)
    assert not scene.extend("a", 2 * BLOCK + 1)
    last = look(scene)
    scene.drain()
    look(scene)
    scene.judge()
    assert before == after == last


@pytest.mark.requires(Capability.GAUGES)
@pytest.mark.parametrize("null_blocks", [0, 4])
def test_a_block_in_use_hides_no_free_one_beside_it(kv_scene: KvScene, null_blocks: int) -> None:
    """Two pages of four blocks, one block in use, one page reserved or not: the other three are free."""
    scene = with_null_blocks(kv_scene, 8, null_blocks)
    scene.admit("a", 1)
    scene.step()
    told = look(scene)
    scene.drain()
    scene.judge()
    usable = 8 - null_blocks
    assert (told.used, told.free) == (1 / usable, (usable - 1) / usable)


@pytest.mark.requires(Capability.GAUGES, Capability.PREFIX_CACHE, Capability.RESET_CACHE)
def test_a_reset_cache_leaves_nothing_in_the_gauges(kv_scene: KvScene) -> None:
    """One block cached, then the cache is reset: nothing cached, all free (Mooncake #408)."""
    scene = kv_scene(block_size=BLOCK, num_blocks=8)
    scene.admit("a", BLOCK)
    scene.step()
    scene.release("a")
    assert look(scene).cached == 1 / 8
    assert isinstance(scene.engine, SupportsResetCache)
    assert scene.engine.reset_cache()
    told = look(scene)
    scene.drain()
    scene.judge()
    assert (told.used, told.cached, told.free) == (0, 0, 1)


@pytest.mark.requires(Capability.GAUGES)
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "null_blocks", "max_model_tokens"),
    [(4, 16, 0, None), (16, 670, 0, None), (4, 9, 1, None), (16, 20, 0, 100)],
)
def test_capacity_is_what_a_search_finds(
    open_engine: EngineOpener,
    block_size: int,
    num_blocks: int,
    null_blocks: int,
    max_model_tokens: int | None,
) -> None:
    """The longest sequence that goes in, by bisection: 670 blocks of 16 are 10,720 tokens, not 10,718."""
    options = {"null_blocks": null_blocks} if null_blocks else {}
    try:
        engine = open_engine(
            block_size=block_size,
            num_blocks=num_blocks,
            max_model_tokens=max_model_tokens,
            options=options,
        )
    except ConfigError as error:
        pytest.skip(f"no null block here: {error}")

    def goes_in(tokens: int) -> bool:
        name = RequestId(f"of {tokens}")
        run = TokenRun(TokenContent((tokens,), ()), 0, tokens)
        accepted = engine.admit(name, run, first_chunk_tokens=tokens).accepted
        if accepted:
            engine.take_ops()
            engine.release(name, Release.CANCEL)
        return accepted

    found = longest(goes_in, sum(pool.num_blocks * pool.block_size for pool in engine.spec.pools))
    told = min(gauges_of(engine), key=lambda gauges: gauges.capacity_tokens)
    spec = next(pool for pool in engine.spec.pools if pool.key == told.key)
    raise_violations([*gauge_capacity(told, spec, found)])
    if max_model_tokens is None:
        assert found == (num_blocks - null_blocks) * block_size


def test_a_host_tier_full_of_idle_blocks_reads_unused() -> None:
    """Ten blocks stored and every transfer done: 0 used and 1.0 cached; 1.0 used is refused (vllm #45737)."""
    spec, snapshot = host_tier(10, cached=10)
    right = Gauges(spec.key, used=0, cached=1, free=0, capacity_tokens=40, hit_tokens=0)
    wrong = Gauges(spec.key, used=1, cached=0, free=0, capacity_tokens=40, hit_tokens=0)
    assert laws(right, spec, snapshot) == []
    assert {law.invariant for law in laws(wrong, spec, snapshot)} == {
        "gauge-used",
        "gauge-cached",
        "gauge-idle",
    }


def test_capacity_of_a_hybrid_is_no_quotient() -> None:
    """33.04 times 32,768 tokens are 1,082,655; blocks over groups times 16 says 290,864 (vllm #40694)."""
    spec = PoolSpec(PoolKey(), num_blocks=4 * 18_179, block_size=16, bytes_per_token=128)
    found = round(33.04 * 32_768)
    assert found == 1_082_655

    def told(tokens: int) -> Iterator[Violation]:
        return gauge_capacity(Gauges(spec.key, 0, 0, 1, tokens, 0), spec, found)

    assert [*told(-(-found // 16) * 16)] == []
    (wrong,) = told(spec.num_blocks // 4 * 16)
    assert wrong.invariant == "gauge-capacity"
    assert "290864 tokens is claimed, expected 1082656" in wrong.message


def test_bytes_over_tokens_are_no_rate() -> None:
    """89 MiB fixed and 4 KiB a token: 93 KiB a token at 1,024 tokens, 4.09 at a million (vllm #51041)."""
    fixed, rate = 89 * KIB * KIB, 4 * KIB

    def held(tokens: int) -> tuple[int, int]:
        return tokens, fixed + rate * tokens

    assert fixed_and_rate(held(1024), held(1 << 20)) == (fixed, rate)
    assert held(1024)[1] / 1024 == 93 * KIB
    assert held(1 << 20)[1] / (1 << 20) == pytest.approx(4.087 * KIB, rel=1e-4)
    assert fixed_and_rate(held(1024), (1 << 20, 93 * KIB << 20)) == (0, 93 * KIB)
