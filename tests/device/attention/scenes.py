"""Poisoned pools, ragged sequences, shuffled tables, and what attention over them is in float64.

The bound on an error, as a norm relative to the expected output, with float32's unit roundoff u = 2^-24: a
score is a sum of `head_dim` products and a weighted sum one of `n` values, and rounding errors of a sum of n
terms grow like sqrt(n); an exponential adds a few u. With normal keys, queries and values an error of a
weight passes to the output at its own relative size. Twice that leaves room for the draw:

    bound = 2 u (sqrt(head_dim) + sqrt(longest) + 8)

Values are compared as the cache keeps them, so its dtype adds nothing; an output (or a kernel's weights)
rounded to a narrower dtype adds that dtype's unit roundoff each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.cache.layout import Dtype, attention_layout

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from kvsuite.device.attention.call import DecodeAttention, KVView

ROUNDOFF = {Dtype.FLOAT32: 2.0**-24, Dtype.FLOAT16: 2.0**-11, Dtype.BFLOAT16: 2.0**-8}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
JUNK = (-1, 2**31 - 1)


@dataclass(frozen=True)
class Scene:
    """A call, and the tokens that its sequences own."""

    query: torch.Tensor
    kv: KVView
    tables: torch.Tensor
    lengths: torch.Tensor
    scale: float

    @property
    def bound(self) -> float:
        terms: float = self.kv.head_dim**0.5 + float(self.lengths.max()) ** 0.5 + 8
        return 2 * ROUNDOFF[Dtype.FLOAT32] * terms

    def run(self, kernel: DecodeAttention) -> torch.Tensor:
        return kernel(
            self.query, self.kv, self.tables, self.lengths, block_size=self.kv.block_size, scale=self.scale
        )

    def error(self, out: torch.Tensor) -> float:
        """Norm of what differs from float64 over the norm of that; NaN where the output holds one."""
        due = self.expected()
        return float(np.linalg.norm(out.double().numpy() - due) / np.linalg.norm(due))

    def expected(self) -> npt.NDArray[np.float64]:
        """Token by token through the table, a head at a time."""
        query = self.query.double().numpy()
        keys, values = self.kv.k.double().numpy(), self.kv.v.double().numpy()
        group = query.shape[1] // self.kv.kv_heads
        out = np.empty(query.shape)
        for sequence, length in enumerate(self.lengths.tolist()):
            tokens = np.arange(length)
            table = self.tables[sequence].numpy().astype(np.int64)
            blocks, offsets = table[tokens // self.kv.block_size], tokens % self.kv.block_size
            for head in range(query.shape[1]):
                mine = keys[blocks, offsets, head // group], values[blocks, offsets, head // group]
                scores = mine[0] @ query[sequence, head] * self.scale
                weights = np.exp(scores - scores.max())
                out[sequence, head] = weights @ mine[1] / weights.sum()
        return out

    def with_(self, **changes: Any) -> Scene:
        return replace(self, **changes)


def ragged(block_size: int) -> list[int]:
    """Return lengths on both sides of a block's end, and one over several tiles of any kernel."""
    return [1, max(1, block_size - 1), block_size, block_size + 1, 300]


def scene(
    lengths: list[int],
    block_size: int,
    *,
    query_heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: Dtype = Dtype.FLOAT32,
    query_dtype: Dtype = Dtype.FLOAT32,
    in_slots: bool = False,
    seed: int = 0,
) -> Scene:
    """Return a call over a pool that is NaN wherever no sequence has a token.

    Tables are shuffled over the pool and two entries wider than the longest sequence needs; what a sequence
    does not use holds ids that are no block, or the id of a block of NaN. `in_slots` takes the pool of the
    middle one of three layers of the suite's own slots.
    """
    import torch

    from kvsuite.device.attention.call import TORCH_DTYPES, KVView
    from kvsuite.device.slots import KVSlots

    draw = np.random.default_rng(seed)
    needed = [-(-length // block_size) for length in lengths]
    num_blocks = sum(needed) + 3
    if in_slots:
        layout = attention_layout("m", num_layers=3, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        slots = KVSlots(layout, num_blocks, block_size)
        for layer in range(3):
            slots.tensor(layer, "k").fill_(torch.nan)
            slots.tensor(layer, "v").fill_(torch.nan)
        kv = KVView.of_slots(slots, 1)
    else:
        shape = (2, num_blocks, block_size, kv_heads, head_dim)
        kv = KVView(*torch.full(shape, torch.nan, dtype=TORCH_DTYPES[dtype]))
    blocks = draw.permutation(num_blocks)
    tables = np.empty((len(lengths), max(needed) + 2), np.int32)
    junk = np.array([*JUNK, blocks[-1]])
    tables[:] = junk[np.arange(tables.size).reshape(tables.shape) % len(junk)]
    for sequence, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        mine, blocks = blocks[:count], blocks[count:]
        tables[sequence, :count] = mine
        for position in range(length):
            place = mine[position // block_size], position % block_size
            for plane in (kv.k, kv.v):
                plane[place] = torch.from_numpy(draw.standard_normal((kv_heads, head_dim))).to(plane.dtype)
    query = torch.from_numpy(draw.standard_normal((len(lengths), query_heads, head_dim)))
    return Scene(
        query.to(TORCH_DTYPES[query_dtype]),
        kv,
        torch.from_numpy(tables),
        torch.tensor(lengths, dtype=torch.int32),
        head_dim**-0.5,
    )
