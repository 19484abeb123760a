"""What forking saved, family by family, once the copies are paid for.

A family is a request and everything forked from it. At each step its members share slots: those a block
holds for a second, third, ... member. Copy-on-write ends part of that and moves bytes besides:

    net = slots still shared at the last copy (at the peak where nothing was copied) - slots copied

so a burst that diverges at once, inside its first block, ends below zero: nothing stays shared and every
child has copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import BlockCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        for family in {f.root: f for f in self._family_of.values()}.values():
            saved = self._saved_tokens(family)
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

    def _saved_tokens(self, family: _Family) -> int:
        size = self._tracker.spec.block_size
        blocks, fills = [], []
        for row, request_id in enumerate(self._tracker.order):
            if request_id in family.members and self._tracker.used[row]:
                used = int(self._tracker.used[row])
                table = self._tracker.blocks_of(request_id)[:used]
                fill = np.full(used, size, np.int64)
                fill[-1:] = int(self._tracker.lengths[row]) - (used - 1) * size
                owned = ~np.isin(table, self._tracker.holdings.null_ids)
                blocks.append(table[owned])
                fills.append(fill[owned])
        if not blocks:
            return 0
        held, filled = np.concatenate(blocks), np.concatenate(fills)
        order = np.lexsort((-filled, held))
        held, filled = held[order], filled[order]
        again = np.zeros(len(held), np.bool_)
        again[1:] = held[1:] == held[:-1]
        return int(filled[again].sum())


def copies_seen(tracker: PoolTracker, written: Callable[[RequestId], int]) -> tuple[BlockCopy, ...]:
    """Return the copies that the newest tables show, for an engine that makes them by itself.

    ``written`` says how many tokens of a sequence were written before this step. What of them lay in the
    block that it left has to be in the other one. A full block that nobody else holds is no copy's source.
    """
    size, key = tracker.spec.block_size, tracker.spec.key
    moved = [(move, min(size, written(move.request_id) - move.entry * size)) for move in tracker.moved]
    return tuple(
        BlockCopy(key, move.source, move.target, tokens, move.request_id)
        for move, tokens in moved
        if 0 < tokens < size or (tokens == size and move.shared)
    )
