"""Indices, tables and padding: nothing reaches where nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, Layout, Stream, model_layout
from kvsuite.engine.contract import Capability
from kvsuite.errors import ConfigError
from kvsuite.ledger.counts import fits_empty_pool
from kvsuite.ledger.invariants import raise_violations
from kvsuite.ledger.ranges import (
    index_range,
    largest_pool_blocks,
    null_ids_are_nobodys,
    reads_within_table,
    table_columns,
    table_ids,
)
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

    Play = Callable[..., Scene]

FILLER = 0x0BAD_F111
pytestmark = pytest.mark.requires(Capability.PAGED)


def layout_of(name: str, layers: int, heads: int, dim: int) -> Layout:
    """Return one stream in bfloat16: ``layers * heads * dim`` elements a token."""
    return Layout(name, layers, (Stream("kv", heads, dim),), Dtype.BFLOAT16)


@pytest.mark.parametrize(
    ("layout", "block_size", "elements", "too_many"),
    [
        pytest.param(model_layout("llama-3.1-8b"), 1, 65_536, 32_768, id="65536-a-block"),
        pytest.param(layout_of("latent", 1, 1, 576), 480, 276_480, 7_768, id="276480-a-page"),
        pytest.param(layout_of("packed", 5, 57, 57), 64, 1_039_680, 2_066, id="1039680-a-page"),
        pytest.param(layout_of("latent", 1, 1, 576), 64, 36_864, 58_255, id="576-a-slot"),
    ],
)
def test_a_pool_beyond_its_indices_is_refused_with_the_limit(
    open_engine: EngineOpener, layout: Layout, block_size: int, elements: int, too_many: int
) -> None:
    """Signed 32 bits end at 2^31 - 1: the first page whose elements reach 2^31 is refused at the start.

    Slot 3,728,271 of 576 elements lies in block 58,254 of 64: 58,255 blocks are one too many.
    """
    limit = too_many - 1
    assert largest_pool_blocks(elements, 32) == limit
    asked: dict[str, Any] = {"layout": layout, "block_size": block_size, "options": {"index_bits": 32}}
    try:
        open_engine(num_blocks=8, **asked)
    except ConfigError as refusal:
        pytest.skip(f"takes no option index_bits: {refusal}")
    engine = open_engine(num_blocks=limit, **asked)
    raise_violations([v for pool in engine.spec.pools for v in index_range(pool, layout.dtype.itemsize)])
    try:
        engine = open_engine(num_blocks=too_many, **asked)
        said = ""
    except ConfigError as refusal:
        said = str(refusal)
    raise_violations([v for pool in engine.spec.pools for v in index_range(pool, layout.dtype.itemsize)])
    assert not said or str(limit) in said, f"a refusal names the limit of {limit} blocks: {said}"


@pytest.mark.parametrize("tokens", [1_024, 1_025])
def test_no_length_and_no_id_lies_beyond_the_table(open_engine: EngineOpener, tokens: int) -> None:
    """Four columns of 256 made for 1,024 tokens: token 1,025 is refused or has a column; ids end at N - 1."""
    never = open_engine(block_size=256, num_blocks=8).spec.pools[0].never_allocatable_blocks
    blocks = -(-tokens // 256)
    engine = open_engine(block_size=256, num_blocks=blocks + never, max_model_tokens=1_024)
    run = TokenRun(TokenContent((0,), ()), 0, tokens)
    admission = engine.admit(RequestId("a"), run, first_chunk_tokens=tokens, max_tokens=tokens)
    assert admission.accepted or tokens > 1_024 or not fits_empty_pool(engine.spec.pools, tokens)
    for spec, shot in zip(engine.spec.pools, engine.snapshot(), strict=True):
        raise_violations([*table_ids(spec, shot), *null_ids_are_nobodys(spec, shot)])


@pytest.mark.requires(Capability.LOOKAHEAD)
def test_lengths_above_the_greatest_never_reach_the_table(kv_scene: Play) -> None:
    """Lmax = 1,024, b = 16, 64 columns: lengths of 2,048 read 128 of them, and no draft reads a 65th."""
    columns = table_columns(1_024, 16)
    assert columns == 64
    scene = kv_scene(block_size=16, num_blocks=80, max_model_tokens=1_024, prefix_cache=False)
    (pool, *_) = scene.engine.spec.pools
    (unclamped,) = reads_within_table(pool, columns, [2_048])
    assert "128 columns" in unclamped.message
    assert not list(reads_within_table(pool, columns, [min(2_048, 1_024)]))
    declared = scene.engine.snapshot()[0].lookahead_tokens
    assert scene.admit("a", 1_022).accepted
    scene.step()
    for _ in range(2):
        assert scene.extend("a", lookahead=min(17, declared))
        (shot, *_) = scene.engine.snapshot()
        addressed = [len(shot.table(row)) * 16 for row in range(len(shot.request_ids))]
        raise_violations(list(reads_within_table(pool, columns, addressed)))
        scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.SLIDING_WINDOW)
@pytest.mark.parametrize(("window", "block_size"), [(64, 32), (8, 4), (9, 4), (11, 4)])
def test_positions_before_a_window_lead_to_nobodys_block(
    kv_scene: Play, open_engine: EngineOpener, window: int, block_size: int
) -> None:
    """W = 64, b = 32, decoded past 64: what was let go is null in the table, and that block is nobody's."""
    asked: dict[str, Any] = {"block_size": block_size, "num_blocks": 12, "options": {"window_tokens": window}}
    try:
        open_engine(**asked)
    except ConfigError as refusal:
        pytest.skip(f"takes no option window_tokens: {refusal}")
    scene = kv_scene(**asked)
    assert scene.admit("somebody", block_size).accepted
    assert scene.admit("a", window).accepted
    scene.step()
    for _ in range(block_size):
        assert scene.extend("a")
        scene.step()
        for spec, shot in zip(scene.engine.spec.pools, scene.engine.snapshot(), strict=True):
            raise_violations(list(null_ids_are_nobodys(spec, shot)))
    assert np.isin(scene.engine.snapshot()[0].table(1)[:1], scene.engine.snapshot()[0].null_ids).all()
    scene.drain()
    scene.judge()


@pytest.mark.parametrize("live_rows", [1, 3, 7])
def test_filler_rows_of_a_padded_batch_write_to_nobody(
    kv_scene: Play, open_engine: EngineOpener, live_rows: int
) -> None:
    """A batch of 3 is padded to 8: five fillers write where padding points to, and no live token changes."""
    asked: dict[str, Any] = {"block_size": 4, "num_blocks": 40, "options": {"null_blocks": 1}}
    try:
        open_engine(**asked)
    except ConfigError as refusal:
        pytest.skip(f"takes no option null_blocks: {refusal}")
    scene = kv_scene(**asked)
    for row in range(live_rows):
        assert scene.admit(f"r{row}", 5 + row % 4).accepted
    scene.step()
    for _ in range(4):
        for row in range(live_rows):
            assert scene.extend(f"r{row}")
        scene.launch()
        for spec, shot in zip(scene.engine.spec.pools, scene.engine.snapshot(), strict=True):
            padding = shot.never_allocatable[:1].astype(np.int64)
            slots = (padding[:, None] * spec.block_size + np.arange(spec.block_size)).ravel()
            slots = slots[: 8 - live_rows]
            scene.worker.write(spec.key, slots, np.full(len(slots), FILLER, np.int64))
        scene.settle()
    scene.step()
    scene.drain()
    scene.judge()
