"""Run as a program, in an interpreter of its own: the Triton kernel on the CPU, one JSON line a case.

``TRITON_INTERPRET`` has to be set before triton is imported, and stays set for the process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

os.environ["TRITON_INTERPRET"] = "1"

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.pool import OneBuffer
from kvsuite.device.attention.triton_kernel import TritonKernel
from tests.device.attention.scenes import BLOCK_SIZES, ROUNDOFF, Scene, ragged, scene

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = (Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16)


def bound_of(call: Scene, dtype: Dtype) -> float:
    """Float32's bound; queries, weights and output are each rounded to the cache's dtype."""
    return call.bound + 3 * ROUNDOFF[dtype]


def cases() -> Iterator[tuple[str, float, float]]:
    for dtype in DTYPES:
        for block_size in BLOCK_SIZES:
            call = scene(
                ragged(block_size), block_size, query_heads=4, kv_heads=1, dtype=dtype, seed=block_size
            )
            for splits in (1, 3):
                error = call.error(call.run(TritonKernel(splits)))
                yield f"{dtype.value} block {block_size} splits {splits}", error, bound_of(call, dtype)
        for heads in ((32, 8, 128), (2, 2, 16), (7, 1, 32)):
            query_heads, kv_heads, head_dim = heads
            call = scene(
                [70, 3],
                16,
                query_heads=query_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                dtype=dtype,
                query_dtype=dtype,
                in_slots=True,
            )
            yield f"{dtype.value} heads {heads}", call.error(call.run(TritonKernel(2))), bound_of(call, dtype)


def wrong_cases() -> Iterator[tuple[str, float, float]]:
    call = scene([100, 64], 16)
    for plane in (call.kv.k, call.kv.v):
        plane.copy_(torch.where(plane.isnan(), torch.randn(plane.shape), plane))
    kernel, bound = TritonKernel(2), bound_of(call, Dtype.FLOAT32)
    yield "right", call.error(call.run(kernel)), bound
    longer = call.lengths + torch.tensor([1, 0], dtype=torch.int32)
    yield "wrong: a token too many", call.error(call.with_(lengths=longer).run(kernel)), bound
    tables = call.tables.clone()
    tables[0, 6], tables[1, 3] = call.tables[1, 3], call.tables[0, 6]
    yield "wrong: swapped entries", call.error(call.with_(tables=tables).run(kernel)), bound


def control_cases() -> Iterator[tuple[str, float, float]]:
    """The control's bits: 0 where they are the same."""
    for dtype in DTYPES:
        pool = OneBuffer(2, 128, kv_heads=2, head_dim=32, dtype=dtype)
        query, kernel = torch.randn(2, 4, 32), TritonKernel(2)
        lengths = torch.tensor([128, 77], dtype=torch.int32)
        control = kernel(query, pool.contiguous(), None, lengths, block_size=128, scale=0.2)
        for block_size in (1, 8, 128):
            view, table = pool.view(block_size), pool.in_order(block_size)
            paged = kernel(query, view, table, lengths, block_size=block_size, scale=0.2)
            yield f"control {dtype.value} block {block_size}", float(not torch.equal(paged, control)), 0.0


if __name__ == "__main__":
    for produce in (cases, wrong_cases, control_cases):
        for name, error, bound in produce():
            sys.stdout.write(json.dumps({"case": name, "error": error, "bound": bound}) + "\n")
