"""FlashInfer's paged decode, where a user has it. Nothing here imports it before a call."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes, KVView, check_call
from kvsuite.device.attention.sdpa import hash_of
from kvsuite.errors import ConfigError, KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = "flashinfer"
_WORKSPACE_BYTES = 128 << 20


def paged_indices(
    block_tables: torch.Tensor, lengths: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where each sequence's blocks begin, all blocks in use, and the tokens in each last one.

    int32 [sequences + 1], [blocks in use], [sequences].

    >>> tables = torch.tensor([[7, 3, -1], [5, 9, 8]], dtype=torch.int32)
    >>> [part.tolist() for part in paged_indices(tables, torch.tensor([5, 12], dtype=torch.int32), 4)]
    [[0, 2, 5], [7, 3, 5, 9, 8], [1, 4]]
    """
    used = (lengths + block_size - 1) // block_size
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
    starts[1:] = used.cumsum(0)
    columns = torch.arange(block_tables.shape[1], device=lengths.device)
    return starts, block_tables[columns < used[:, None]], (lengths - 1) % block_size + 1


class FlashInferKernel:
    """``BatchDecodeWithPagedKVCacheWrapper``; it needs the cache's dtype and a table.

    A call plans and runs. `planned` returns the run alone, which is what a step repeats in each layer and
    what is to be timed.

    **Raises:** `KernelUnavailable` where the package is not installed.
    """

    name = "flashinfer"
    dtypes = (Dtype.FLOAT16, Dtype.BFLOAT16)
    block_sizes = BlockSizes()
    latency_verdict = True

    def __init__(self) -> None:
        if importlib.util.find_spec(_PACKAGE) is None:
            raise KernelUnavailable(
                f"the package {_PACKAGE} is not installed: pip install flashinfer-python", (_PACKAGE,)
            )
        self.source_hash = hash_of(__file__, version("flashinfer-python"), torch.__version__)

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
        run = self.planned(kv, block_tables, lengths, query_heads=query.shape[1], scale=scale)
        return run(query.to(kv.k.dtype)).to(query.dtype)

    def planned(
        self, kv: KVView, block_tables: torch.Tensor, lengths: torch.Tensor, *, query_heads: int, scale: float
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the attention of a query of the cache's dtype under these tables and lengths."""
        package: Any = importlib.import_module(_PACKAGE)
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=kv.k.device)
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            *paged_indices(block_tables, lengths, kv.block_size),
            query_heads,
            kv.kv_heads,
            kv.head_dim,
            kv.block_size,
            q_data_type=kv.k.dtype,
            kv_data_type=kv.k.dtype,
            sm_scale=scale,
        )
        return functools.partial(wrapper.run, paged_kv_cache=(kv.k, kv.v))
