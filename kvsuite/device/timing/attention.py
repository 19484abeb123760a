"""Decode attention over a grid: every block size through a shuffled table, beside the contiguous control.

One buffer serves all: a point of ``n`` sequences of ``c`` tokens is its first ``n * c`` tokens, which the
control reads in order and a table in blocks that lie anywhere among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvsuite.device.attention.bandwidth import PlainRead
from kvsuite.device.attention.call import KVView
from kvsuite.device.attention.flashinfer import FlashInferKernel
from kvsuite.device.attention.pool import OneBuffer
from kvsuite.device.spans import spans_on, timed, timed_now
from kvsuite.device.timing import readings
from kvsuite.device.timing.rounds import Load, Task, What, in_rounds
from kvsuite.errors import KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvsuite.device.attention.call import DecodeAttention
    from kvsuite.device.decoder_shapes import DecoderShape
    from kvsuite.device.spans import Spans

ATTENTION, CONTROL, READ = "attention", "control", "read"


class AttentionBench:
    """Tasks that time ``kernel`` on one layer of ``shape``.

    ``control`` runs without a table; it is the kernel itself where that can. The buffer has ``min_tokens``
    slots at least. ``cache_bytes`` are swept before a cold call.
    """

    def __init__(
        self,
        kernel: DecodeAttention,
        control: DecodeAttention,
        shape: DecoderShape,
        points: Iterable[tuple[int, int]],
        sizes: Iterable[int],
        *,
        min_tokens: int,
        device: str,
        spans: Spans,
        cache_bytes: int,
    ) -> None:
        self.kernel, self.control, self.shape = kernel, control, shape
        self.points, self.sizes = tuple(points), tuple(sizes)
        self.device, self._spans = device, spans
        self.num_tokens = max(
            min_tokens,
            *(
                sequences * -(-context // size) * size
                for sequences, context in self.points
                for size in (1, *self.sizes)
            ),
        )
        self.pool = OneBuffer(
            1,
            self.num_tokens,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            dtype=shape.layout.dtype,
            device=device,
        )
        self._swept = torch.zeros(-(-cache_bytes // 4), dtype=torch.float32, device=device)

    @classmethod
    def at_point(
        cls,
        kernel: DecodeAttention,
        control: DecodeAttention,
        shape: DecoderShape,
        point: tuple[int, int],
        sizes: Iterable[int],
        *,
        device: str,
    ) -> AttentionBench:
        """Return the tasks of one point, at those of ``sizes`` that the kernel takes."""
        return cls(
            kernel,
            control,
            shape,
            [point],
            [size for size in sizes if size in kernel.block_sizes],
            min_tokens=1,
            device=device,
            spans=spans_on(device),
            cache_bytes=readings.cache_bytes(device),
        )

    def cold(self, rounds: int) -> dict[tuple[str, int | None], tuple[float, ...]]:
        """Return the microseconds of each round after caches were swept, by part and block size."""
        timings = (timing for timing in in_rounds(list(self.tasks()), rounds) if timing.what.cold)
        return {(timing.what.part, timing.what.block_size): timing.rounds_us for timing in timings}

    def view(self, block_size: int) -> KVView:
        """Return the whole blocks of that size in the buffer."""
        whole = self.num_tokens // block_size * block_size
        heads = self.pool.buffer.shape[2:]
        keys, values = (plane[:whole].view(-1, block_size, *heads) for plane in self.pool.buffer)
        return KVView(keys, values)

    def table(self, sequences: int, context: int, block_size: int) -> torch.Tensor:
        """Return a table int32 [sequences, blocks] of the first blocks of the buffer, in a drawn order."""
        width = -(-context // block_size)
        draw = torch.Generator().manual_seed(block_size)
        blocks = torch.randperm(sequences * width, generator=draw)
        return blocks.to(device=self.device, dtype=torch.int32).view(sequences, width)

    def tasks(self) -> Iterator[Task]:
        """Yield a task a point and block size, one a point for the control, and one for plain reading."""
        for sequences, context in self.points:
            for size in self.sizes:
                call = self._paged(sequences, context, size)
                yield self._task(ATTENTION, call, sequences, context, size)
            yield self._task(CONTROL, self._contiguous(sequences, context), sequences, context, None)
        read = self._reader()
        if read is not None:
            yield Task((What(part=READ, cold=True),), lambda: self._both(read)[1:])

    @property
    def read_bytes(self) -> int:
        """Bytes that the task for plain reading moves."""
        buffer: int = self.pool.buffer.nbytes // 512 * 512
        return buffer if self.device == "cpu" else 2 * buffer

    def sweep_caches(self) -> None:
        """Push everything else out of the caches."""
        self._swept.add_(1.0)

    def _task(
        self, part: str, call: Callable[[], object], sequences: int, context: int, size: int | None
    ) -> Task:
        load = Load(sequences=sequences, context_tokens=sequences * context)

        warm, cold = (What(part=part, load=load, block_size=size, cold=cold) for cold in (False, True))
        return Task((warm, cold), lambda: self._both(call))

    def _both(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the microseconds of a call after another one, and of one after the caches were swept."""
        warm = timed(call, self._spans)
        self.sweep_caches()
        return warm, timed_now(call, self._spans)

    def _paged(self, sequences: int, context: int, size: int) -> Callable[[], object]:
        view, table = self.view(size), self.table(sequences, context, size)
        query, lengths, scale = self.asked(sequences, context)
        kernel = self.kernel
        if isinstance(kernel, FlashInferKernel):
            run = kernel.planned(view, table, lengths, query_heads=self.shape.query_heads, scale=scale)
            return lambda: run(query)
        return lambda: kernel(query, view, table, lengths, block_size=size, scale=scale)

    def _contiguous(self, sequences: int, context: int) -> Callable[[], object]:
        view = self.view(context)
        query, lengths, scale = self.asked(sequences, context)
        control = self.control
        return lambda: control(query, view, None, lengths, block_size=context, scale=scale)

    def asked(self, sequences: int, context: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return query, lengths and scale of every call at a point."""
        shape = (sequences, self.shape.query_heads, self.shape.head_dim)
        draw = torch.Generator(self.device).manual_seed(context)
        query = torch.randn(shape, generator=draw, device=self.device).to(self.pool.buffer.dtype)
        lengths = torch.full((sequences,), context, dtype=torch.int32, device=self.device)
        return query, lengths, self.shape.head_dim**-0.5

    def _reader(self) -> Callable[[], object] | None:
        """Return what reads the buffer once (a card: copies it once); ``None`` without a compiler."""
        flat = self.pool.buffer.flatten()
        if self.device != "cpu":
            target = torch.empty_like(flat)
            return lambda: target.copy_(flat)
        try:
            read = PlainRead()
        except KernelUnavailable:
            return None
        flat = flat[: self.read_bytes // flat.itemsize]
        return lambda: read(flat)
