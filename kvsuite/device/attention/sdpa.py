"""torch's own attention, which knows no block table.

`GatherSdpa` copies each sequence's tokens together first: right everywhere, but the copy costs ten times what
it hides, so its time says nothing of a block size. `ContiguousSdpa` is the fastest form on contiguous memory
that was measured, and the yardstick for other kernels: the query heads of a KV head stand as the query's
length, keys lie heads first. (``enable_gqa=True`` with one query token is sixteen times slower in bfloat16.)
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes, KVView, check_call
from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@functools.cache
def hash_of(path: str, *versions: str) -> str:
    """Return sixteen hex digits of a module's text and of the versions that it runs on."""
    text = Path(path).read_text(encoding="utf-8")
    return hashlib.sha256("\0".join((text, *versions)).encode()).hexdigest()[:16]


class GatherSdpa:
    """Attention over gathered copies: for correctness only, on any device.

    **Raises:** `ConfigError` and `BlockError` as the C kernel does.
    """

    name = "gather-sdpa"
    dtypes = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)
    block_sizes = BlockSizes()
    latency_verdict = False

    @property
    def source_hash(self) -> str:
        """Hash of this module and torch's version."""
        return hash_of(__file__, torch.__version__)

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
        out = torch.empty_like(query)
        for sequence, length in enumerate(lengths.tolist()):
            if block_tables is None:
                table = torch.tensor([sequence], device=query.device)
            else:
                table = block_tables[sequence].long()
            keys, values = _gather(kv, table, length, sequence)
            heads = query[sequence].reshape(kv.kv_heads, -1, kv.head_dim).to(keys.dtype)
            got = scaled_dot_product_attention(heads, keys, values, scale=scale)
            out[sequence] = got.flatten(0, 1).to(out.dtype)
        return out


class ContiguousSdpa:
    """Attention over sequences of one length, from a copy ``[sequences, heads, tokens, dim]`` made once."""

    name = "sdpa-contiguous"

    def __init__(self, kv: KVView) -> None:
        self._keys = kv.k.transpose(1, 2).contiguous()
        self._values = kv.v.transpose(1, 2).contiguous()

    def __call__(self, query: torch.Tensor, *, scale: float) -> torch.Tensor:
        """Return the attention of ``query`` over every token; it has to be of the cache's dtype."""
        heads = query.reshape(len(query), self._keys.shape[1], -1, query.shape[-1])
        return scaled_dot_product_attention(heads, self._keys, self._values, scale=scale).flatten(1, 2)


def _gather(kv: KVView, table: torch.Tensor, length: int, sequence: int) -> Sequence[torch.Tensor]:
    """Return keys and values of one sequence, ``[kv_heads, length, head_dim]``, in float32."""
    blocks = -(-length // kv.block_size)
    if length < 1 or blocks > len(table):
        raise ConfigError(
            f"the length of sequence {sequence} is not from 1 to the {len(table) * kv.block_size} tokens it "
            "has room for"
        )
    used = table[:blocks]
    bad = ((used < 0) | (used >= kv.num_blocks)).nonzero()
    if len(bad):
        raise BlockError(
            f"entry {int(bad[0])} of the table of sequence {sequence} is no block of the pool, which has "
            f"{kv.num_blocks}"
        )
    return [plane[used].flatten(0, 1)[:length].float().transpose(0, 1) for plane in (kv.k, kv.v)]
