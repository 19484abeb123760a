"""Bytes of a token and of a page: what the engine declares for real models, on every number of ranks.

    heads_rank = max(1, ceil(H / tp))
    token = sum over layers and streams of heads_rank * (dim * width + scale)
    page  = block_size * token + pad
    tensors = num_blocks * page

The models' values below are products worked out from their published configurations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import Dtype, Layout, Stream, attention_layout, mla_layout, model_layout
from kvsuite.engine.contract import Capability, SupportsMemory
from kvsuite.engine.snapshot import PoolKind, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.ledger import bytes_law
from kvsuite.ledger.invariants import raise_violations

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine
    from kvsuite.plugin.replays import EngineOpener

BLOCK = 16
RANKS = (1, 2, 4, 8, 16, 32)
SHARES = {32: (32, 16, 8, 4, 2, 1), 8: (8, 4, 2, 1, 1, 1), 4: (4, 2, 1, 1, 1, 1), 1: (1, 1, 1, 1, 1, 1)}
"""KV heads of a model, and those of one rank for each of `RANKS`."""

QWEN3_4B = attention_layout("qwen3-4b", num_layers=36, kv_heads=8, head_dim=128)
GEMMA_2_9B = attention_layout("gemma-2-9b", num_layers=42, kv_heads=8, head_dim=256)
INDEXED = Layout(
    "latent-and-index",
    78,
    (
        Stream("latent", 1, 576, replicated=True),
        Stream("index", 1, 132, replicated=True, dtype=Dtype.FLOAT8_E4M3),
    ),
    Dtype.BFLOAT16,
)
"""A latent of 576 two-byte elements, and an index of 132 one-byte ones: 1152 + 132 bytes a layer."""
MODELS = {
    "MHA llama-2-7b": (model_layout("llama-2-7b"), 524_288),
    "MHA phi-3-mini": (attention_layout("phi-3-mini", num_layers=32, kv_heads=32, head_dim=96), 393_216),
    "GQA llama-3.1-8b": (model_layout("llama-3.1-8b"), 131_072),
    "GQA llama-3.1-70b": (model_layout("llama-3.1-70b"), 327_680),
    "GQA mistral-7b": (model_layout("mistral-7b"), 131_072),
    "GQA qwen2.5-7b": (model_layout("qwen2.5-7b"), 57_344),
    "GQA qwen3-4b": (QWEN3_4B, 147_456),
    "GQA gemma-2-9b": (GEMMA_2_9B, 344_064),
    "GQA llama-3.1-8b fp8 scaled": (model_layout("llama-3.1-8b").with_(dtype=Dtype.FLOAT8_E4M3), 67_584),
    "MQA falcon-7b": (model_layout("falcon-7b"), 8_192),
    "MLA deepseek-v3": (model_layout("deepseek-v3"), 70_272),
    "MLA with an index": (INDEXED, 100_152),
}
SPLIT = [name for name, (layout, _) in MODELS.items() if not layout.streams[0].replicated]


def opened(
    open_engine: EngineOpener, layout: Layout, *, block_size: int = BLOCK, num_blocks: int = 8, **config: Any
) -> Engine:
    """Open the engine with a layout; one that refuses it at the start has nothing to declare."""
    try:
        return open_engine(block_size=block_size, num_blocks=num_blocks, layout=layout, **config)
    except ConfigError as refusal:
        pytest.skip(f"the engine refuses {layout} in blocks of {block_size}: {refusal}")


def attention_pools(engine: Engine) -> list[PoolSpec]:
    """Return the device pools that hold keys and values."""
    return [p for p in engine.spec.pools if p.key.tier == "device" and p.kind is not PoolKind.STATE]


def token_bytes(engine: Engine) -> int:
    """Return what a token takes in all groups of layers together."""
    return sum(pool.bytes_per_token for pool in attention_pools(engine))


@pytest.mark.parametrize("model", MODELS)
def test_a_token_takes_its_streams_over_its_heads(open_engine: EngineOpener, model: str) -> None:
    """The table: every model on 1 to 32 ranks, each value a share of the one on a single rank."""
    layout, whole = MODELS[model]
    heads = layout.streams[0].heads
    for tp_size, share in zip(RANKS, SHARES[heads], strict=True):
        ranked = replace(layout, tp_size=tp_size, tp_rank=tp_size - 1)
        engine = opened(open_engine, ranked)
        raise_violations(list(bytes_law.declared_pages(engine.spec.pools, ranked)))
        assert token_bytes(engine) == whole * share // heads


@pytest.mark.parametrize("model", SPLIT)
def test_twice_the_ranks_halve_a_rank_until_heads_run_out(open_engine: EngineOpener, model: str) -> None:
    """A relation that needs no formula: half at every doubling up to H ranks, the same from there on."""
    layout, _ = MODELS[model]
    found = {tp: token_bytes(opened(open_engine, replace(layout, tp_size=tp))) for tp in RANKS}
    raise_violations(list(bytes_law.shares_over_ranks(found, layout.streams[0].heads)))


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("alignment", [1, 256, 4096, 2 << 20])
@pytest.mark.parametrize("block_size", [1, 16, 48, 256])
def test_a_page_is_its_tokens_and_its_pad(open_engine: EngineOpener, block_size: int, alignment: int) -> None:
    """A block of 147,456-byte tokens, rounded up; the rest is declared as pad."""
    layout = replace(QWEN3_4B, block_alignment_bytes=alignment)
    engine = opened(open_engine, layout, block_size=block_size)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, layout)))
    for pool in attention_pools(engine):
        assert pool.block_bytes % alignment == 0
        assert 0 <= pool.pad_bytes_per_block < alignment


@pytest.mark.parametrize(
    ("wide", "narrow"), [(Dtype.FLOAT32, Dtype.BFLOAT16), (Dtype.BFLOAT16, Dtype.FLOAT8_E4M3)]
)
def test_half_the_width_holds_twice_the_tokens(open_engine: EngineOpener, wide: Dtype, narrow: Dtype) -> None:
    """In 1 GiB, up to one block."""
    base = model_layout("llama-3.1-8b")
    pools = [attention_pools(opened(open_engine, replace(base, dtype=dtype)))[0] for dtype in (wide, narrow)]
    raise_violations(list(bytes_law.tokens_double(1 << 30, *pools)))


def test_scales_do_not_follow_the_width(open_engine: EngineOpener) -> None:
    """One float32 scale a head and token, 32 layers of 2 x 8 heads: 2,048 bytes at either width."""
    scaled = replace(model_layout("llama-3.1-8b"), scaled=True)
    wide, narrow = (
        token_bytes(opened(open_engine, replace(scaled, dtype=dtype)))
        for dtype in (Dtype.BFLOAT16, Dtype.FLOAT8_E4M3)
    )
    raise_violations(list(bytes_law.auxiliary_kept(wide, narrow, 2_048)))
    assert (wide, narrow) == (131_072 + 2_048, 65_536 + 2_048)


@pytest.mark.parametrize("model", ["GQA qwen3-4b", "MLA deepseek-v3"])
def test_a_slot_costs_the_same_in_any_block_size(open_engine: EngineOpener, model: str) -> None:
    layout, _ = MODELS[model]
    engines = [opened(open_engine, layout, block_size=size) for size in (16, 32, 64, 128)]
    for pools in zip(*(attention_pools(engine) for engine in engines), strict=True):
        raise_violations(list(bytes_law.slots_cost_the_same(pools)))


def test_a_side_stream_keeps_its_own_width(open_engine: EngineOpener) -> None:
    """78 * (1152 + 132) = 100,152 bytes; 110,448 with the index at two bytes an element."""
    engine = opened(open_engine, INDEXED)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, INDEXED)))
    assert token_bytes(engine) == 100_152


def test_a_latent_is_priced_once(open_engine: EngineOpener) -> None:
    """One combined vector: half of what a key and a value of its length come to."""
    latent = mla_layout("latent", num_layers=61, latent_dim=512, rope_dim=64)
    as_pair = attention_layout("pair", num_layers=61, kv_heads=1, head_dim=576)
    once, twice = opened(open_engine, latent), opened(open_engine, as_pair)
    raise_violations(list(bytes_law.declared_pages(once.spec.pools, latent)))
    assert 2 * token_bytes(once) == token_bytes(twice) == 140_544


def test_a_latent_is_whole_on_every_rank(open_engine: EngineOpener) -> None:
    layout = model_layout("deepseek-v3")
    for tp_size in RANKS:
        ranked = replace(layout, tp_size=tp_size)
        engine = opened(open_engine, ranked)
        raise_violations(list(bytes_law.declared_pages(engine.spec.pools, ranked)))
        assert token_bytes(engine) == 70_272


def test_four_ranks_hold_four_times_the_blocks(open_engine: EngineOpener) -> None:
    """The same bytes on each of four ranks: 3,258 blocks, and 814 where a rank is priced with all heads."""
    layout = replace(model_layout("llama-3.1-8b"), tp_size=4)
    engine = opened(open_engine, layout)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, layout)))
    memory_bytes = 3_258 * 524_288 + 100_000
    assert memory_bytes // (BLOCK * token_bytes(engine)) == 3_258
    assert memory_bytes // (BLOCK * 131_072) == 814


def test_a_rank_holds_at_least_one_head(open_engine: EngineOpener) -> None:
    """8 KV heads on 32 ranks: one head each, every head four times; 8 // 32 is none."""
    layout = replace(model_layout("llama-3.1-8b"), tp_size=32)
    engine = opened(open_engine, layout)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, layout)))
    assert token_bytes(engine) == 131_072 // 8


