"""Who holds which block, recounted from block tables alone.

The counts here never look at what an engine says of itself: they follow from its tables and lengths.

    table of a sequence      [ inner | inner | inner | last | beyond | beyond ]
                               full    full    full   partly   look-ahead, reservations
                               <------------ used ----------->
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int32Array, Int64Array
    from kvsuite.trace.model import RequestId

_ORDER_BASE = 0x100000001B3
_ORDER_MASK = 2**64 - 1
_ORDER_POWERS = np.cumprod(np.full(4096, _ORDER_BASE, np.uint64), dtype=np.uint64)[::-1].copy()


@dataclass(frozen=True, slots=True)
class HeldTable:
    """One sequence's table as last seen; ``used`` entries, the last one included, hold a token."""

    blocks: Int32Array
    used: int


@dataclass(frozen=True, slots=True)
class Moved:
    """One table entry that went from one block to another."""

    request_id: RequestId
    entry: int
    source: int
    target: int
    shared: bool
    """Whether somebody else holds the block it left."""


@dataclass(slots=True)
class Changes:
    """What happened to blocks since the row before."""

    allocated: int = 0
    freed: int = 0
    moved: list[Moved] = field(default_factory=list)
    hit_ids: list[Int32Array] = field(default_factory=list)
    """Blocks out of use that a prefix hit brought back."""

    @property
    def private_transitions(self) -> int:
        """Number of table entries that left a block which is shared."""
        return sum(move.shared for move in self.moved)

    @property
    def reactivated(self) -> int:
        """Number of blocks that a prefix hit brought back."""
        return sum(len(ids) for ids in self.hit_ids)


