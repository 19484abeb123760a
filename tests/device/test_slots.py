"""KV slots: bytes worked out by hand, and content that no single changed element can pass."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, Layout, Stream, attention_layout, mla_layout, model_layout
from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kvsuite.device.residency import Int64Array
    from kvsuite.device.slots import KVSlots

TINY = model_layout("tiny")
LAYOUTS = {
    "mha": attention_layout("mha", num_layers=2, kv_heads=3, head_dim=4),
    "gqa": attention_layout("gqa", num_layers=3, kv_heads=2, head_dim=8),
    "mqa": attention_layout("mqa", num_layers=2, kv_heads=1, head_dim=8),
    "mla": mla_layout("mla", num_layers=2, latent_dim=12, rope_dim=4),
    "tp": replace(attention_layout("tp", num_layers=2, kv_heads=2, head_dim=4), tp_size=4, tp_rank=3),
    "odd": attention_layout("odd", num_layers=1, kv_heads=3, head_dim=5),
    "indexed": Layout(
        "indexed",
        2,
        (Stream("latent", 1, 16, replicated=True), Stream("index", 1, 4, True, Dtype.FLOAT8_E4M3)),
        Dtype.BFLOAT16,
    ),
}


def tags_of(count: int, seed: int = 0) -> Int64Array:
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, count, dtype=np.int64)


def element_views(kv: KVSlots) -> list[Any]:
    """Every typed view of the pool, as integers of the element's width."""
    import torch

    integers = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
    views = []
    for layer in range(kv.layout.num_layers):
        for stream in kv.layout.streams:
            views.append(kv.tensor(layer, stream.name))
            if kv.layout.scaled:
                views.append(kv.scales(layer, stream.name))
    return [view.view(integers[view.dtype.itemsize]) for view in views]


def test_the_example_runs(torch: ModuleType) -> None:
    del torch
    from kvsuite.device import slots

    assert doctest.testmod(slots).failed == 0


@pytest.mark.parametrize(
    ("layout", "block_size", "num_blocks", "pool_bytes"),
    [
        # 32 layers x 2 streams x 8 heads x 128 x 2 bytes = 131,072 a token
        (model_layout("llama-3.1-8b"), 16, 2, 2 * 16 * 131_072),
        # 61 layers x (512 + 64) x 2 bytes = 70,272 a token, one latent and not K plus V
        (model_layout("deepseek-v3"), 4, 3, 3 * 4 * 70_272),
        # an MLA latent is whole on every rank
        (replace(model_layout("deepseek-v3"), tp_size=8), 4, 3, 3 * 4 * 70_272),
        # one KV head: 32 x 2 x 1 x 64 x 2 = 8,192
        (model_layout("falcon-7b"), 8, 5, 5 * 8 * 8_192),
        # 8 heads over 16 ranks: one head a rank, each held twice, 131,072 / 8 = 16,384
        (replace(model_layout("llama-3.1-8b"), tp_size=16, tp_rank=15), 16, 2, 2 * 16 * 16_384),
        # 2 layers x 2 streams x 2 heads x 8 x 4 bytes = 256
        (TINY.with_(dtype=Dtype.FLOAT32), 16, 4, 4 * 16 * 256),
        # 2 x 2 x 2 heads x (8 x 1 byte + a scale of 4) = 96
        (TINY.with_(dtype=Dtype.FLOAT8_E4M3), 16, 4, 4 * 16 * 96),
        # 3 tokens x 128 bytes = 384, aligned to 512
        (replace(TINY, block_alignment_bytes=256), 3, 5, 5 * 512),
    ],
    ids=["gqa", "mla", "mla-tp", "mqa", "tp16", "fp32", "fp8", "padded"],
)
def test_storage_is_the_bytes_of_the_formula(
    make_slots: Callable[..., KVSlots], layout: Layout, block_size: int, num_blocks: int, pool_bytes: int
) -> None:
    kv = make_slots(layout, num_blocks, block_size)
    assert kv.pool_bytes == pool_bytes == num_blocks * layout.block_bytes(block_size)


