"""The CUDA kernel, in Triton. Importing this module imports triton; `kernels` does so only when asked.

Two launches. The first splits a sequence's tokens among programs, one for each (sequence, KV head, split): a
tile of tokens at a time is gathered through the table, each token by itself, so that a tile may span many
blocks or lie inside one. Each leaves a peak, a total and a weighted sum; the second launch joins the splits
of a query head.

With ``TRITON_INTERPRET=1`` set before triton is imported it runs on the CPU, where it is checked. The
interpreter keeps bfloat16 as 16-bit integers and its ``dot`` multiplies those (triton issue 11584), so
operands are widened there, after the same roundings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes, KVView, check_call
from kvsuite.device.attention.sdpa import hash_of
from kvsuite.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from kvsuite.device.attention.call import DecodeAttention

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TILE_TOKENS = 64
MAX_SPLITS = 64
_DOT_ROWS = 16
"""The fewest rows that ``dot`` takes; query heads of a group are filled up to it."""
_PROGRAMS_A_PROCESSOR = 2


@triton.jit
def _attend(
    query,
    keys,
    values,
    tables,
    lengths,
    sums,
    peaks,
    totals,
    scale,
    block_stride,
    token_stride,
    table_width,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PAGED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + sequence)
    span = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    begin = split * span
    end = tl.minimum(begin + span, length)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    heads = (sequence * KV_HEADS + head) * GROUP + rows
    real = rows < GROUP
    q = tl.load(query + heads[:, None] * HEAD_DIM + dims[None, :], mask=real[:, None], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, HEAD_DIM], tl.float32)

    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        there = token < end
        if PAGED:
            entry = tables + sequence * table_width + token // BLOCK_SIZE
            block = tl.load(entry, mask=there, other=0).to(tl.int64)
            row = block * block_stride + (token % BLOCK_SIZE).to(tl.int64) * token_stride
        else:
            row = sequence.to(tl.int64) * block_stride + token.to(tl.int64) * token_stride
        where = row[:, None] + head * HEAD_DIM + dims[None, :]
        k = tl.load(keys + where, mask=there[:, None], other=0.0)
        v = tl.load(values + where, mask=there[:, None], other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        decay = tl.exp(peak - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * decay + tl.sum(weights, 1)
        weights = weights.to(v.dtype)
        if WIDEN:
            weights = weights.to(tl.float32)
            v = v.to(tl.float32)
        summed = summed * decay[:, None] + tl.dot(weights, v, input_precision="ieee")
        peak = higher

    part = heads * SPLITS + split
    tl.store(sums + part[:, None] * HEAD_DIM + dims[None, :], summed, mask=real[:, None])
    tl.store(peaks + part, peak, mask=real)
    tl.store(totals + part, total, mask=real)


@triton.jit
def _join(
    sums,
    peaks,
    totals,
    out,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(0)
    split = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_DIM)
    part = head * SPLITS + split
    there = split < SPLITS
    peak = tl.load(peaks + part, mask=there, other=float("-inf"))
    weight = tl.exp(peak - tl.max(peak, 0))  # 0 for a split without tokens
    total = tl.sum(weight * tl.load(totals + part, mask=there, other=0.0), 0)
    summed = tl.load(sums + part[:, None] * HEAD_DIM + dims[None, :], mask=there[:, None], other=0.0)
    joined = tl.sum(summed * weight[:, None], 0) / total
    tl.store(out + head * HEAD_DIM + dims, joined.to(out.dtype.element_ty))


class TritonKernel:
    """Decode attention on a CUDA card, or in Triton's interpreter on the CPU; head dims are powers of two.

    ``splits`` programs share a sequence's tokens; by default as many as fill the card. Calls that are to be
    compared bit for bit need the same number. Lengths and table entries are not checked: they stay on the
    card.

    **Raises:** `ConfigError` for a shape it does not take, `DeviceError` for tensors on a CPU that is not
    interpreting.
    """

    name = "triton"
    dtypes = (Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32)
    block_sizes = BlockSizes(powers_of_two=True, largest=256)

    def __init__(self, splits: int | None = None) -> None:
        if splits is not None and not 1 <= splits <= MAX_SPLITS:
            raise ConfigError(f"{splits} splits: expected 1 to {MAX_SPLITS}")
        self.splits = splits
        self.source_hash = hash_of(__file__, triton.__version__, torch.__version__)
        self.latency_verdict = not INTERPRETED

    def __call__(
        self,
        query: torch.Tensor,
        kv: KVView,
        block_tables: torch.Tensor | None,
        lengths: torch.Tensor,
        *,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        """Return ``[sequences, query_heads, head_dim]`` as `kvsuite.device.attention.call` says."""
        kernel: DecodeAttention = self
        check_call(kernel, query, kv, block_tables, lengths, block_size)
        head_dim, dtype = kv.head_dim, kv.k.dtype
        if head_dim < _DOT_ROWS or head_dim & (head_dim - 1):
            raise ConfigError(
                f"triton takes head dims that are powers of two from {_DOT_ROWS}, not {head_dim}"
            )
        if query.device.type != "cuda" and not INTERPRETED:
            raise DeviceError(
                f"triton runs on a card, or with TRITON_INTERPRET=1; the query is on {query.device}"
            )
        sequences, query_heads, _ = query.shape
        width = 1 if block_tables is None else block_tables.shape[1]
        splits = self._splits_for(query.device, sequences * kv.kv_heads, width * block_size)
        parts = (sequences, query_heads, splits)
        sums = torch.empty(*parts, head_dim, dtype=torch.float32, device=query.device)
        peaks = torch.empty(parts, dtype=torch.float32, device=query.device)
        totals = torch.empty_like(peaks)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        group = query_heads // kv.kv_heads
        _attend[sequences, kv.kv_heads, splits](
            query.to(dtype).contiguous(),
            kv.k,
            kv.v,
            lengths if block_tables is None else block_tables,
            lengths,
            sums,
            peaks,
            totals,
            scale,
            kv.k.stride(0),
            kv.k.stride(1),
            width,
            KV_HEADS=kv.kv_heads,
            GROUP=group,
            ROWS=max(_DOT_ROWS, triton.next_power_of_2(group)),
            HEAD_DIM=head_dim,
            BLOCK_SIZE=block_size,
            TILE=TILE_TOKENS,
            SPLITS=splits,
            PAGED=block_tables is not None,
            WIDEN=INTERPRETED and dtype is torch.bfloat16,
        )
        rows = triton.next_power_of_2(splits)
        _join[(sequences * query_heads,)](
            sums, peaks, totals, out, HEAD_DIM=head_dim, SPLITS=splits, ROWS=rows
        )
        return out

    def _splits_for(self, device: torch.device, programs: int, capacity_tokens: int) -> int:
        if self.splits is not None:
            return self.splits
        if device.type != "cuda":
            return 1
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        wanted = -(-_PROGRAMS_A_PROCESSOR * processors // programs)
        return max(1, min(wanted, -(-capacity_tokens // TILE_TOKENS), MAX_SPLITS))
