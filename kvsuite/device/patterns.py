"""Tags as element bit patterns: what a full slot holds for each token.

A tag becomes one pattern for each (layer, stream, head, dim): the tag meets a key of that place and is
mixed (an xor, then two rounds of multiply and shift), 64 bits at a time. Patterns are compared as
integers. One bit of every element, the highest of its exponent, is cleared: what is left is every value
of magnitude below 2, signed zeros and subnormals included, and neither NaN nor Inf of any dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.buffer import allocate
from kvsuite.device.rows import WORD_BYTES
from kvsuite.trace.tokens import mix64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.device.rows import Row

_ROUNDS = (-7046029254386353131, -4417276706812531889)
"""Odd 64-bit multipliers as signed integers: 0x9E3779B97F4A7C15 and 0xC2B2AE3D27D4EB4F."""
_LOW_HALF = 0xFFFF_FFFF
_EXPONENT_TOP = {
    Dtype.FLOAT32: 0x4000_0000_4000_0000,
    Dtype.FLOAT16: 0x4000_4000_4000_4000,
    Dtype.BFLOAT16: 0x4000_4000_4000_4000,
    Dtype.FLOAT8_E4M3: 0x4040_4040_4040_4040,
}


class Patterns:
    """The patterns of tags for the rows of one layout; ``workspace`` holds its keys on the device.

    A key belongs to one (row, layer, 64-bit word); no two places share one.
    """

    def __init__(self, rows: Sequence[Row], num_layers: int, device: str) -> None:
        self._rows = tuple(rows)
        words = [-(-row.row_bytes // WORD_BYTES) for row in rows]
        keys = torch.from_numpy(mix64(np.arange(num_layers * sum(words), dtype=np.int64)))
        self.key_bytes = WORD_BYTES * num_layers * sum(words)
        self.workspace = allocate("workspace", keys.nbytes, device)
        stored = self.workspace.tensor.view(torch.int64)
        stored.copy_(keys)
        ends = np.cumsum(words).tolist()
        self._keys = [
            stored[num_layers * (end - count) : num_layers * end].view(num_layers, count)
            for end, count in zip(ends, words, strict=True)
        ]

    def of(self, row: int, tags: torch.Tensor, unit: torch.dtype) -> torch.Tensor:
        """Return what ``tags``, int64[n], leave in row ``row`` of every layer: ``unit``[n, layers, units]."""
        words: torch.Tensor = tags[:, None, None] ^ self._keys[row]
        for multiplier in _ROUNDS:
            words.mul_(multiplier)
            # torch shifts signed integers arithmetically; the mask makes it the logical shift.
            words ^= (words >> 32) & _LOW_HALF
        words &= ~_EXPONENT_TOP[self._rows[row].dtype]
        return words.view(torch.uint8)[:, :, : self._rows[row].row_bytes].view(unit)

    def close(self) -> None:
        """Let go of the keys."""
        self._keys.clear()
        if self.workspace.mapping is not None:
            self.workspace.mapping.close()
        del self.workspace
