"""torch's own attention through a block table, ``varlen_attn``: CUDA only, with FlashAttention 2 inside."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes, KVView, check_call
from kvsuite.device.attention.sdpa import hash_of
from kvsuite.errors import ConfigError, KernelUnavailable

_MODULE = "torch.nn.attention.varlen"


class VarlenKernel:
    """``torch.nn.attention.varlen.varlen_attn``; FlashAttention 2 takes blocks of multiples of 256 tokens.

    **Raises:** `KernelUnavailable` where this torch has none that takes a block table.
    """

    name = "torch-varlen"
    dtypes = (Dtype.FLOAT16, Dtype.BFLOAT16)
    block_sizes = BlockSizes(multiple_of=256)
    latency_verdict = True

    def __init__(self) -> None:
        try:
            self._attend: Any = importlib.import_module(_MODULE).varlen_attn
        except (ImportError, AttributeError):
            self._attend = None
        if self._attend is None or "block_table" not in inspect.signature(self._attend).parameters:
            raise KernelUnavailable(
                f"torch {torch.__version__} has no varlen_attn that takes a block table: 2.13 has", (_MODULE,)
            )
        self.source_hash = hash_of(__file__, torch.__version__)

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
        check_call(self, query, kv, block_tables, lengths, block_size)
        if block_tables is None:
            raise ConfigError(f"{self.name} has no contiguous control: give a table")
        sequences = len(lengths)
        out = self._attend(
            query.to(kv.k.dtype),
            kv.k,
            kv.v,
            torch.arange(sequences + 1, dtype=torch.int32, device=query.device),
            None,
            1,
            block_tables.shape[1] * block_size,
            scale=scale,
            enable_gqa=query.shape[1] != kv.kv_heads,
            seqused_k=lengths,
            block_table=block_tables,
        )
        result: torch.Tensor = out
        return result.to(query.dtype)