def test_ranks_beyond_the_heads_hold_one_head_each(make_slots: Callable[..., KVSlots]) -> None:
    layout = replace(model_layout("llama-3.1-8b"), tp_size=16, tp_rank=3)
    assert layout.head_replication(layout.streams[0]) == 2.0
    assert make_slots(layout, 2, 4).tensor(31, "v").shape == (2, 4, 1, 128)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_what_was_written_is_read_back(
    make_slots: Callable[..., KVSlots], name: str, dtype: Dtype, block_size: int
) -> None:
    kv = make_slots(LAYOUTS[name].with_(dtype=dtype), 6, block_size)
    slots = np.random.default_rng(1).permutation(6 * block_size)
    tags = tags_of(len(slots))
    assert not kv.matches(slots, tags).any()
    kv.write(slots, tags)
    assert kv.matches(slots, tags).all()
    assert not kv.matches(slots, tags + 1).any()
    assert not kv.matches(np.roll(slots, 1), tags).any()


@pytest.mark.parametrize("dtype", Dtype)
@pytest.mark.parametrize("name", ["gqa", "mla", "tp", "indexed"])
def test_one_changed_bit_in_any_element_is_seen(
    make_slots: Callable[..., KVSlots], name: str, dtype: Dtype
) -> None:
    kv = make_slots(LAYOUTS[name].with_(dtype=dtype), 2, 3)
    slots, tags = np.arange(6), tags_of(6)
    kv.write(slots, tags)
    elements = 0
    for view in element_views(kv):
        token = view[1, 2]
        for place in np.ndindex(tuple(token.shape)):
            token[place] ^= 1
            assert kv.matches(slots, tags).tolist() == [True] * 5 + [False]
            token[place] ^= 1
            elements += 1
    assert kv.matches(slots, tags).all()
    layout = kv.layout
    per_layer = [layout.heads_on_rank(s) * (s.dim + layout.scaled) for s in layout.streams]
    assert elements == layout.num_layers * sum(per_layer)


