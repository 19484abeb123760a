"""Where in a block each stream's elements and scales lie."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from kvsuite.cache.layout import Dtype, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Row:
    """What one token keeps in one place of a layer: a stream's elements, or its scales.

    ``offset_bytes`` is where the place begins in the layer's part of a block; token ``t`` of the block
    lies at ``offset_bytes + t * row_bytes``. ``dim`` is 1 for scales.
    """

    stream: str
    scales: bool
    heads: int
    dim: int
    dtype: Dtype
    offset_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one token here."""
        return self.heads * self.dim * self.dtype.itemsize


def rows_of(layout: Layout, block_size: int) -> tuple[Row, ...]:
    """Return the rows of a layer in the order in which they lie; scales follow their stream."""
    rows: list[Row] = []
    offset_bytes = 0
    for stream in layout.streams:
        heads = layout.heads_on_rank(stream)
        shapes = [(False, stream.dim, layout.dtype_of(stream))] + [(True, 1, Dtype.FLOAT32)] * layout.scaled
        for scales, dim, dtype in shapes:
            rows.append(Row(stream.name, scales, heads, dim, dtype, offset_bytes))
            offset_bytes += block_size * rows[-1].row_bytes
    return tuple(rows)


def unit_bytes(rows: Sequence[Row], layer_bytes: int, block_bytes: int) -> int:
    """Return the widest integer, 8, 4, 2 or 1 bytes, that every row of a block is aligned to."""
    spans = [span for row in rows for span in (row.offset_bytes, row.row_bytes)]
    return gcd(WORD_BYTES, layer_bytes, block_bytes, *spans)
