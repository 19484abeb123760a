"""The C kernel against float64, its builds against each other, and wrong kernels against the same check."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.errors import BlockError, ConfigError
from tests.device.attention.scenes import BLOCK_SIZES, ROUNDOFF, ragged, scene

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from kvsuite.device.attention.c_kernel import CKernel
    from kvsuite.device.attention.compiler import Compiler

DTYPES = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)
HEADS = ((32, 8, 128), (8, 8, 64), (4, 1, 64), (14, 2, 64), (2, 1, 24), (4, 2, 8))
"""Query heads, KV heads, head dim: groups of 4, 1, 4, 7 and 2; the last two are too narrow for 16 lanes."""


@pytest.fixture(scope="session")
def fast(compiler: Compiler) -> CKernel:
    from kvsuite.device.attention.c_kernel import CKernel

    return CKernel(prefetch=True, compiler=compiler)


@pytest.fixture(scope="session")
def plain(compiler: Compiler) -> CKernel:
    from kvsuite.device.attention.c_kernel import CKernel

    return CKernel(prefetch=False, compiler=compiler)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_both_builds_are_right_at_every_block_size_and_give_the_same_bits(
    block_size: int, dtype: Dtype, fast: CKernel, plain: CKernel, torch: ModuleType
) -> None:
    call = scene(ragged(block_size), block_size, dtype=dtype, seed=block_size)
    out = call.run(fast)
    assert out.dtype is torch.float32
    assert call.error(out) <= call.bound
    assert torch.equal(out, call.run(plain))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: "-".join(map(str, heads)))
def test_every_grouping_of_heads_is_right(heads: tuple[int, int, int], dtype: Dtype, fast: CKernel) -> None:
    query_heads, kv_heads, head_dim = heads
    call = scene(
        [65, 7, 128],
        16,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
    )
    assert call.error(call.run(fast)) <= call.bound


def test_it_reads_the_slots_of_a_pool_where_they_lie(fast: CKernel) -> None:
    call = scene(ragged(16), 16, dtype=Dtype.BFLOAT16, in_slots=True)
    assert not call.kv.k.is_contiguous()
    assert call.error(call.run(fast)) <= call.bound


def test_an_output_of_the_queries_dtype_is_rounded_once(fast: CKernel, torch: ModuleType) -> None:
    call = scene([40, 300], 16, dtype=Dtype.BFLOAT16, query_dtype=Dtype.BFLOAT16)
    out = call.run(fast)
    assert out.dtype is torch.bfloat16
    assert torch.equal(out, call.with_(query=call.query.float()).run(fast).bfloat16())
    assert call.error(out) <= call.bound + ROUNDOFF[Dtype.BFLOAT16]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_float16_keeps_subnormals_infinities_and_nan(length: int, fast: CKernel, torch: ModuleType) -> None:
    call = scene([length], 8, query_heads=2, kv_heads=2, dtype=Dtype.FLOAT16)
    values = call.kv.v
    values[values.isfinite()] *= 2.0**-16  # most of them below the smallest normal, 2^-14
    assert call.error(call.run(fast)) <= call.bound
    block, offset = int(call.tables[0, (length - 1) // 8]), (length - 1) % 8
    values[block, offset, 0, 3], values[block, offset, 1, 5] = torch.inf, torch.nan
    out = call.run(fast)
    assert out[0, 0, 3] == torch.inf
    assert out[0, 1, 5].isnan()
    assert out.isfinite().sum() == out.numel() - 2
    call.kv.k[block, offset, 0, 0] = torch.nan
    assert call.run(fast)[0, 0].isnan().all()


def test_the_contiguous_control_is_the_same_bits_as_any_table(
    fast: CKernel, plain: CKernel, torch: ModuleType
) -> None:
    from kvsuite.device.attention.pool import OneBuffer

    for dtype in DTYPES:
        pool = OneBuffer(3, 256, kv_heads=2, head_dim=64, dtype=dtype)
        query = torch.randn(3, 8, 64)
        lengths = torch.tensor([256, 100, 1], dtype=torch.int32)
        for kernel in (fast, plain):
            control = kernel(query, pool.contiguous(), None, lengths, block_size=256, scale=0.125)
            for block_size in BLOCK_SIZES:
                view, table = pool.view(block_size), pool.in_order(block_size)
                paged = kernel(query, view, table, lengths, block_size=block_size, scale=0.125)
                assert torch.equal(paged, control)
                moved = torch.empty_like(pool.buffer)
                shuffled = pool.shuffled(block_size)
                for target, source in zip(shuffled.flatten().tolist(), table.flatten().tolist(), strict=True):
                    tokens = slice(source * block_size, (source + 1) * block_size)
                    moved[:, target * block_size : (target + 1) * block_size] = pool.buffer[:, tokens]
                there = type(view)(*moved.view(2, -1, block_size, 2, 64))
                paged = kernel(query, there, shuffled, lengths, block_size=block_size, scale=0.125)
                assert torch.equal(paged, control)


def test_threads_may_call_it_at_once(fast: CKernel, torch: ModuleType) -> None:
    call = scene([300, 17, 200, 64], 4)
    whole = call.run(fast)
    halves = [
        call.with_(query=call.query[part], tables=call.tables[part].clone(), lengths=call.lengths[part])
        for part in (slice(0, 2), slice(2, 4))
    ]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            parts = list(pool.map(lambda half: half.run(fast), halves))
            assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
def test_arrays_of_numpy_give_the_same_bits(dtype: Dtype, fast: CKernel, torch: ModuleType) -> None:
    call = scene([33, 5], 8, dtype=dtype, in_slots=True)
    bits = {Dtype.BFLOAT16: torch.uint16}.get(dtype, call.kv.k.dtype)
    keys, values = call.kv.k.view(bits).numpy(), call.kv.v.view(bits).numpy()
    out = fast.decode_arrays(
        call.query.numpy(), keys, values, call.tables.numpy(), call.lengths.numpy(), scale=call.scale
    )
    assert np.array_equal(out, call.run(fast).numpy())
    lengths = call.lengths.numpy()
    with pytest.raises(ConfigError, match="a row of the table for each"):
        fast.decode_arrays(call.query.numpy(), keys, values, call.tables.numpy()[:1], lengths, scale=1.0)
    with pytest.raises(ConfigError, match="does not fit 2 sequences"):
        fast.decode_arrays(call.query.numpy()[:1], keys, values, call.tables.numpy(), lengths, scale=1.0)
    with pytest.raises(ConfigError, match="expected two alike"):
        fast.decode_arrays(call.query.numpy(), keys, values[:1], call.tables.numpy(), lengths, scale=1.0)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("(call->lengths[sequence] + 1)", "call->lengths[sequence]"),
        ("+ (entry ? entry - 1 : entry)]", "+ entry]"),
        ("token < TILE; entry++", "token < tokens; entry++"),
        ("int64_t row = block * call->block_stride;", None),
        ("int64_t row = sequence * call->block_stride + offset * call->token_stride;", None),
        ("weight[lane] += 0;", "weight[lane] = 0;"),
        ("decay = (vec){} + 1.0f;", "decay = exp_of(before - peak);"),
        ("column = 0;", "column = head * HEAD_DIM;"),
        ("values = call->values;", "values = call->values + head * HEAD_DIM;"),
        ("* decay + 2 * total", "* decay + total"),
    ],
)
def test_a_wrong_kernel_is_told_by_the_same_check(
    wrong: str,
    right: str | None,
    compiler: Compiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: ModuleType,
) -> None:
    from kvsuite.device.attention import c_kernel

    text = c_kernel.SOURCE.read_text(encoding="utf-8")
    right = right or "int64_t row = block * call->block_stride + offset * call->token_stride;"
    assert right in text
    mutant = tmp_path / "decode.c"
    mutant.write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(c_kernel, "SOURCE", mutant)
    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path / "cache"))
    call = scene([1, 130, 127, 300], 128, seed=3)
    try:
        out = call.run(c_kernel.CKernel(compiler=compiler))
    except BlockError:
        return
    assert not call.error(out) <= call.bound


def test_a_token_too_many_and_a_swapped_entry_are_told_without_poison(
    fast: CKernel, torch: ModuleType
) -> None:
    call = scene([100, 64], 16)
    for plane in (call.kv.k, call.kv.v):
        plane.copy_(torch.where(plane.isnan(), torch.randn(plane.shape), plane))
    assert call.error(call.run(fast)) <= call.bound
    longer = call.with_(lengths=call.lengths + torch.tensor([1, 0], dtype=torch.int32))
    assert not call.error(longer.run(fast)) <= call.bound
    tables = call.tables.clone()
    tables[0, 6], tables[1, 3] = call.tables[1, 3], call.tables[0, 6]
    assert not call.error(call.with_(tables=tables).run(fast)) <= call.bound


def test_what_cannot_be_is_refused_by_name(fast: CKernel, torch: ModuleType) -> None:
    call = scene([20, 5], 8)
    short = torch.tensor([20, 0], dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"length of sequence 1 is not from 1 to the 40 tokens"):
        call.with_(lengths=short).run(fast)
    long = torch.tensor([41, 5], dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"length of sequence 0 is not from 1 to the 40 tokens"):
        call.with_(lengths=long).run(fast)
    for bad in (-1, call.kv.num_blocks):
        tables = call.tables.clone()
        tables[0, 2] = bad
        with pytest.raises(BlockError, match=r"entry 2 of the table of sequence 0 is no block of the pool"):
            call.with_(tables=tables).run(fast)
    narrow = scene([3], 2, head_dim=12)
    with pytest.raises(ConfigError, match="multiples of 8, not 12"):
        narrow.run(fast)


def test_eight_lanes_are_right_too(compiler: Compiler) -> None:
    from kvsuite.device.attention.c_kernel import CKernel
    from kvsuite.device.attention.compiler import Compiler as Named
    from kvsuite.errors import KernelUnavailable

    kernel = CKernel(compiler=Named((*compiler.command, "-mno-avx512f"), compiler.version))
    call = scene(ragged(16), 16, head_dim=128, dtype=Dtype.BFLOAT16)
    try:
        out = call.run(kernel)
    except KernelUnavailable:
        pytest.skip("this compiler has no -mno-avx512f")
    assert call.error(out) <= call.bound
