"""Everything that a calibration times on this device, and what it ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvsuite.device.spans import spans_on, timed
from kvsuite.device.timing.attention import AttentionBench
from kvsuite.device.timing.choice import control_for
from kvsuite.device.timing.model import PREFILL_BLOCK_SIZE, SHORT_CONTEXT, DecoderBench
from kvsuite.device.timing.readings import cache_bytes
from kvsuite.device.timing.rounds import DecodeTime, in_rounds
from kvsuite.device.timing.upload import TableUpload, upload_tasks
from kvsuite.errors import UnsupportedBlockSize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsuite.device.attention.call import DecodeAttention
    from kvsuite.device.decoder_shapes import DecoderShape
    from kvsuite.device.spans import Spans
    from kvsuite.device.timing.grid import Grid
    from kvsuite.device.timing.model import Table
    from kvsuite.device.timing.rounds import Timing

LAYERS_TIMED = 1


class StepBench:
    """Times a step's parts with ``kernel`` and one layer of ``shape``, on one thread of a CPU or on a card.

    Block sizes that the kernel does not take are left out: see ``refused``. ``make_spans`` is called for each
    clock that is needed.

    **Raises:** `UnsupportedBlockSize` where the kernel takes none of them, `KernelUnavailable` without a
    control, `DeviceError` where the device has no room.
    """

    def __init__(
        self,
        kernel: DecodeAttention,
        shape: DecoderShape,
        grid: Grid,
        sizes: Iterable[int],
        *,
        device: str = "cpu",
        make_spans: Callable[[str], Spans] = spans_on,
    ) -> None:
        given = tuple(sizes)
        self.kernel, self.grid, self.device = kernel, grid, device
        self.control = control_for(kernel, device, shape.layout.dtype)
        self.sizes = tuple(size for size in given if size in kernel.block_sizes)
        self.refused = {
            size: f"{kernel.name} takes {kernel.block_sizes}" for size in given if size not in self.sizes
        }
        if not self.sizes:
            raise UnsupportedBlockSize(f"no block size to time: {'; '.join(self.refused.values())}")
        if device == "cpu":
            torch.set_num_threads(1)
        self._spans = make_spans(device)
        self.attention = AttentionBench(
            kernel,
            self.control,
            shape,
            grid.points,
            self.sizes,
            min_tokens=self._decoder_tokens(),
            device=device,
            spans=self._spans,
            cache_bytes=cache_bytes(device),
        )
        self.decoder = DecoderBench(
            shape,
            kernel,
            self.attention.view,
            device=device,
            spans=self._spans,
            inner=make_spans(device),
        )

    def measure(self, progress: Callable[[int, int], None] | None = None) -> list[Timing]:
        """Time everything, all parts interleaved; ``progress`` is called with calls done and in all."""
        grid = self.grid
        tasks = [
            *self.attention.tasks(),
            *self.decoder.tasks(grid.batches, grid.chunks, self._decode_size),
            *upload_tasks(grid.tables, self.device, self._spans),
        ]
        return in_rounds(tasks, grid.rounds, progress=progress)

    def decode_us(self, tables: Sequence[Table], lengths: Sequence[int], block_size: int) -> DecodeTime:
        """Time one decode step of a batch whose blocks lie in `AttentionBench.num_tokens` slots."""
        attention_us, rest_us = self.decoder.layer_us(tables, lengths, self.attention.view(block_size))
        upload = TableUpload(len(tables), max(map(len, tables)), self.device)
        return DecodeTime(
            attention_us=attention_us,
            rest_us=rest_us,
            head_us=self.decoder.head_us(len(tables)),
            upload_us=timed(lambda: upload(tables), self._spans),
        )

    @property
    def _decode_size(self) -> int:
        return PREFILL_BLOCK_SIZE if PREFILL_BLOCK_SIZE in self.sizes else self.sizes[0]

    def _decoder_tokens(self) -> int:
        """Return the slots that its batches and its longest prompt need."""
        size = self._decode_size
        batch = max(self.grid.batches) * -(-SHORT_CONTEXT // size) * size
        return max(batch, *(tokens + start + PREFILL_BLOCK_SIZE for tokens, start in self.grid.chunks))
