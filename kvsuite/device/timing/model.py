"""The small decoder, timed: a decode step without its attention, the head, prefill chunks, whole batches.

One real layer stands for all; the head's matrix is cut to `HEAD_ROWS` rows of the vocabulary, because a whole
one takes a gigabyte. Both factors stand in the calibration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from kvsuite.device.decoder import DecodeBatch, Decoder
from kvsuite.device.spans import timed, timed_now
from kvsuite.device.timing.rounds import Load, Task, What

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from kvsuite.device.attention.call import DecodeAttention, KVView
    from kvsuite.device.decoder_shapes import DecoderShape
    from kvsuite.device.spans import Spans

    Table = np.ndarray[tuple[int], np.dtype[np.int32]]

REST, HEAD, PREFILL = "rest", "head", "prefill"
HEAD_ROWS = 16_384
SHORT_CONTEXT = 16
"""Tokens of each sequence where attention is taken out of the time."""
PREFILL_BLOCK_SIZE = 16
"""Prefill gathers its context through a table of this block size, once; its cost is the same for all."""


class DecoderBench:
    """Tasks that time one layer of ``shape``; ``spans`` for the whole and ``inner`` for its attention.

    ``view`` gives the blocks of a size of a buffer that holds the largest batch at `SHORT_CONTEXT`, and the
    longest prompt.
    """

    def __init__(
        self,
        shape: DecoderShape,
        kernel: DecodeAttention,
        view: Callable[[int], KVView],
        *,
        device: str,
        spans: Spans,
        inner: Spans,
    ) -> None:
        self.device, self._kernel, self._view = device, kernel, view
        self._spans, self._inner = spans, inner
        self.decoder = Decoder(shape, device=device, with_head=False, attention_spans=inner)
        self.vocabulary = shape.vocabulary
        self.head_rows = min(shape.vocabulary, HEAD_ROWS)
        self._head = torch.empty(self.head_rows, shape.hidden_size, dtype=self.decoder.dtype, device=device)
        self._head.normal_(0.0, shape.hidden_size**-0.5)

    def tasks(self, batches: Iterable[int], chunks: Iterable[tuple[int, int]], size: int) -> Iterator[Task]:
        """Yield tasks for decode steps, through blocks of ``size`` tokens, the head, and prefill chunks."""
        for sequences in batches:
            load = Load(sequences=sequences)
            yield self._rest(load, size)
            yield self._head_task(load)
        for tokens, start in chunks:
            yield self._chunk(tokens, start)

    def layer_us(self, tables: Sequence[Table], lengths: Sequence[int], view: KVView) -> tuple[float, float]:
        """Return the microseconds of one layer: its attention, and the rest.

        ``tables`` and ``lengths`` are those of the sequences that decode, the new token included.
        """
        table = torch.zeros(len(tables), max(map(len, tables)), dtype=torch.int32)
        for row, blocks in zip(table.numpy(), tables, strict=True):
            row[: len(blocks)] = blocks
        batch = self.batch(table, torch.tensor(lengths, dtype=torch.int32), view.block_size)
        return self._layer_us(batch, view)

    def head_us(self, sequences: int) -> float:
        """Return the microseconds of the cut head for a batch."""
        return timed(self._head_call(sequences), self._spans)

    def _rest(self, load: Load, size: int) -> Task:
        width = -(-SHORT_CONTEXT // size)
        table = torch.arange(load.sequences * width, dtype=torch.int32).view(-1, width)
        lengths = torch.full((load.sequences,), SHORT_CONTEXT, dtype=torch.int32)
        batch, view = self.batch(table, lengths, size), self._view(size)
        return Task((What(part=REST, load=load),), lambda: self._layer_us(batch, view)[1:])

    def _layer_us(self, batch: DecodeBatch, view: KVView) -> tuple[float, float]:
        def call() -> object:
            return self.decoder.decode_step(batch, [view], self._kernel)

        call()
        self._inner.take_us()
        whole = timed_now(call, self._spans)
        attention = self._inner.take_us()
        return attention, max(0.0, whole - attention)

    def batch(self, table: torch.Tensor, lengths: torch.Tensor, size: int) -> DecodeBatch:
        """Return a step of sequences of ``lengths``, the new token included; both int32, in host memory."""
        last = lengths.long() - 1
        slots = table[torch.arange(len(table)), last // size].long() * size + last % size
        parts = (torch.zeros(len(table), dtype=torch.int64), slots, table, lengths)
        return DecodeBatch(*(part.to(self.device) for part in parts))

    def _head_task(self, load: Load) -> Task:
        call = self._head_call(load.sequences)
        return Task((What(part=HEAD, load=load),), lambda: (timed(call, self._spans),))

    def _head_call(self, sequences: int) -> Callable[[], object]:
        hidden = self._head.new_zeros(sequences, self._head.shape[1]).normal_()
        return lambda: linear(hidden, self._head)

    def _chunk(self, tokens: int, start: int) -> Task:
        size, end = PREFILL_BLOCK_SIZE, start + tokens
        view = self._view(size)
        table = torch.arange(-(-end // size), dtype=torch.int32, device=self.device)
        text = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        slots = torch.arange(start, end, device=self.device)
        load = Load(prefill_tokens=tokens, prefill_pairs=tokens * start + tokens * (tokens + 1) // 2)

        def call() -> object:
            return self.decoder.prefill_chunk(text, slots, table, [view], start=start)

        return Task((What(part=PREFILL, load=load),), lambda: (timed(call, self._spans),))
