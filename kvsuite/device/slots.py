"""KV slots as torch tensors: the memory of a paged cache, usable on its own.

One buffer holds the pool, block after block, so that a block's bytes lie together and can be given back:

    pool    [ block 0 | block 1 | ... | block N-1 ]                          N x block bytes
    block   [ layer 0 | layer 1 | ... | pad ]
    layer   [ k: b x heads x dim | k scales: b x heads | v: ... | v scales: ... ]      b = block size

Every stream of every layer is a strided view of it, ``[num_blocks, block_size, heads_on_rank, dim]`` in
the layout's dtype, and its scales one of ``[num_blocks, block_size, heads_on_rank]`` in float32. A slot
number is ``block * block_size + offset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kvsuite.cache.layout import Dtype, Layout
from kvsuite.device.buffer import BlockBuffer
from kvsuite.device.patterns import Patterns
from kvsuite.device.rows import rows_of, unit_bytes
from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from kvsuite.device.residency import Int64Array
    from kvsuite.device.rows import Row

    BoolArray = npt.NDArray[np.bool_]

_CHUNK_BYTES = 8 << 20
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
_FP8_MAX = 448.0


class KVSlots:
    """``num_blocks`` blocks of ``block_size`` tokens in the shape of ``layout`` on ``device``.

    ``pad_bytes_per_block`` defaults to the layout's own. Content starts as zeros.

    **Raises:** `ConfigError` for a pool without blocks, `DeviceError` where the device has no room,
    `BlockError` from every method that is given a block or slot outside the pool.

    >>> from kvsuite.cache.layout import model_layout
    >>> kv = KVSlots(model_layout("tiny"), num_blocks=4, block_size=16)
    >>> kv.tensor(0, "k").shape, kv.pool_bytes
    (torch.Size([4, 16, 2, 8]), 8192)
    >>> slots = np.r_[3 * 16 : 4 * 16, 1 * 16 : 1 * 16 + 4]      # 20 tokens in blocks 3 and 1
    >>> k = torch.randn(20, 2, 8).to(torch.bfloat16)
    >>> kv.write_tokens(0, slots, {"k": k, "v": -k})
    >>> dense = kv.gather(0, torch.tensor([3, 1]), length=20)
    >>> torch.equal(dense["k"], k), torch.equal(dense["v"], -k)
    (True, True)
    """

    def __init__(
        self,
        layout: Layout,
        num_blocks: int,
        block_size: int,
        device: str = "cpu",
        *,
        pad_bytes_per_block: int | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks of {block_size} tokens: both must be positive")
        pad = layout.pad_bytes_per_block(block_size) if pad_bytes_per_block is None else pad_bytes_per_block
        self.layout = layout
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.device = device
        self.block_bytes = block_size * layout.bytes_per_token + pad
        self.buffer = BlockBuffer(num_blocks, self.block_bytes, device)
        self._rows = rows_of(layout, block_size)
        self._unit = _INTEGERS[unit_bytes(self._rows, self._layer_bytes, self.block_bytes)]
        self._cells = [self._view_of(row, self._unit) for row in self._rows]
        self.patterns = Patterns(self._rows, layout.num_layers, device)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool's storage, as torch reports them."""
        return self.buffer.bytes.untyped_storage().nbytes()

    def tensor(self, layer: int, stream: str) -> torch.Tensor:
        """Return the view of one stream, ``[num_blocks, block_size, heads_on_rank, dim]``.

        **Raises:** `ConfigError` for an unknown stream, or one whose bytes are not aligned to the dtype.
        """
        row = self._row(stream, scales=False)
        flat = self._view_of(row, _torch_dtype(row.dtype))[:, layer]
        return flat.view(self.num_blocks, self.block_size, row.heads, row.dim)

    def scales(self, layer: int, stream: str) -> torch.Tensor:
        """Return the view of one stream's scales, float32 ``[num_blocks, block_size, heads_on_rank]``.

        **Raises:** `ConfigError` where the layout keeps none, or they are not aligned to 4 bytes.
        """
        return self._view_of(self._row(stream, scales=True), torch.float32)[:, layer]

    def write(self, slots: Int64Array, tags: Int64Array) -> None:
        """Fill every element of ``slots`` with the patterns of ``tags``, int64[n]; the last entry wins."""
        slots, tags = _last_of_each(slots, tags)
        self.buffer.take(slots // self.block_size)
        for part in self._parts(len(slots)):
            blocks, offsets = self._places(slots[part])
            due = torch.tensor(tags[part], device=self.device)
            for row, cells in enumerate(self._cells):
                cells[blocks, :, offsets] = self.patterns.of(row, due, self._unit)

    def matches(self, slots: Int64Array, tags: Int64Array) -> BoolArray:
        """Return, bool[n], where every element of a slot is the pattern of its tag, bit for bit."""
        self.buffer.check(slots // self.block_size)
        answer = np.ones(len(slots), np.bool_)
        for part in self._parts(len(slots)):
            blocks, offsets = self._places(slots[part])
            due = torch.tensor(tags[part], device=self.device)
            for row, cells in enumerate(self._cells):
                equal = cells[blocks, :, offsets] == self.patterns.of(row, due, self._unit)
                answer[part] &= equal.flatten(1).all(1).cpu().numpy()
        return answer

    def copy_block(self, source: int, target: int, num_tokens: int | None = None) -> None:
        """Copy the first ``num_tokens`` slots (all by default) of block ``source`` to block ``target``."""
        tokens = self.block_size if num_tokens is None else num_tokens
        if not 0 <= tokens <= self.block_size:
            raise BlockError(f"a copy of {tokens} tokens does not fit a block of {self.block_size}")
        self.buffer.check(np.array([source]))
        self.buffer.take(np.array([target]))
        for cells in self._cells:
            cells[target, :, :tokens] = cells[source, :, :tokens]

    def copy_from(self, other: KVSlots, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of a block of ``other``, slots of the same layout."""
        other.buffer.check(np.array([source]))
        self.buffer.take(np.array([target]))
        for cells, theirs in zip(self._cells, other._cells, strict=True):
            cells[target, :, :num_tokens] = theirs[source, :, :num_tokens].to(self.device)

    def zero_block(self, block: int) -> None:
        """Clear every byte of a block, padding included."""
        self.buffer.take(np.array([block]))
        self.buffer.bytes[block * self.block_bytes : (block + 1) * self.block_bytes] = 0

    def write_tokens(self, layer: int, slots: Int64Array, values: Mapping[str, torch.Tensor]) -> None:
        """Write one layer of real tokens: for each stream ``[n, heads_on_rank, dim]`` to ``slots`` int64[n].

        The last entry wins where a slot stands twice. Scaled layouts store ``value / scale`` with
        ``scale = max |value| / 448`` for each head and token; unscaled fp8 saturates at 448.
        """
        slots, kept = _last_of_each(slots, np.arange(len(slots)))
        self.buffer.take(slots // self.block_size)
        blocks, offsets = self._places(slots)
        for name, given in values.items():
            value = given[torch.from_numpy(kept)].to(self.device)
            if self.layout.scaled:
                value = value.float()
                scale = value.abs().amax(-1).div(_FP8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
                self.scales(layer, name)[blocks, offsets] = scale
                value = value / scale.unsqueeze(-1)
            if self._row(name, scales=False).dtype is Dtype.FLOAT8_E4M3:
                value = value.clamp(-_FP8_MAX, _FP8_MAX)
            view = self.tensor(layer, name)
            _as_integers(view)[blocks, offsets] = _as_integers(value.to(view.dtype))

    def gather(self, layer: int, block_table: torch.Tensor, length: int) -> dict[str, torch.Tensor]:
        """Return the first ``length`` tokens behind ``block_table`` (integers, [blocks]) as dense copies.

        Each stream is ``[length, heads_on_rank, dim]``; scaled layouts give float32, scaled back.

        **Raises:** `BlockError` where the table is shorter than ``length``.
        """
        needed = -(-length // self.block_size)
        if needed > len(block_table):
            raise BlockError(
                f"{length} tokens need {needed} blocks of {self.block_size}, the table has {len(block_table)}"
            )
        table = block_table[:needed].to(device="cpu", dtype=torch.int64).numpy()
        self.buffer.check(table)
        positions = np.arange(length)
        slots = table[positions // self.block_size] * self.block_size + positions % self.block_size
        blocks, offsets = self._places(slots)
        dense: dict[str, torch.Tensor] = {}
        for stream in self.layout.streams:
            view = self.tensor(layer, stream.name)
            value = _as_integers(view)[blocks, offsets].view(view.dtype)
            if self.layout.scaled:
                value = value.float() * self.scales(layer, stream.name)[blocks, offsets].unsqueeze(-1)
            dense[stream.name] = value
        return dense

    def close(self) -> None:
        """Let go of the memory; it goes back once no tensor that was handed out is left."""
        self._cells.clear()
        self.buffer.close()
        self.patterns.close()

    @property
    def _layer_bytes(self) -> int:
        return self.block_size * self.layout.bytes_per_token // self.layout.num_layers

    def _row(self, stream: str, *, scales: bool) -> Row:
        for row in self._rows:
            if row.stream == stream and row.scales == scales:
                return row
        what = "scales for" if scales else "stream"
        known = ", ".join(row.stream for row in self._rows if row.scales == scales) or "none"
        raise ConfigError(f"layout {self.layout} has no {what} {stream!r}: it has {known}")

    def _view_of(self, row: Row, dtype: torch.dtype) -> torch.Tensor:
        """Return one row's place in every block, ``dtype`` [num_blocks, layers, block_size, row elements]."""
        spans = (self.block_bytes, self._layer_bytes, row.row_bytes, row.offset_bytes)
        if any(span % dtype.itemsize for span in spans):
            raise ConfigError(
                f"{row.stream} of layout {self.layout} is not aligned to {dtype}: block, layer, row and "
                f"offset are {spans} bytes; give a dim and a block_alignment_bytes that are multiples of "
                f"{dtype.itemsize} bytes"
            )
        block, layer, token, offset = (span // dtype.itemsize for span in spans)
        shape = (self.num_blocks, self.layout.num_layers, self.block_size, token)
        return self.buffer.bytes.view(dtype).as_strided(shape, (block, layer, token, 1), offset)

    def _parts(self, count: int) -> Iterator[slice]:
        """Yield slices of ``count`` slots whose patterns fill a few MiB."""
        step = max(1, _CHUNK_BYTES // self.layout.bytes_per_token)
        for start in range(0, count, step):
            yield slice(start, start + step)

    def _places(self, slots: Int64Array) -> tuple[torch.Tensor, torch.Tensor]:
        where = torch.tensor(slots, dtype=torch.int64, device=self.device)
        return where // self.block_size, where % self.block_size


def _last_of_each(slots: Int64Array, values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return each slot once, with the last value given for it: a tensor's scatter keeps no order."""
    unique, from_the_end = np.unique(slots[::-1], return_index=True)
    return unique, values[::-1][from_the_end]


def _torch_dtype(dtype: Dtype) -> torch.dtype:
    return {
        Dtype.FLOAT32: torch.float32,
        Dtype.FLOAT16: torch.float16,
        Dtype.BFLOAT16: torch.bfloat16,
        Dtype.FLOAT8_E4M3: torch.float8_e4m3fn,
    }[dtype]


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as its bits; moving integers needs no kernel for fp8."""
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])
