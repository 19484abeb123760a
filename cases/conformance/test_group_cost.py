"""What layers in groups cost: each layer once, a window its window, a state its state, and how much fits.

Cases read block sizes, windows and kinds from what the engine declares. Some ask for a pool by the options of
``reference-groups`` or ``reference-state``, and skip on an engine that does not know them.
"""

from __future__ import annotations

from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from kvsuite.cache.layout import attention_layout
from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.ledger import bytes_law, groups_law, units_law
from kvsuite.ledger.invariants import Violation, raise_violations
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.engine.snapshot import PoolKey
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

    MakeScene = Callable[..., Scene]

OpenedT = TypeVar("OpenedT")
SIX_LAYERS = attention_layout("six layers", num_layers=6, kv_heads=2, head_dim=8)
OPTIONS = [
    pytest.param({}, id="b 2b"),
    pytest.param({"third_group": True}, id="b 2b 8b"),
    pytest.param({"window_tokens": 9}, id="window 1 past a block"),
    pytest.param({"window_tokens": 7}, id="window 1 short of a block"),
]


def opened(open_it: Callable[..., OpenedT], **config: Any) -> OpenedT:
    """Open an engine or a scene over six layers; an engine that knows no such option is not asked."""
    try:
        return open_it(**{"block_size": 4, "num_blocks": 64, "layout": SIX_LAYERS, **config})
    except ConfigError as refusal:
        if not config.get("options"):
            raise
        pytest.skip(f"the engine takes no options {config['options']}: {refusal}")


def windows(engine: Engine) -> list[PoolSpec]:
    return [pool for pool in engine.spec.pools if pool.kind is PoolKind.WINDOW]


def owned(scene: Scene) -> dict[PoolKey, int]:
    """Count the blocks that the newest look shows for sequence ``a`` in each pool, null entries apart."""
    tables = {t.spec.key: (t.blocks_of(RequestId("a")), t.holdings.null_ids) for t in scene.trackers}
    return {key: int(np.count_nonzero(~np.isin(table, null))) for key, (table, null) in tables.items()}


