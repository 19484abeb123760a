"""What forking saved, family by family, once the copies are paid for.

A family is a request and everything forked from it. At each step its members share slots: those a block
holds for a second, third, ... member. Copy-on-write ends part of that and moves bytes besides:

    net = slots still shared at the last copy (at the peak where nothing was copied) - slots copied

so a burst that diverges at once, inside its first block, ends below zero: nothing stays shared and every
child has copied.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsuite.engine.contract import BlockCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsuite.engine.snapshot import Int32Array, Int64Array
    from kvsuite.ledger.holdings import HeldTable
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class ForkFamily:
    """One family at its end, in token slots; multiply by `bytes_per_token` for bytes."""

    root: str
    children: int
    copies: int
    copied_tokens: int
    peak_saved_tokens: int
    saved_after_copies_tokens: int
    bytes_per_token: int

    @property
    def net_tokens(self) -> int:
        """Slots saved after the copies; below zero when copying cost more than sharing kept."""
        return self.saved_after_copies_tokens - self.copied_tokens

    @property
    def net_bytes(self) -> int:
        """Bytes saved after the copies."""
        return self.net_tokens * self.bytes_per_token


@dataclass(slots=True)
class _Family:
    root: RequestId
    members: set[RequestId] = field(default_factory=set)
    children: int = 0
    copies: int = 0
    copied_tokens: int = 0
    peak_saved_tokens: int = 0
    saved_at_last_copy_tokens: int = 0
    saved_tokens: int = 0
    """What the members shared when last counted."""
    tables: list[HeldTable] = field(default_factory=list)
    """Their tables then, where that stands for as long as these do: no last block is shared."""


class _Shared(NamedTuple):
    """Blocks of one member that anybody else holds too, and how full it has them."""

    blocks: Int32Array
    fills: Int64Array
    last: bool
    """Whether its last block is among them, which fills while the table stands."""


class FamilyBook:
    """Keeps the families of one pool while they live."""

    def __init__(self, tracker: PoolTracker) -> None:
        self._tracker = tracker
        self._family_of: dict[RequestId, _Family] = {}
        self._all: list[_Family] = []

    def forked(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Learn of a fork."""
        family = self._family_of.get(parent_id)
        if family is None:
            family = _Family(parent_id, {parent_id})
            self._family_of[parent_id] = family
            self._all.append(family)
        family.members.add(child_id)
        family.children += 1
        self._family_of[child_id] = family

    def leaving(self, request_id: RequestId) -> None:
        """Learn that a sequence gives its blocks back."""
        family = self._family_of.pop(request_id, None)
        if family is not None:
            family.members.discard(request_id)

    def observe(self, copies: Sequence[BlockCopy]) -> None:
        """Take in one forward pass: its copies, and what is shared in it."""
        if not self._family_of:
            return
        copied: set[RequestId] = set()
        for copy in copies:
            family = self._family_of.get(copy.request_id)
            if family is not None and copy.pool == self._tracker.spec.key:
                family.copies += 1
                family.copied_tokens += copy.num_tokens
                copied.add(family.root)
        rows = {name: row for row, name in enumerate(self._tracker.order) if name in self._family_of}
        for family in {f.root: f for f in self._family_of.values()}.values():
            saved = self._saved_tokens(family, rows)
            family.peak_saved_tokens = max(family.peak_saved_tokens, saved)
            if family.root in copied:
                family.saved_at_last_copy_tokens = saved

    def result(self) -> tuple[ForkFamily, ...]:
        """Return every family seen, in order of its first fork."""
        width = self._tracker.spec.bytes_per_token
        return tuple(
            ForkFamily(
                str(f.root),
                f.children,
                f.copies,
                f.copied_tokens,
                f.peak_saved_tokens,
                f.saved_at_last_copy_tokens if f.copies else f.peak_saved_tokens,
                width,
            )
            for f in self._all
        )

    def _saved_tokens(self, family: _Family, rows: Mapping[RequestId, int]) -> int:
        known, members = self._tracker.holdings.tables, [name for name in family.members if name in rows]
        tables = [known[name] for name in members]
        if len(tables) == len(family.tables) and all(map(operator.is_, tables, family.tables)):
            return family.saved_tokens
        parts = [self._shared(name, rows[name]) for name in members]
        family.tables = [] if any(part.last for part in parts) else tables
        family.saved_tokens = _held_again(parts) if parts else 0
        return family.saved_tokens

    def _shared(self, request_id: RequestId, row: int) -> _Shared:
        holdings, size = self._tracker.holdings, self._tracker.spec.block_size
        used = int(self._tracker.used[row])
        table = self._tracker.blocks_of(request_id)[:used]
        shared = holdings.holders[table] > 1
        if len(holdings.null_ids):
            shared &= ~np.isin(table, holdings.null_ids)
        entries = np.flatnonzero(shared)
        fills = np.full(len(entries), size, np.int64)
        last = bool(len(entries)) and int(entries[-1]) == used - 1
        if last:
            fills[-1] = int(self._tracker.lengths[row]) - (used - 1) * size
        return _Shared(table[entries], fills, last)


def _held_again(parts: Sequence[_Shared]) -> int:
    """Return the slots that a second, third, ... member holds; who has a block fullest holds it first."""
    held = np.concatenate([part.blocks for part in parts])
    filled = np.concatenate([part.fills for part in parts])
    order = np.lexsort((-filled, held))
    held, filled = held[order], filled[order]
    return int(filled[1:][held[1:] == held[:-1]].sum())


def copies_seen(tracker: PoolTracker, written: Callable[[RequestId], int]) -> tuple[BlockCopy, ...]:
    """Return the copies that the newest tables show, for an engine that makes them by itself.

    ``written`` says how many tokens of a sequence were written before this step. What of them lay in the
    block that it left has to be in the other one. A full block that nobody else holds is no copy's source.
    """
    size, key = tracker.spec.block_size, tracker.spec.key
    moved = [
        (move, min(size, written(move.request_id) - move.entry * size)) for move in tracker.changes.moved
    ]
    return tuple(
        BlockCopy(key, move.source, move.target, tokens, move.request_id)
        for move, tokens in moved
        if 0 < tokens < size or (tokens == size and move.shared)
    )
