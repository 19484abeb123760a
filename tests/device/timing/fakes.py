"""A clock that stands still unless told, and a kernel whose time is a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes

if TYPE_CHECKING:
    import torch

    from kvsuite.device.attention.call import KVView

CALL_US, SEQUENCE_US, TOKEN_US, ENTRY_US = 10.0, 2.0, 0.5, 4.0


class FakeClock:
    """Seconds that pass only by `pass_us`."""

    def __init__(self) -> None:
        self._us = 0.0

    def pass_us(self, us: float) -> None:
        self._us += us

    def __call__(self) -> float:
        return self._us / 1e6


class FakeKernel:
    """Returns zeros and lets time pass: a call, its sequences, tokens, and the entries of its table."""

    name = "fake"
    dtypes = tuple(Dtype)
    block_sizes = BlockSizes(largest=64)
    latency_verdict = True
    source_hash = "0123456789abcdef"

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[tuple[int, int, int | None]] = []
        """Sequences, context and block size (None: no table) of each call."""

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
        del scale
        tokens = int(lengths.sum())
        entries = 0 if block_tables is None else int((-(-lengths // block_size)).sum())
        size = None if block_tables is None else block_size
        self.calls.append((len(lengths), tokens // len(lengths), size))
        self._clock.pass_us(CALL_US + SEQUENCE_US * len(lengths) + TOKEN_US * tokens + ENTRY_US * entries)
        assert kv.block_size == block_size
        return query.new_zeros(query.shape)