class Holdings:
    """Holder counts of every block of one pool.

    **Invariant:** ``holders[x]`` is the number of tables that hold ``x``, ``inner[x]`` of those that hold it
    before their last used entry, ``beyond[x]`` of those that hold it after. Null ids are never counted.
    """

    def __init__(self, num_blocks: int) -> None:
        self.holders: Int32Array = np.zeros(num_blocks, np.int32)
        self.inner: Int32Array = np.zeros(num_blocks, np.int32)
        self.beyond: Int32Array = np.zeros(num_blocks, np.int32)
        self.tables: dict[RequestId, HeldTable] = {}
        self.null_ids: Int32Array = np.zeros(0, np.int32)
        self.live_blocks = 0
        self.shared_blocks = 0
        self.inner_blocks = 0
        self.inner_entries = 0
        self.beyond_entries = 0
        self.table_entries = 0
        self.distinct_touched = 0
        self._first_use: Int64Array = np.full(num_blocks, -1, np.int64)
        self._order = 0

    @property
    def id_order(self) -> int:
        """Digest of every allocation so far, ids renumbered by first use, as a signed 64-bit number."""
        return self._order - 2**64 if self._order >= 2**63 else self._order

    def remove(self, request_id: RequestId, changes: Changes) -> None:
        """Forget a sequence's table."""
        held = self.tables.pop(request_id)
        self._withdraw_use(held)
        self._let_go(self._owned(held.blocks), changes)

    def share(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Give a forked child its parent's table, until a snapshot shows the child's own."""
        parent = self.tables[parent_id]
        self._enter(self._owned(parent.blocks), 0, Changes())
        self._apply_use(parent)
        self.tables[child_id] = parent

    def update(
        self, request_id: RequestId, blocks: Int32Array, used: int, hit_blocks: int, changes: Changes
    ) -> None:
        """Take over a table as a snapshot shows it; ``hit_blocks`` leading entries of a new one are hits."""
        new = HeldTable(blocks, used)
        old = self.tables.get(request_id)
        self.tables[request_id] = new
        if old is None:
            self._enter(self._owned(blocks), len(self._owned(blocks[:hit_blocks])), changes)
            self._apply_use(new)
        elif blocks is old.blocks or _extends(blocks, old.blocks):
            self._grow(old, new, changes)
        else:
            changes.moved += self._moved(request_id, old.blocks, blocks)
            self._rewrite(old, new, changes)

    def _grow(self, old: HeldTable, new: HeldTable, changes: Changes) -> None:
        if len(new.blocks) > len(old.blocks):
            self._enter(self._owned(new.blocks[len(old.blocks) :]), 0, changes)
        if new.used < old.used:
            self._withdraw_use(old)
            self._apply_use(new)
            return
        if new.used > old.used:
            self._add_inner(new.blocks[max(old.used - 1, 0) : new.used - 1])
            self._count_beyond(old.blocks[old.used : new.used], -1)
        self._count_beyond(new.blocks[max(new.used, len(old.blocks)) :], 1)

    def _rewrite(self, old: HeldTable, new: HeldTable, changes: Changes) -> None:
        self._withdraw_use(old)
        before, after = self._owned(old.blocks), self._owned(new.blocks)
        self._let_go(before[~np.isin(before, after)], changes)
        self._enter(after[~np.isin(after, before)], 0, changes)
        self._apply_use(new)

    def _moved(self, request_id: RequestId, old: Int32Array, new: Int32Array) -> list[Moved]:
        common = min(len(old), len(new))
        moved = np.flatnonzero((old[:common] != new[:common]) & ~np.isin(new[:common], self.null_ids))
        moved = moved[~np.isin(old[moved], self.null_ids)]
        shared = self.holders[old[moved]] > 1
        return [
            Moved(request_id, at, int(old[at]), int(new[at]), is_shared)
            for at, is_shared in zip(moved.tolist(), shared.tolist(), strict=True)
        ]

    def _owned(self, blocks: Int32Array) -> Int32Array:
        if len(self.null_ids) == 0:
            return blocks
        return blocks[~np.isin(blocks, self.null_ids)]

    def _enter(self, blocks: Int32Array, hit_blocks: int, changes: Changes) -> None:
        held = self.holders[blocks]
        fresh = blocks[held == 0]
        reactivated = int(np.count_nonzero(held[:hit_blocks] == 0)) if hit_blocks else 0
        if reactivated:
            changes.hit_ids.append(fresh[:reactivated])
        changes.allocated += len(fresh) - reactivated
        self.live_blocks += len(fresh)
        self.shared_blocks += int(np.count_nonzero(held == 1))
        self.holders[blocks] = held + 1
        self.table_entries += len(blocks)
        self._note_order(fresh[reactivated:])

    def _let_go(self, blocks: Int32Array, changes: Changes) -> None:
        held = self.holders[blocks]
        freed = int(np.count_nonzero(held == 1))
        changes.freed += freed
        self.live_blocks -= freed
        self.shared_blocks -= int(np.count_nonzero(held == 2))
        self.holders[blocks] = held - 1
        self.table_entries -= len(blocks)

    def _apply_use(self, held: HeldTable) -> None:
        self._add_inner(held.blocks[: max(held.used - 1, 0)])
        self._count_beyond(held.blocks[held.used :], 1)

    def _withdraw_use(self, held: HeldTable) -> None:
        inner = self._owned(held.blocks[: max(held.used - 1, 0)])
        counts = self.inner[inner]
        self.inner_blocks -= int(np.count_nonzero(counts == 1))
        self.inner[inner] = counts - 1
        self.inner_entries -= len(inner)
        self._count_beyond(held.blocks[held.used :], -1)

    def _count_beyond(self, blocks: Int32Array, change: int) -> None:
        if len(blocks):
            beyond = self._owned(blocks)
            self.beyond[beyond] += change
            self.beyond_entries += change * len(beyond)

    def _add_inner(self, blocks: Int32Array) -> None:
        inner = self._owned(blocks)
        counts = self.inner[inner]
        self.inner_blocks += int(np.count_nonzero(counts == 0))
        self.inner[inner] = counts + 1
        self.inner_entries += len(inner)

    def _note_order(self, allocated: Int32Array) -> None:
        if len(allocated) == 0:
            return
        numbers = self._first_use[allocated]
        unseen = np.flatnonzero(numbers < 0)
        if len(unseen):
            numbers[unseen] = np.arange(self.distinct_touched, self.distinct_touched + len(unseen))
            self._first_use[allocated[unseen]] = numbers[unseen]
            self.distinct_touched += len(unseen)
        terms = numbers.astype(np.uint64) + np.uint64(1)
        for start in range(0, len(terms), len(_ORDER_POWERS)):
            part = terms[start : start + len(_ORDER_POWERS)]
            weighted = int((part * _ORDER_POWERS[len(_ORDER_POWERS) - len(part) :]).sum(dtype=np.uint64))
            self._order = (self._order * pow(_ORDER_BASE, len(part), 2**64) + weighted) & _ORDER_MASK


def _extends(longer: Int32Array, shorter: Int32Array) -> bool:
    return len(longer) >= len(shorter) and np.array_equal(longer[: len(shorter)], shorter)
