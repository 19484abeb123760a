"""Which kernels there are, why the others are not, and what each refuses before it runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.errors import BlockError, ConfigError, KernelUnavailable, UnsupportedBlockSize
from tests.device.attention.scenes import BLOCK_SIZES, ROUNDOFF, ragged, scene

if TYPE_CHECKING:
    from types import ModuleType

    from kvsuite.device.attention.compiler import Compiler

pytestmark = pytest.mark.usefixtures("torch")


@pytest.mark.parametrize("name", ["call", "flashinfer"])
def test_the_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"kvsuite.device.attention.{name}"))
    assert (results.failed, results.attempted > 0) == (0, True)


def test_the_cpu_prefers_the_kernel_that_prefetches(compiler: Compiler) -> None:
    del compiler
    from kvsuite.device.attention.kernels import available, best_kernel, kernel_named

    choices = available("cpu", Dtype.BFLOAT16)
    assert [choice.name for choice in choices] == ["c-prefetch", "c-plain", "gather-sdpa"]
    assert [choice.problem for choice in choices] == [None] * 3
    assert best_kernel("cpu", Dtype.BFLOAT16).name == "c-prefetch"
    fast, plain = kernel_named("c-prefetch"), kernel_named("c-plain")
    assert fast.source_hash != plain.source_hash
    assert fast.latency_verdict


def test_without_a_compiler_only_the_kernel_that_decides_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvsuite.device.attention.kernels import available, best_kernel, kernel_named

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    choices = {choice.name: choice for choice in available("cpu", Dtype.FLOAT32)}
    for name in ("c-prefetch", "c-plain"):
        problem = choices[name].problem
        assert problem is not None
        assert "cc, gcc, clang" in problem
        assert "says nothing of latency" in problem
    kernel = best_kernel("cpu", Dtype.FLOAT32)
    assert (kernel.name, kernel.latency_verdict) == ("gather-sdpa", False)
    with pytest.raises(KernelUnavailable):
        kernel_named("c-plain")


def test_no_kernel_takes_a_dtype_none_claims(compiler: Compiler) -> None:
    del compiler
    from kvsuite.device.attention.kernels import best_kernel

    with pytest.raises(
        KernelUnavailable, match=r"c-plain: takes float32, bfloat16, float16, not float8_e4m3fn"
    ):
        best_kernel("cpu", Dtype.FLOAT8_E4M3)


def test_a_card_that_is_not_there_is_the_reason_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsuite.device.attention import kernels

    monkeypatch.setattr(kernels, "cuda_problem", lambda index: f"card {index} is not there")
    choices = kernels.available("cuda:3", Dtype.FLOAT16)
    assert [choice.name for choice in choices] == ["triton", "flashinfer", "torch-varlen", "gather-sdpa"]
    assert {choice.problem for choice in choices} == {"card 3 is not there"}


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsuite.device.attention.kernels import kernel_named

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("triton", "flashinfer"):
        with pytest.raises(
            KernelUnavailable, match=f"package {name} is not installed: pip install"
        ) as caught:
            kernel_named(name)
        assert caught.value.looked_for == (name,)


def test_an_unknown_name_lists_the_known() -> None:
    from kvsuite.device.attention.kernels import kernel_named, kernel_names

    with pytest.raises(ConfigError, match=", ".join(kernel_names())):
        kernel_named("magic")


def test_nobody_imports_triton_unasked() -> None:
    program = (
        "import sys, kvsuite.device.attention.kernels as kernels\n"
        "from kvsuite.cache.layout import Dtype\n"
        "kernels.available('cpu', Dtype.FLOAT32)\n"
        "print([name for name in sys.modules if 'triton_kernel' in name or name.startswith('flashinfer')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torchs_own_paged_kernel_takes_multiples_of_256_only(torch: ModuleType) -> None:
    from kvsuite.device.attention.varlen import VarlenKernel

    try:
        kernel = VarlenKernel()
    except KernelUnavailable as error:
        assert torch.__version__ in str(error)  # noqa: PT017
        return
    assert 256 in kernel.block_sizes
    assert 512 in kernel.block_sizes
    assert 128 not in kernel.block_sizes
    with pytest.raises(UnsupportedBlockSize, match="torch-varlen takes a multiple of 256, not blocks of 16"):
        scene([20], 16, dtype=Dtype.FLOAT16).run(kernel)
    call = scene([20], 256, dtype=Dtype.FLOAT16)
    with pytest.raises(ConfigError, match="has no contiguous control"):
        kernel(call.query, call.kv, None, call.lengths, block_size=256, scale=1.0)


def test_an_older_torch_without_a_block_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsuite.device.attention.varlen import VarlenKernel

    class Older:
        @staticmethod
        def varlen_attn(query: object) -> object:
            return query

    monkeypatch.setattr(importlib, "import_module", lambda name: Older)
    with pytest.raises(KernelUnavailable, match="no varlen_attn that takes a block table"):
        VarlenKernel()


@pytest.mark.parametrize(
    "dtype", [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16], ids=lambda dtype: dtype.value
)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_gathering_is_right_at_every_block_size(block_size: int, dtype: Dtype) -> None:
    from kvsuite.device.attention.sdpa import GatherSdpa

    kernel = GatherSdpa()
    assert not kernel.latency_verdict
    call = scene(ragged(block_size), block_size, dtype=dtype, seed=block_size, in_slots=block_size == 16)
    assert call.error(call.run(kernel)) <= call.bound


def test_gathering_one_token_too_many_is_told() -> None:
    from kvsuite.device.attention.sdpa import GatherSdpa

    call = scene([20, 70], 16)
    longer = call.with_(lengths=call.lengths + 1)
    assert not call.error(longer.run(GatherSdpa())) <= call.bound


def test_gathering_refuses_what_the_c_kernel_refuses(torch: ModuleType) -> None:
    from kvsuite.device.attention.sdpa import GatherSdpa

    call = scene([20, 5], 8)
    with pytest.raises(ConfigError, match=r"length of sequence 1 is not from 1 to the 40 tokens"):
        call.with_(lengths=torch.tensor([20, 0], dtype=torch.int32)).run(GatherSdpa())
    tables = call.tables.clone()
    tables[0, 2] = call.kv.num_blocks
    with pytest.raises(BlockError, match=r"entry 2 of the table of sequence 0 is no block of the pool"):
        call.with_(tables=tables).run(GatherSdpa())


@pytest.mark.parametrize(
    "dtype", [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16], ids=lambda dtype: dtype.value
)
def test_the_yardstick_computes_the_same_attention(dtype: Dtype, torch: ModuleType) -> None:
    from kvsuite.device.attention.pool import OneBuffer
    from kvsuite.device.attention.sdpa import ContiguousSdpa, GatherSdpa

    pool = OneBuffer(2, 192, kv_heads=2, head_dim=64, dtype=dtype)
    query = torch.randn(2, 8, 64).to(pool.buffer.dtype)
    due = GatherSdpa()(query.float(), pool.contiguous(), None, pool.lengths, block_size=192, scale=0.125)
    got = ContiguousSdpa(pool.contiguous())(query, scale=0.125)
    error = float((got.double() - due.double()).norm() / due.double().norm())
    # Its weights and its output are rounded to the cache's dtype, and the sums in between are its own affair.
    assert error <= 2 * ROUNDOFF[Dtype.FLOAT32] * (8 + 192**0.5 + 8) + 2 * ROUNDOFF[dtype]


def test_one_buffer_is_the_same_memory_at_every_block_size(torch: ModuleType) -> None:
    from kvsuite.device.attention.pool import OneBuffer

    pool = OneBuffer(2, 64, kv_heads=2, head_dim=8, dtype=Dtype.BFLOAT16)
    assert pool.nbytes == 2 * 2 * 64 * 2 * 8 * 2
    for block_size in (1, 4, 64):
        view = pool.view(block_size)
        assert (view.k.data_ptr(), view.v.data_ptr()) == tuple(plane.data_ptr() for plane in pool.buffer)
        assert pool.in_order(block_size).flatten().tolist() == list(range(128 // block_size))
        shuffled = pool.shuffled(block_size).flatten().tolist()
        assert sorted(shuffled) == list(range(128 // block_size))
    assert pool.shuffled(1).flatten().tolist() != list(range(128))
    assert torch.equal(pool.shuffled(4), pool.shuffled(4))
    for refused in (3, 0, 128):
        with pytest.raises(ConfigError, match="do not divide a context of 64"):
            pool.view(refused)


def changed(call: Any, **changes: Any) -> dict[str, Any]:
    given = {"query": call.query, "kv": call.kv, "block_tables": call.tables, "lengths": call.lengths}
    return {**given, "block_size": call.kv.block_size, "scale": call.scale, **changes}


def test_shapes_and_dtypes_that_do_not_fit_are_refused(torch: ModuleType) -> None:
    from kvsuite.device.attention.call import KVView
    from kvsuite.device.attention.sdpa import GatherSdpa

    call, kernel = scene([20, 5], 8), GatherSdpa()
    eight = torch.zeros(3, 8, 2, 64, dtype=torch.float64)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"block_size": 16}, "block size 16 was given for a pool of blocks of 8"),
        ({"query": call.query[:1]}, r"query \(1, 8, 64\): expected \[2 sequences"),
        ({"query": call.query[:, :7]}, r"a multiple of 2 heads"),
        ({"query": call.query.double()}, "a query of torch.float64"),
        ({"kv": KVView(eight, eight)}, "attention over torch.float64"),
        ({"block_tables": call.tables.long()}, "block_tables torch.int64"),
        ({"block_tables": call.tables[:1]}, "block_tables"),
        ({"block_tables": call.tables[:, ::2]}, "contiguous"),
        ({"lengths": call.lengths.long()}, "lengths torch.int64"),
        ({"block_tables": None, "kv": KVView(call.kv.k[:1], call.kv.v[:1])}, "one each is needed"),
    ]
    for changes, message in refused:
        with pytest.raises(ConfigError, match=message):
            kernel(**changed(call, **changes))
    with pytest.raises(ConfigError, match="expected two alike"):
        KVView(call.kv.k, call.kv.v[:2])
    with pytest.raises(ConfigError, match="heads and elements together"):
        KVView(call.kv.k.transpose(2, 3), call.kv.v.transpose(2, 3))


def test_plain_reading_reads_every_word(compiler: Compiler, torch: ModuleType) -> None:
    from kvsuite.device.attention.bandwidth import PlainRead

    read = PlainRead(compiler)
    words = torch.arange(64 * 5, dtype=torch.int64) + 7
    assert read(words) == 64 * 5 * 7 + sum(range(64 * 5))
    assert read(-torch.ones(64, dtype=torch.int64)) == 2**64 - 64
    with pytest.raises(ConfigError, match="units of 512 bytes"):
        read(words[:3])
