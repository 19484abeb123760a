"""Attention in float64 through a block table, and how far from it a kernel may be.

A kernel sums in float32, whose unit roundoff is u = 2^-24: ``head_dim`` products for a score and as many
weighted values as a sequence has tokens. The error of n terms grows like sqrt(n) u, an exponential adds a few
u, and twice the sum leaves room for the draw. Query, weights and output add the roundoff of their dtype each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kvsuite.cache.layout import Dtype

if TYPE_CHECKING:
    from kvsuite.device.attention.call import KVView

ROUNDOFF = {Dtype.FLOAT32: 2.0**-24, Dtype.FLOAT16: 2.0**-11, Dtype.BFLOAT16: 2.0**-8}


def exact_attention(
    query: torch.Tensor, kv: KVView, block_tables: torch.Tensor, lengths: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """Return ``[sequences, query_heads, head_dim]`` in float64, on the query's device.

    Arguments are those of `kvsuite.device.attention.call`.
    """
    out = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    for sequence, length in enumerate(lengths.tolist()):
        blocks = block_tables[sequence, : -(-length // kv.block_size)].long()
        keys, values = (part[blocks].flatten(0, 1)[:length].double() for part in (kv.k, kv.v))
        heads = query[sequence].double().view(kv.kv_heads, -1, kv.head_dim)
        weights = torch.softmax(torch.einsum("hgd,thd->hgt", heads, keys) * scale, dim=-1)
        out[sequence] = torch.einsum("hgt,thd->hgd", weights, values).flatten(0, 1)
    return out


def relative_error(out: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of what differs over the norm of what is due; NaN where ``out`` holds one."""
    return float(torch.linalg.norm(out.double() - exact) / torch.linalg.norm(exact))


def error_bound(dtype: Dtype, *, head_dim: int, longest: int) -> float:
    """Return the bound on `relative_error` over a cache of ``dtype`` whose longest sequence is ``longest``.

    >>> round(error_bound(Dtype.BFLOAT16, head_dim=64, longest=256) * 2**8, 4)
    3.001
    """
    float32 = 2 * ROUNDOFF[Dtype.FLOAT32] * (math.sqrt(head_dim) + math.sqrt(longest) + 8)
    return float32 + 3 * ROUNDOFF[dtype]