def offer(engine: Engine, name: str, tokens: int, chunk: int) -> bool:
    """Offer a prompt of which nothing is cached."""
    run = TokenRun(TokenContent((int.from_bytes(name.encode(), "big"),), ()), 0, tokens)
    return engine.admit(RequestId(name), run, first_chunk_tokens=chunk).accepted


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("layers", [1, 2, 3, 6, 26])
@pytest.mark.parametrize("options", [{}, {"third_group": True}], ids=["b 2b", "b 2b 8b"])
def test_every_layer_is_priced_once(open_engine: EngineOpener, layers: int, options: dict[str, bool]) -> None:
    """The groups' bytes add up to the layout's; a stage with one layer has one group and no empty one."""
    layout = SIX_LAYERS.with_(num_layers=layers)
    engine = opened(open_engine, layout=layout, options=options)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, layout)))
    assert sum(pool.bytes_per_token for pool in engine.spec.pools) == layers * 2 * 2 * 8 * 2
    assert all(pool.bytes_per_token for pool in engine.spec.pools)


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_a_window_is_priced_as_a_window(kv_scene: MakeScene, open_engine: EngineOpener, chunk: int) -> None:
    """200 tokens in steps of 1 to 16 pass through a window pool that holds the window and no more."""
    (window,) = windows(opened(open_engine, options={"window_blocks": 16}))
    needed = groups_law.blocks_demanded(window, 200, chunk)
    assert needed < -(-200 // window.block_size)
    scene = opened(kv_scene, options={"window_blocks": needed + window.never_allocatable_blocks})
    admission = scene.admit("a", 200, first_chunk=chunk)
    if admission.refusal is not None:
        (window,) = windows(scene.engine)
        scene.violations += groups_law.refusal_needs(window, admission.refusal.needed_blocks, 200, chunk)
        scene.judge()
    scene.step()
    for start in range(chunk, 200, chunk):
        assert scene.extend("a", min(chunk, 200 - start)), f"refused at {start} tokens"
        scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize(("usable", "accepted"), [(130, True), (129, False)])
def test_15537_tokens_ask_a_window_of_2048_for_130_blocks(
    open_engine: EngineOpener, usable: int, accepted: bool
) -> None:
    """Window blocks of 16 and steps of 16 tokens; at full length it would be 972."""
    options = {"window_tokens": 2048, "window_blocks": usable + 1}
    engine = opened(open_engine, block_size=8, num_blocks=2000, options=options)
    (window,) = windows(engine)
    run = TokenRun(TokenContent((0,), ()), 0, 15_537)
    refusal = engine.admit(RequestId("draft"), run, first_chunk_tokens=16).refusal
    if refusal is not None:
        raise_violations(list(groups_law.refusal_needs(window, refusal.needed_blocks, 15_537, 16)))
        assert (refusal.pool, refusal.needed_blocks, refusal.free_blocks) == (window.key, 130, usable)
    assert (refusal is None) == accepted


@pytest.mark.requires(Capability.GROUPS)
def test_window_layers_cost_their_window(open_engine: EngineOpener) -> None:
    """13 full layers, 13 of a window of 4,096: 13 * 32,768 + 13 * 4,096 tokens of a layer."""
    layout, options = SIX_LAYERS.with_(num_layers=26), {"window_tokens": 4096}
    engine = opened(open_engine, block_size=16, num_blocks=2048, layout=layout, options=options)
    content, name = TokenContent((0,), ()), RequestId("long")
    ends = [*range(4096, 32_768, 4096), 32_767, 32_768]
    assert engine.admit(name, TokenRun(content, 0, 32_768), first_chunk_tokens=ends[0]).accepted
    for step, (start, stop) in enumerate(pairwise(ends)):
        engine.done(step, {name: start})
        assert engine.extend(name, TokenRun(content, start, stop))
    held = {
        snapshot.key: int(np.count_nonzero(~np.isin(snapshot.table(0), snapshot.null_ids)))
        for snapshot in engine.snapshot()
    }
    raise_violations(list(groups_law.counts(engine.spec.pools, held, 32_768, 32_767)))
    held_bytes = sum(held[pool.key] * pool.block_bytes for pool in engine.spec.pools)
    assert held_bytes == (13 * 32_768 + 13 * 4_096) * SIX_LAYERS.with_(num_layers=1).bytes_per_token


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("tokens", [3, 8, 9, 40, 100])
@pytest.mark.parametrize("blocks", [None, 9, 12, 17, 40])
def test_a_load_is_what_all_groups_hold_together(
    open_engine: EngineOpener, tokens: int, blocks: int | None
) -> None:
    """How many prompts of one length go in, counted on the engine, is what the smallest group holds."""
    options = {} if blocks is None else {"window_blocks": blocks}
    engine = opened(open_engine, options=options, prefix_cache=False)
    chunk = min(tokens, 8)
    admitted = 0
    while offer(engine, f"r{admitted}", tokens, chunk):
        admitted += 1
    pools = engine.spec.pools
    raise_violations(list(groups_law.capacity(pools, admitted, lambda load: [tokens] * load, chunk, 200)))


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("options", OPTIONS)
def test_bytes_are_a_fixed_part_and_a_rate(kv_scene: MakeScene, options: dict[str, int]) -> None:
    """Past every window ``bytes = a + c n``: ``c`` is what full layers take, ``a`` what windows pin."""
    scene = opened(kv_scene, options=options, num_blocks=200)
    pools = scene.engine.spec.pools
    unit = lcm(*(pool.block_size for pool in pools))
    reach = max([pool.window_tokens or 0 for pool in pools])
    start = -(-reach // unit) * unit + unit
    points: dict[int, int] = {}
    scene.admit("a", start - 1)
    scene.step()
    while len(points) < 3:
        scene.extend("a")
        scene.launch()
        length = start + len(points) * unit
        held = owned(scene)
        points[length] = sum(held[pool.key] * pool.block_bytes for pool in pools)
        scene.settle()
        scene.extend("a", unit - 1)
        scene.step()
    (first, second, third) = points.items()
    fixed, rate = groups_law.fixed_and_rate(first, second)
    full = sum(pool.bytes_per_token for pool in pools if pool.kind is PoolKind.FULL)
    told = f"{fixed} bytes and {rate} a token from {first[0]} and {second[0]} tokens"
    due = groups_law.footprint_bytes(pools, third[0], third[0] - 1)
    if rate != full or fixed + rate * third[0] != third[1] or third[1] != due:
        message = f"{told}, {third[1]} at {third[0]}: expected {full} a token, and {due} there"
        scene.violations.insert(0, Violation("groups", scene.step_number, "all groups", message))
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("options", [{}, {"third_group": True}], ids=["b 2b", "b 2b 8b"])
def test_a_short_prompt_pins_a_page_of_every_group(kv_scene: MakeScene, options: dict[str, bool]) -> None:
    """12 tokens: each group's blocks, less the payload, stand in the ledger as slack and pad."""
    scene = opened(kv_scene, options=options)
    scene.admit("a", 12)
    scene.launch()
    pools = scene.engine.spec.pools
    footprint = groups_law.footprint_bytes(pools, 12, 0)
    told = 0
    for index, pool in enumerate(pools):
        slots = scene.column("payload", index) + scene.column("slack", index)
        told += slots * pool.bytes_per_token + scene.column("live_blocks", index) * pool.pad_bytes_per_block
    payload = sum(12 * pool.bytes_per_token for pool in pools)
    slack = sum(scene.column("slack", index) * pool.bytes_per_token for index, pool in enumerate(pools))
    if told != footprint or slack != footprint - payload:
        message = (
            f"12 tokens pin {footprint} bytes for {payload} of payload, the ledger shows {slack} of slack"
        )
        scene.violations.append(Violation("groups", 0, "all groups", message))
    scene.settle()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("longest", [64, 128, 512])
@pytest.mark.parametrize("window", [None, 7, 8, 16])
def test_a_lower_limit_never_shrinks_a_pool(
    open_engine: EngineOpener, longest: int, window: int | None
) -> None:
    """Neither a lower limit on the longest sequence nor a narrower window leaves fewer blocks."""
    limits = ((1024, 64), (longest, window))
    wide, narrow = (
        opened(
            open_engine, max_model_tokens=tokens, options={} if window is None else {"window_tokens": width}
        ).spec.pools
        for tokens, width in limits
    )
    raise_violations(list(groups_law.never_smaller(wide, narrow, "limit")))


@pytest.mark.requires(Capability.CONSTANT_STATE)
@pytest.mark.parametrize("state_tokens", [1, 15, 16, 17, 1000, 1024, 1025])
def test_a_page_shared_with_a_state_is_no_larger_than_it_must_be(
    open_engine: EngineOpener, state_tokens: int
) -> None:
    """The smallest multiple of 16 tokens whose keys and values hold a state: 1,024 for 1,024, not 2,048."""
    token_bytes = SIX_LAYERS.bytes_per_token
    options = {"uniform_pages": True, "state_bytes": state_tokens * token_bytes}
    engine = opened(open_engine, block_size=16, num_blocks=4, options=options)
    attention, state = engine.spec.pools
    raise_violations(list(units_law.sizes_agree(engine.spec)))
    raise_violations(list(groups_law.minimal_page(attention, state, 16)))
    assert attention.block_size == -(-state_tokens // 16) * 16
    assert state.pad_bytes_per_block == (attention.block_size - state_tokens) * token_bytes