@pytest.mark.parametrize(
    ("layout", "own", "derived"),
    [(QWEN3_4B, 147_456, 36 * 2 * 8 * 80 * 2), (GEMMA_2_9B, 344_064, 42 * 2 * 8 * 224 * 2)],
    ids=["qwen3-4b", "gemma-2-9b"],
)
def test_the_head_size_is_the_models_own(
    open_engine: EngineOpener, layout: Layout, own: int, derived: int
) -> None:
    """128 and 256 elements a head; hidden size over query heads would give 80 and 224."""
    engine = opened(open_engine, layout)
    raise_violations(list(bytes_law.declared_pages(engine.spec.pools, layout)))
    assert token_bytes(engine) == own > derived


@pytest.mark.requires(Capability.MEMORY)
@pytest.mark.parametrize("model", ["GQA qwen3-4b", "MLA deepseek-v3", "MLA with an index"])
def test_storages_hold_every_page(open_engine: EngineOpener, model: str) -> None:
    """The bytes allocated over the blocks are the declared page."""
    engine = opened(open_engine, MODELS[model][0], num_blocks=100)
    assert isinstance(engine, SupportsMemory)
    pools = [pool for pool in engine.spec.pools if pool.key.tier == "device"]
    raise_violations(list(bytes_law.tensor_bytes(engine.memory(), pools)))
