"""Copies at the fork, not at the write: a child never shares a block that will still be written.

    lazy      fork: nothing          first writes: one copy for each writer but the last
    at_fork   fork: one copy a child, where the last block is part full          first writes: nothing

A burst takes the same blocks either way, but here it is the fork that is refused, and not the growth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import Copy, PagedCache
from kvsuite.engine.reference import ReferenceEngine

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId


class EagerForkCache(PagedCache):
    """A cache whose forks copy a part-full last block at once."""

    def bears_fork(self, parent: str) -> bool:
        """Return whether there is a block for the copy that a fork of ``parent`` needs, if it needs one."""
        part_full = self._table(parent, "fork").length % self.block_size > 0
        return part_full <= self.pool.available_blocks

    def fork(self, parent: str, child: str) -> None:
        """Make ``child`` live with the full blocks of ``parent`` and a copy of its part-full one."""
        super().fork(parent, child)
        table = self._tables[child]
        if self._shares_tail(table):
            source, target = table.blocks[-1], self._take(1)[0]
            self._copies.append(Copy(source, target, table.length % self.block_size, child))
            table.blocks[-1] = target
            self._drop([source])

    def release(self, sequence: str) -> None:
        """Give back what ``sequence`` holds; its pending copy stays where a later one reads from it."""
        pending = self._copies
        super().release(sequence)
        kept: list[Copy] = []
        read: set[int] = set()
        for copy in reversed(pending):
            if self._ref_counts[copy.target] or copy.target in read:
                kept.append(copy)
                read.add(copy.source)
        self._copies = kept[::-1]


class EagerForkEngine(ReferenceEngine):
    """The reference with copies made at the fork, which is refused where the pool has no block for one."""

    name = "reference-eager"
    cache_type = EagerForkCache
    cache: EagerForkCache

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._spec = replace(self._spec, effective={**self._spec.effective, "cow": "at_fork"})

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares ``parent_id``'s full blocks; False: no block is left."""
        return self.cache.bears_fork(parent_id) and super().fork(parent_id, child_id)
