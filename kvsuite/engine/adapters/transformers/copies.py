"""Copies of part-full blocks that forks leave to the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import NO_OPS, BlockCopy, Ops

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from kvsuite.engine.snapshot import PoolKey
    from kvsuite.trace.model import RequestId


class PendingCopies:
    """What `take_ops` will say, in the order in which the forks were made."""

    def __init__(self, pool: PoolKey, block_size: int) -> None:
        self._pool, self._size = pool, block_size
        self._copies: list[BlockCopy] = []

    def __bool__(self) -> bool:
        return bool(self._copies)

    def add(
        self, child: RequestId, pairs: list[tuple[int, int]], parent_table: Sequence[int], length: int
    ) -> None:
        """Note the copies of one fork; a block beyond the last token has nothing to be copied."""
        for source, target in pairs:
            filled = min(self._size, length - parent_table.index(source) * self._size)
            if filled > 0:
                self._copies.append(BlockCopy(self._pool, source, target, filled, child))

    def take(self, live: Container[RequestId]) -> Ops:
        """Return, once, what is still needed: for a child that lives, or that a later copy reads from."""
        kept: list[BlockCopy] = []
        read: set[int] = set()
        for copy in reversed(self._copies):
            if copy.request_id in live or copy.target in read:
                kept.append(copy)
                read.add(copy.source)
        self._copies = []
        return Ops(tuple(kept[::-1])) if kept else NO_OPS
