"""The kernels of a card, on a card: every claimed block size and dtype against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.errors import KernelUnavailable
from tests.device.attention.scenes import BLOCK_SIZES, ROUNDOFF, Scene, ragged, scene

if TYPE_CHECKING:
    from types import ModuleType

POISON_PROOF = ("triton", "gather-sdpa")
"""Kernels that are ours to keep from reading what no sequence owns; others get a pool without NaN."""


def on(card: str, call: Scene) -> Scene:
    from kvsuite.device.attention.call import KVView

    return call.with_(
        query=call.query.to(card),
        kv=KVView(call.kv.k.to(card), call.kv.v.to(card)),
        tables=call.tables.to(card),
        lengths=call.lengths.to(card),
    )


@pytest.mark.parametrize(
    "dtype", [Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32], ids=lambda dtype: dtype.value
)
@pytest.mark.parametrize("name", ["triton", "flashinfer", "torch-varlen", "gather-sdpa"])
def test_a_kernel_is_right_on_the_card(name: str, dtype: Dtype, card: str, torch: ModuleType) -> None:
    from kvsuite.device.attention.kernels import kernel_named

    try:
        kernel = kernel_named(name)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    if dtype not in kernel.dtypes:
        pytest.skip(f"{name} does not claim {dtype.value}")
    for block_size in BLOCK_SIZES:
        if block_size not in kernel.block_sizes:
            continue
        call = scene(
            ragged(block_size),
            block_size,
            query_heads=32,
            kv_heads=8,
            head_dim=128,
            dtype=dtype,
            query_dtype=dtype,
            seed=block_size,
        )
        if name not in POISON_PROOF:
            for plane in (call.kv.k, call.kv.v):
                plane.copy_(plane.nan_to_num(100.0))
            call.tables.clamp_(0, call.kv.num_blocks - 1)
        out = on(card, call).run(kernel).cpu()
        torch.cuda.synchronize()
        assert call.error(out) <= call.bound + 3 * ROUNDOFF[dtype], block_size
