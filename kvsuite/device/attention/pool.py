"""One buffer for the control and for every block size: what differs between two timings is the table.

    buffer        [ keys of all tokens | values of all tokens ]       a token is [kv_heads, head_dim]
    contiguous    sequence s is tokens s * context .. (s + 1) * context - 1, and no table is looked up
    in order      the table's blocks stand for the same tokens in the same order
    shuffled      any block of the buffer at any place of any sequence

Separate buffers for the two differ by a fifth through their placement alone. The memory is of the kind that
the suite's slots are in, which begins with a page: rows that straddle two cost a sixth more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kvsuite.device.attention.call import TORCH_DTYPES, KVView
from kvsuite.device.buffer import allocate
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.cache.layout import Dtype


class OneBuffer:
    """Random keys and values of ``sequences`` times ``context`` tokens, at any block size dividing it.

    **Raises:** `ConfigError` for an empty one.
    """

    def __init__(
        self,
        sequences: int,
        context: int,
        *,
        kv_heads: int,
        head_dim: int,
        dtype: Dtype,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        if min(sequences, context, kv_heads, head_dim) < 1:
            raise ConfigError(
                f"a buffer of {sequences} sequences of {context} tokens of {kv_heads}x{head_dim} is empty"
            )
        self.sequences = sequences
        self.context = context
        self.seed = seed
        draw = torch.Generator(device).manual_seed(seed)
        shape = (2, sequences * context, kv_heads, head_dim)
        nbytes = math.prod(shape) * dtype.itemsize
        self._allocation = allocate("pool", nbytes, device)
        self.buffer = self._allocation.tensor.view(TORCH_DTYPES[dtype]).view(shape)
        for plane in self.buffer:
            for part in plane.split(context):
                part.copy_(torch.randn(part.shape, generator=draw, device=device))
        self.lengths = torch.full((sequences,), context, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes that one step of attention reads."""
        return self.buffer.nbytes

    def view(self, block_size: int) -> KVView:
        """Return the buffer as blocks of ``block_size`` tokens.

        **Raises:** `ConfigError` for a size that does not divide the context.
        """
        if block_size < 1 or self.context % block_size:
            raise ConfigError(f"blocks of {block_size} tokens do not divide a context of {self.context}")
        keys, values = self.buffer.view(2, -1, block_size, *self.buffer.shape[2:])
        return KVView(keys, values)

    def contiguous(self) -> KVView:
        """Return the buffer with one block a sequence, for the control."""
        return self.view(self.context)

    def in_order(self, block_size: int) -> torch.Tensor:
        """Return the table, int32 [sequences, blocks], that puts each sequence where the control has it."""
        return self._table(torch.arange(self.sequences * self.context // block_size))

    def shuffled(self, block_size: int) -> torch.Tensor:
        """Return a table of the same blocks in an order drawn from the seed."""
        draw = torch.Generator().manual_seed(self.seed)
        return self._table(torch.randperm(self.sequences * self.context // block_size, generator=draw))

    def _table(self, blocks: torch.Tensor) -> torch.Tensor:
        table = blocks.to(device=self.buffer.device, dtype=torch.int32)
        return table.view(self.sequences, -1).contiguous()
