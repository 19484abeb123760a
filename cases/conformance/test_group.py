"""Layers in groups: each holds its own blocks, all answer as one, and a prefix is found in all or in none.

Cases read block sizes, windows and kinds from what the engine declares. Some ask for a pool by the options of
``reference-groups`` or ``reference-state``, and skip on an engine that does not know them.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from kvsuite.cache.layout import attention_layout
from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.ledger import groups_law, units_law
from kvsuite.ledger.invariants import raise_violations
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


def edges(engine: Engine) -> list[int]:
    """Return lengths around every block boundary and window that the groups declare."""
    marks = {1}
    for pool in engine.spec.pools:
        marks.add(pool.block_size)
        if pool.window_tokens is not None:
            marks |= {pool.window_tokens, pool.window_tokens + pool.block_size}
    return sorted({mark + near for mark in marks for near in (-1, 0, 1)} - {0})


def offer(engine: Engine, name: str, tokens: int, chunk: int) -> bool:
    """Offer a prompt of which nothing is cached."""
    run = TokenRun(TokenContent((int.from_bytes(name.encode(), "big"),), ()), 0, tokens)
    return engine.admit(RequestId(name), run, first_chunk_tokens=chunk).accepted


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("options", OPTIONS)
def test_each_group_holds_its_own_blocks(
    kv_scene: MakeScene, open_engine: EngineOpener, options: dict[str, int]
) -> None:
    """ceil(n / b) in a full group, and what meets the window in the others: all of it as long as n <= W."""
    for tokens in edges(opened(open_engine, options=options)):
        scene = opened(kv_scene, options=options)
        scene.admit("a", tokens)
        for settled, length in ((0, tokens), (tokens, tokens + 1), (tokens + 1, tokens + 2)):
            scene.launch()
            scene.violations += groups_law.counts(scene.engine.spec.pools, owned(scene), length, settled)
            scene.settle()
            scene.extend("a")
        scene.step()
        scene.drain()
        scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("blocks", [4, 5, 8])
def test_a_refusal_in_one_group_changes_none(kv_scene: MakeScene, blocks: int) -> None:
    """The window pool is full: neither a prompt nor growth leaves anything behind in the other groups."""
    scene = opened(kv_scene, options={"window_blocks": blocks})
    (window,) = windows(scene.engine)
    room = window.usable_blocks
    for index in range(room):
        assert scene.admit(f"r{index}", window.block_size).accepted
    scene.step()
    with scene.unchanged("a prompt"):
        refused = scene.admit("late", 1)
    with scene.unchanged("growth"):
        grown = scene.extend("r0", window.block_size)
    assert refused.refusal is not None
    assert not grown
    assert refused.refusal.pool == window.key
    scene.drain()
    assert scene.admit("late", window.block_size * room).accepted
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("options", [{}, {"third_group": True}], ids=["b 2b", "b 2b 8b"])
def test_every_id_exists_in_its_pool(open_engine: EngineOpener, options: dict[str, bool]) -> None:
    """Pools filled to the last block: no table names a block that the declared pool does not have."""
    engine = opened(open_engine, options=options, num_blocks=12)
    count = 0
    while offer(engine, f"r{count}", 1, 1):
        count += 1
    assert count
    raise_violations(list(groups_law.ids_in_pool(engine.spec.pools, engine.snapshot())))


@pytest.mark.requires(Capability.GROUPS, Capability.PREFIX_CACHE)
@pytest.mark.parametrize("options", OPTIONS)
def test_a_prefix_is_found_as_far_as_every_group_holds_it(
    kv_scene: MakeScene, open_engine: EngineOpener, options: dict[str, int]
) -> None:
    """Hits are multiples of the largest unit, one token left to compute, whatever smaller groups hold."""
    unit = units_law.hash_unit(opened(open_engine, options=options).spec.pools)
    for tokens in sorted({unit - 1, unit, unit + 1, unit + 5, 2 * unit - 1, 2 * unit, 2 * unit + 4}):
        scene = opened(kv_scene, options=options)
        prompt = scene.prompts.of(("prompt", tokens))
        for name in ("first", "again"):
            admission = scene.admit(name, tokens, content=prompt)
            scene.step()
            scene.extend(name)
            scene.step()
        scene.violations += units_law.hit_unit(scene.engine.spec.pools, tokens, admission.hit_tokens)
        scene.drain()
        scene.judge()


@pytest.mark.requires(Capability.GROUPS, Capability.PREFIX_CACHE)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_rewind_is_found_in_every_group(kv_scene: MakeScene, turns: int) -> None:
    """A chat far past the window goes back to its system prompt: what full layers hold is found."""
    scene = opened(kv_scene, num_blocks=256)
    unit = units_law.hash_unit(scene.engine.spec.pools)
    system, chat = 2 * unit, 60
    length = system
    for turn in range(turns):
        length += chat
        scene.admit(f"turn{turn}", length, content=scene.prompts.of(("system", system), ("chat", length)))
        scene.step()
        for _ in range(3):
            scene.extend(f"turn{turn}")
            scene.step()
        scene.release(f"turn{turn}")
    rewound = scene.prompts.of(("system", system), ("another question", 5))
    found = scene.admit("rewound", system + 5, content=rewound).hit_tokens
    scene.violations += groups_law.hits_reach(found, system, scene.engine.spec.pools)
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS, Capability.FORK, Capability.COPY_ON_WRITE)
@pytest.mark.parametrize("tokens", [3, 4, 5, 33])
@pytest.mark.parametrize("options", [{}, {"third_group": True}], ids=["b 2b", "b 2b 8b"])
def test_a_fork_diverges_in_every_group(kv_scene: MakeScene, tokens: int, options: dict[str, bool]) -> None:
    """Two children and their parent all write: copied is the tail of each group's own last block."""
    for order in permutations(["a", "b", "c"]):
        scene = opened(kv_scene, options=options)
        scene.admit("a", tokens)
        scene.step()
        for child in ("b", "c"):
            assert scene.fork("a", child)
        for name in ("a", "b", "c"):
            assert scene.extend(name)
        scene.step()
        transitions = [scene.column("private_transitions", index) for index in range(len(scene.trackers))]
        for name in order:
            scene.release(name)
        scene.drain()
        scene.judge()
        assert transitions == [2 if tokens % p.block_size else 0 for p in scene.engine.spec.pools]


@pytest.mark.requires(Capability.CONSTANT_STATE)
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9, 63])
def test_a_state_is_one_block_and_nobody_elses(kv_scene: MakeScene, tokens: int) -> None:
    """One block at any length; a fork gets one of its own, because both go on writing."""
    scene = opened(kv_scene)
    (pool,) = [pool for pool in scene.engine.spec.pools if pool.kind is PoolKind.STATE]
    index = scene.engine.spec.pools.index(pool)
    scene.admit("a", tokens)
    scene.step()
    if scene.engine.spec.claims(Capability.FORK):
        scene.fork("a", "b")
    for _ in range(6):
        scene.extend("a")
        scene.launch()
        scene.violations += groups_law.states_private(pool, scene.engine.snapshot()[index])
        held = {pool.key: len(scene.table("a", index))}
        scene.violations += groups_law.counts([pool], held, tokens, tokens)
        scene.settle()
    scene.drain()
    scene.judge()