def test_a_wrong_head_layer_or_stream_is_seen(make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(TINY, 1, 1)
    slots, tags = np.array([0]), tags_of(1)
    k, v, k_next = (kv.tensor(0, "k"), kv.tensor(0, "v"), kv.tensor(1, "k"))
    for left, right in [(k[:, :, 0], k[:, :, 1]), (k, v), (k, k_next), (k[..., 0], k[..., 1])]:
        kv.write(slots, tags)
        kept = left.clone()
        left.copy_(right)
        right.copy_(kept)
        assert not kv.matches(slots, tags).any()


@pytest.mark.parametrize("dtype", Dtype)
def test_patterns_are_finite_and_use_every_other_bit(
    torch: ModuleType, make_slots: Callable[..., KVSlots], dtype: Dtype
) -> None:
    kv = make_slots(TINY.with_(dtype=dtype), 16, 16)
    kv.write(np.arange(256), tags_of(256))
    for layer in range(2):
        values = kv.tensor(layer, "k").float()
        assert torch.isfinite(values).all()
        assert values.abs().max() < 2.0
        if kv.layout.scaled:
            assert torch.isfinite(kv.scales(layer, "k")).all()
    for view in element_views(kv):
        bits = view.flatten(0, 1).to(torch.int64) & (256**view.dtype.itemsize - 1)
        ever_set, ever_clear = np.bitwise_or.reduce(bits.numpy()), np.bitwise_or.reduce(~bits.numpy())
        top_of_exponent = 1 << (8 * view.dtype.itemsize - 2)
        every_bit = 256**view.dtype.itemsize - 1
        assert (ever_set == every_bit - top_of_exponent).all()
        assert (ever_clear & every_bit == every_bit).all()


def test_patterns_follow_from_the_tag_and_the_place_alone(
    torch: ModuleType, make_slots: Callable[..., KVSlots]
) -> None:
    few, many = make_slots(TINY, 2, 4), make_slots(TINY, 9, 16)
    few.write(np.array([5]), np.array([42]))
    many.write(np.array([131]), np.array([42]))
    for layer in range(2):
        assert torch.equal(few.tensor(layer, "v")[1, 1], many.tensor(layer, "v")[8, 3])


def test_a_later_write_to_the_same_slot_wins(make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(TINY, 2, 8)
    slots, tags = np.array([3, 9, 3, 3]), np.array([1, 2, 3, 4])
    kv.write(slots, tags)
    assert kv.matches(slots, tags).tolist() == [False, True, False, True]


def test_a_slot_is_scattered_once(torch: ModuleType) -> None:
    """A scatter over many elements keeps no order, so a slot that stands twice must not reach it twice."""
    del torch
    from kvsuite.device.slots import _last_of_each

    slots, tags = _last_of_each(np.array([7, 2, 7, 9, 2]), np.array([10, 11, 12, 13, 14]))
    assert dict(zip(slots.tolist(), tags.tolist(), strict=True)) == {7: 12, 2: 14, 9: 13}


def test_many_tokens_go_in_parts(make_slots: Callable[..., KVSlots], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsuite.device.slots._CHUNK_BYTES", 5 * TINY.bytes_per_token)
    kv = make_slots(TINY, 4, 8)
    slots, tags = np.arange(32), tags_of(32)
    kv.write(slots, tags)
    tags[17] += 1
    assert np.flatnonzero(~kv.matches(slots, tags)).tolist() == [17]


@pytest.mark.parametrize("dtype", Dtype)
def test_a_copy_one_token_short_is_seen(make_slots: Callable[..., KVSlots], dtype: Dtype) -> None:
    kv = make_slots(TINY.with_(dtype=dtype), 4, 8)
    tags = tags_of(8)
    kv.write(np.arange(8), tags)
    kv.copy_block(0, 2, 6)
    assert kv.matches(np.arange(16, 24), tags).tolist() == [True] * 6 + [False] * 2
    kv.copy_block(0, 3)
    assert kv.matches(np.arange(24, 32), tags).all()
    kv.copy_block(0, 1, 0)
    assert not kv.matches(np.arange(8, 16), tags).any()


def test_padding_is_never_written_and_is_cleared_with_its_block(make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(replace(TINY, block_alignment_bytes=256), 5, 3)
    kv.write(np.arange(15), tags_of(15))
    blocks = kv.buffer.bytes.view(5, 512)
    assert not blocks[:, 384:].any()
    assert blocks[:, :384].any(1).all()
    blocks[2, 384:] = 255
    kv.zero_block(2)
    assert not blocks[2].any()
    assert kv.matches(np.arange(15), tags_of(15)).tolist() == [True] * 6 + [False] * 3 + [True] * 6


def test_padding_can_be_the_engine_s_own(make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(TINY, 3, 2, pad_bytes_per_block=24)
    kv.write(np.arange(6), tags_of(6))
    assert kv.pool_bytes == 3 * (2 * 128 + 24)
    assert kv.matches(np.arange(6), tags_of(6)).all()


@pytest.mark.parametrize("slot", [-1, 32])
def test_a_slot_outside_the_pool_is_named(make_slots: Callable[..., KVSlots], slot: int) -> None:
    kv = make_slots(TINY, 4, 8)
    outside = np.array([0, slot])
    said = rf"block {slot // 8} is not in the pool, which has blocks 0 to 3 \(1 of 2 ids"
    for attempt in (kv.write, kv.matches):
        with pytest.raises(BlockError, match=said):
            attempt(outside, np.array([1, 2]))
    with pytest.raises(BlockError, match="not in the pool"):
        kv.copy_block(slot // 8, 0)
    with pytest.raises(BlockError, match="not in the pool"):
        kv.copy_block(0, slot // 8)
    with pytest.raises(BlockError, match="not in the pool"):
        kv.zero_block(slot // 8)
    with pytest.raises(BlockError, match="not in the pool"):
        kv.buffer.keep(outside // 8)
    with pytest.raises(BlockError, match="9 tokens does not fit a block of 8"):
        kv.copy_block(0, 1, 9)
    assert not kv.buffer.bytes.any()


def test_what_cannot_be_is_refused(make_slots: Callable[..., KVSlots]) -> None:
    with pytest.raises(ConfigError, match="both must be positive"):
        make_slots(TINY, 0, 16)
    with pytest.raises(ConfigError, match="no stream 'latent': it has k, v"):
        make_slots(TINY, 1, 1).tensor(0, "latent")
    with pytest.raises(ConfigError, match="no scales for 'k': it has none"):
        make_slots(TINY, 1, 1).scales(0, "k")
    odd = make_slots(LAYOUTS["odd"].with_(dtype=Dtype.FLOAT8_E4M3), 2, 1)
    with pytest.raises(ConfigError, match=r"is not aligned to torch\.float32"):
        odd.scales(0, "k")
