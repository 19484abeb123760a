"""Bytes of a cache; expected values are products worked out by hand from the published model shapes."""

from dataclasses import replace

import pytest

from kvsuite.cache.layout import (
    Dtype,
    Layout,
    Stream,
    attention_layout,
    mla_layout,
    model_layout,
    model_names,
)
from kvsuite.errors import ConfigError


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("llama-2-7b", 32 * 2 * 32 * 128 * 2),  # MHA
        ("llama-3.1-8b", 131_072),  # GQA, 32 x 2 x 8 x 128 x 2
        ("llama-3.1-70b", 327_680),
        ("qwen2.5-7b", 57_344),
        ("falcon-7b", 32 * 2 * 1 * 64 * 2),  # MQA
        ("deepseek-v3", 61 * (512 + 64) * 2),  # MLA: one latent, no values
    ],
)
def test_bytes_of_a_token(model: str, bytes_per_token: int) -> None:
    assert model_layout(model).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(("dtype", "factor"), [("fp32", 2), ("fp16", 1), ("bf16", 1)])
def test_bytes_follow_the_element_width(dtype: str, factor: int) -> None:
    layout = model_layout("llama-3.1-8b").with_(dtype=Dtype.parse(dtype))
    assert layout.bytes_per_token == factor * 131_072


def test_fp8_halves_the_elements_and_adds_a_scale_a_head() -> None:
    layout = model_layout("llama-3.1-8b").with_(dtype=Dtype.parse("fp8"))
    assert layout.scaled
    assert layout.bytes_per_token == 32 * 2 * 8 * (128 * 1 + 4)
    assert layout.with_(dtype=Dtype.BFLOAT16) == model_layout("llama-3.1-8b")


def test_a_stream_with_a_width_of_its_own_keeps_it() -> None:
    """An index of 132 one-byte elements beside a latent of 576 two-byte ones, over 78 layers."""
    latent = Stream("latent", 1, 576, replicated=True)
    index = Stream("index", 1, 132, replicated=True, dtype=Dtype.FLOAT8_E4M3)
    layout = Layout("indexed", 78, (latent, index), Dtype.BFLOAT16)
    assert layout.bytes_per_token == 78 * (576 * 2 + 132 * 1) == 100_152
    assert replace(layout, dtype=Dtype.FLOAT32).bytes_per_token == 78 * (576 * 4 + 132)
    assert str(layout) == "indexed L78 latent1x576+index1x132:float8_e4m3fn bfloat16 tp1"


@pytest.mark.parametrize(
    ("tp_size", "bytes_per_token", "replication"),
    [(1, 131_072, 1.0), (2, 65_536, 1.0), (8, 16_384, 1.0), (16, 16_384, 2.0), (32, 16_384, 4.0)],
)
def test_a_rank_holds_its_share_of_heads_and_never_less_than_one(
    tp_size: int, bytes_per_token: int, replication: float
) -> None:
    layout = replace(model_layout("llama-3.1-8b"), tp_size=tp_size)
    assert layout.bytes_per_token == bytes_per_token
    assert layout.head_replication(layout.streams[0]) == replication


def test_heads_that_do_not_divide_are_rounded_up() -> None:
    layout = replace(attention_layout("odd", num_layers=1, kv_heads=3, head_dim=4), tp_size=2)
    assert layout.bytes_per_token == 2 * 2 * 4 * 2


def test_a_latent_is_whole_on_every_rank() -> None:
    layout = mla_layout("latent", num_layers=1, latent_dim=512, rope_dim=64)
    assert replace(layout, tp_size=8, tp_rank=7).bytes_per_token == layout.bytes_per_token == 1_152


@pytest.mark.parametrize(
    ("block_size", "block_bytes", "pad"), [(1, 512, 384), (4, 512, 0), (5, 1024, 384), (16, 2048, 0)]
)
def test_blocks_are_rounded_up_to_their_alignment(block_size: int, block_bytes: int, pad: int) -> None:
    layout = replace(model_layout("tiny"), block_alignment_bytes=512)
    assert layout.bytes_per_token == 128  # 2 layers x 2 streams x 2 heads x 8 x 2
    assert layout.block_bytes(block_size) == block_bytes
    assert layout.pad_bytes_per_block(block_size) == pad


def test_a_pool_holds_whole_blocks_only() -> None:
    layout = model_layout("tiny")
    assert [layout.blocks_in(pool, 16) for pool in (2047, 2048, 6143)] == [0, 1, 2]
    assert layout.blocks_in(20 << 30, 16) == 10_485_760


def test_doubling_the_block_leaves_the_bytes_of_a_slot() -> None:
    layout = model_layout("qwen2.5-7b")
    assert all(
        layout.block_bytes(size) // size == layout.bytes_per_token for size in (1, 2, 4, 8, 16, 32, 64)
    )


def test_the_text_of_a_layout_tells_layouts_apart() -> None:
    base = model_layout("llama-3.1-8b")
    others = [
        base,
        base.with_(dtype=Dtype.FLOAT8_E4M3),
        base.with_(num_layers=2),
        replace(base, tp_size=2),
        replace(base, block_alignment_bytes=512),
    ]
    assert str(base) == "llama-3.1-8b L32 k8x128+v8x128 bfloat16 tp1"
    assert len({str(layout) for layout in others}) == len(others)


def test_every_model_has_a_layout() -> None:
    assert all(model_layout(name).name == name for name in model_names())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "0 layers and 2 streams"),
        ({"streams": ()}, "2 layers and 0 streams"),
        ({"streams": (Stream("k", 0, 8),)}, "at least one head of one element"),
        ({"tp_size": 2, "tp_rank": 2}, "rank 2 is not among 2 ranks"),
        ({"tp_size": 0}, "rank 0 is not among 0 ranks"),
        ({"block_alignment_bytes": 0}, "block alignment 0 is not positive"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {
        "name": "x",
        "num_layers": 2,
        "streams": (Stream("k", 1, 8), Stream("v", 1, 8)),
        "dtype": Dtype.FLOAT16,
    }
    with pytest.raises(ConfigError, match=message):
        Layout(**(fields | change))  # type: ignore[arg-type]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown dtype 'int3': expected one of fp32, fp16, bf16, fp8"):
        Dtype.parse("int3")
    with pytest.raises(ConfigError, match=r"unknown model 'gpt-9': expected one of llama-2-7b"):
        model_layout("gpt-9")


@pytest.mark.parametrize("block_size", [0, -16])
def test_a_block_of_no_tokens_is_refused(block_size: int) -> None:
    with pytest.raises(ConfigError, match=f"block size {block_size} is not positive"):
        model_layout("tiny").blocks_in(1 << 20, block_size)
