"""What an engine says of its blocks: its free, cached, quarantined and never-allocatable ids.

Kept apart from `Holdings` on purpose: one follows from tables, the other from the engine's own lists, and
closure holds only where both are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot, PoolSpec
    from kvsuite.ledger.holdings import Holdings

LIVE, FREE, CACHED, QUARANTINED, NEVER = 0, 1, 2, 3, 4
_NAMES = ("live", "free", "cached", "quarantined", "never allocatable")


class BlockStates:
    """The engine's lists, kept up to date from snapshots, with everything that contradicts them.

    ``counts[state]`` counts list entries, so that an id listed twice is counted twice and breaks closure.
    """

    def __init__(self, spec: PoolSpec) -> None:
        self._spec = spec
        self._pool = str(spec.key)
        self._state = np.full(spec.num_blocks, LIVE, np.int8)
        self._claimed_refs: Int32Array = np.zeros(spec.num_blocks, np.int32)
        self.counts = [0, 0, 0, 0, 0]
        self.evicted = 0

    def take_full(self, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Start from a full snapshot; yields ids out of range."""
        before = self._state
        self._state = np.full(self._spec.num_blocks, LIVE, np.int8)
        for state, ids in self._lists(snapshot):
            yield from self._out_of_range(ids, state, step)
            self._state[ids[(ids >= 0) & (ids < self._spec.num_blocks)]] = state
            self.counts[state] = len(ids)
        self.take_ref_counts(snapshot)
        self.evicted = int(np.count_nonzero((before == CACHED) & (self._state != CACHED)))

    def take_changes(self, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Apply a changed snapshot; yields ids out of range."""
        self.evicted = 0
        if len(snapshot.live):
            yield from self._move(snapshot.live, LIVE, step)
        for state, ids in self._lists(snapshot):
            if state != NEVER and len(ids):
                yield from self._move(ids, state, step)
        self.take_ref_counts(snapshot)

    def take_ref_counts(self, snapshot: PoolSnapshot) -> None:
        """Take over the reference counts that a snapshot claims."""
        if snapshot.is_full:
            self._claimed_refs = np.zeros(self._spec.num_blocks, np.int32)
        if snapshot.ref_count_ids is not None and snapshot.ref_counts is not None:
            self._claimed_refs[snapshot.ref_count_ids] = snapshot.ref_counts

    def count_cached(self, blocks: Int32Array) -> int:
        """Return how many of ``blocks`` were cached when last heard of."""
        return int(np.count_nonzero(self._state[blocks] == CACHED))

    def free_among(self, blocks: Int64Array) -> Int64Array:
        """Return which of ``blocks`` were free when last heard of."""
        free: Int64Array = blocks[self._state[blocks] == FREE]
        return free

    def may_be_read(self) -> npt.NDArray[np.bool_]:
        """Return, bool[num_blocks], which blocks out of use still hold something of value."""
        return np.asarray((self._state == CACHED) | (self._state == QUARANTINED))

    def resting_blocks(self) -> int:
        """Return how many blocks are free, cached or never allocatable, each once."""
        return int(np.count_nonzero(np.isin(self._state, (FREE, CACHED, NEVER))))

    def partition(self, holdings: Holdings, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Yield blocks that stand in two states or in none; needs a full snapshot."""
        if len(snapshot.never_allocatable) != self._spec.never_allocatable_blocks:
            yield Violation(
                "partition",
                step,
                self._pool,
                f"{len(snapshot.never_allocatable)} blocks are listed never allocatable, the engine declares "
                f"{self._spec.never_allocatable_blocks}",
            )
        listed = np.zeros(self._spec.num_blocks, np.int64)
        for _, ids in self._lists(snapshot):
            np.add.at(listed, ids[(ids >= 0) & (ids < self._spec.num_blocks)], 1)
        total = listed + (holdings.holders > 0)
        wrong = np.flatnonzero(total != 1)
        if len(wrong):
            block = int(wrong[0])
            where = [_NAMES[s] for s, ids in self._lists(snapshot) for _ in range(int((ids == block).sum()))]
            if holdings.holders[block] > 0:
                where.append(f"held by {self._holders(holdings, block)}")
            found = " and ".join(where) if where else "in no list and in no table"
            yield Violation(
                "partition",
                step,
                self._pool,
                f"block {block} is {found}, expected exactly one state ({len(wrong)} blocks are wrong)",
            )

    def changed_live(self, holdings: Holdings, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Yield blocks that a changed snapshot lists as out of use while a table holds them."""
        for state, ids in self._lists(snapshot):
            if state == NEVER or len(ids) == 0:
                continue
            ids = ids[(ids >= 0) & (ids < self._spec.num_blocks)]
            held = ids[holdings.holders[ids] > 0]
            if len(held):
                block = int(held[0])
                yield Violation(
                    "partition",
                    step,
                    self._pool,
                    f"block {block} became {_NAMES[state]} and is held by {self._holders(holdings, block)}",
                )

    def recount(self, holdings: Holdings, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Yield blocks whose claimed reference count is not the number of their holders."""
        if snapshot.ref_count_ids is None:
            return
        checked = np.arange(self._spec.num_blocks) if snapshot.is_full else snapshot.ref_count_ids
        due = holdings.holders
        if len(snapshot.pinned):
            due = due + np.bincount(snapshot.pinned, minlength=self._spec.num_blocks)
        wrong = checked[self._claimed_refs[checked] != due[checked]]
        if len(wrong):
            block = int(wrong[0])
            yield Violation(
                "recount",
                step,
                self._pool,
                f"block {block} has ref_count {int(self._claimed_refs[block])}, expected "
                f"{int(due[block])}: held by {self._holders(holdings, block)} "
                f"({len(wrong)} blocks are wrong)",
            )

    def differences(self, snapshot: PoolSnapshot, step: int) -> Iterator[Violation]:
        """Yield where the accumulated changes are not what a full snapshot of the same moment says."""
        full = np.full(self._spec.num_blocks, LIVE, np.int8)
        for state, ids in self._lists(snapshot):
            full[ids[(ids >= 0) & (ids < self._spec.num_blocks)]] = state
        wrong = np.flatnonzero(full != self._state)
        if len(wrong):
            block = int(wrong[0])
            yield Violation(
                "changes",
                step,
                self._pool,
                f"block {block} is {_NAMES[int(full[block])]} in the full snapshot and "
                f"{_NAMES[int(self._state[block])]} by the changes reported so far",
            )

    def _move(self, ids: Int32Array, state: int, step: int) -> Iterator[Violation]:
        yield from self._out_of_range(ids, state, step)
        ids = ids[(ids >= 0) & (ids < self._spec.num_blocks)]
        before = self._state[ids]
        for old in (LIVE, FREE, CACHED, QUARANTINED):
            self.counts[old] -= int(np.count_nonzero(before == old))
        self.counts[state] += len(ids)
        if state != CACHED:
            self.evicted += int(np.count_nonzero(before == CACHED))
        self._state[ids] = state

    def _lists(self, snapshot: PoolSnapshot) -> tuple[tuple[int, Int32Array], ...]:
        return (
            (FREE, snapshot.free),
            (CACHED, snapshot.cached),
            (QUARANTINED, snapshot.quarantined),
            (NEVER, snapshot.never_allocatable),
        )

    def _out_of_range(self, ids: Int32Array, state: int, step: int) -> Iterator[Violation]:
        wrong = ids[(ids < 0) | (ids >= self._spec.num_blocks)]
        if len(wrong):
            yield Violation(
                "partition",
                step,
                self._pool,
                f"block {int(wrong[0])} is listed {_NAMES[state]}, the pool has ids "
                f"0..{self._spec.num_blocks - 1}",
            )

    def _holders(self, holdings: Holdings, block: int) -> str:
        ids = [request for request, held in holdings.tables.items() if block in held.blocks]
        return ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "") if ids else "nobody"
