"""Indices of an engine that claims SLOTS, as they travel: of what a sequence reads only what is new.

A sequence that reads where it read a step before, and further, is told as its tail. Whatever differs from
what was told last is told in full, so nothing is taken on trust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.replay.addresses import Indices

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.replay.addresses import Given
    from kvsuite.trace.model import RequestId

    PackedSlots = tuple[list[RequestId] | None, Int64Array, Int64Array, Int64Array]
    """Names, ``None`` for those of before; lengths; (kept, new) of each sequence and pool; the new slots."""

_LEAST_SLOTS = 64


class IndicesPacker:
    """Packs the indices of one replay, step by step."""

    def __init__(self) -> None:
        self._writes = _Packer(remembers=False)
        self._reads = _Packer(remembers=True)

    def pack(self, indices: Indices | None) -> tuple[PackedSlots, PackedSlots] | None:
        """Return ``indices`` as few arrays."""
        if indices is None:
            return None
        return self._writes.pack(indices.writes), self._reads.pack(indices.reads)


class IndicesUnpacker:
    """Makes indices again of what an `IndicesPacker` made, in the same order."""

    def __init__(self) -> None:
        self._writes = _Unpacker(remembers=False)
        self._reads = _Unpacker(remembers=True)

    def unpack(self, packed: tuple[PackedSlots, PackedSlots] | None) -> Indices | None:
        """Return the indices; arrays hold for ever."""
        if packed is None:
            return None
        writes, reads = packed
        return Indices(self._writes.unpack(writes), self._reads.unpack(reads))


class _Growing:
    """Slots that grow at their end; what was given out before never changes."""

    __slots__ = ("_room", "used")

    def __init__(self) -> None:
        self._room: Int64Array = np.empty(_LEAST_SLOTS, np.int64)
        self.used = 0

    @property
    def slots(self) -> Int64Array:
        return self._room[: self.used]

    def add(self, tail: Int64Array) -> None:
        end = self.used + len(tail)
        if end > len(self._room):
            room = np.empty(max(end, 2 * len(self._room)), np.int64)
            room[: self.used] = self.slots
            self._room = room
        self._room[self.used : end] = tail
        self.used = end


class _Packer:
    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        self._names: list[RequestId] = []
        self._told: dict[RequestId, list[_Growing]] = {}

    def pack(self, given: Given) -> PackedSlots:
        names = list(given)
        same = names == self._names
        self._names = names
        if not same:
            self._told = {name: told for name, told in self._told.items() if name in given}
        counts: list[int] = []
        parts: list[Int64Array] = []
        for name, (_, every) in given.items():
            told = self._told_of(name, len(every))
            for pool, slots in enumerate(every):
                kept = self._keep(told, pool, slots)
                counts += kept, len(slots) - kept
                parts.append(slots[kept:])
        lengths = np.array([length for length, _ in given.values()], np.int64)
        new = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return None if same else names, lengths, np.array(counts, np.int64), new

    def _told_of(self, name: RequestId, pools: int) -> list[_Growing]:
        if not self._remembers:
            return []
        if name not in self._told:
            self._told[name] = [_Growing() for _ in range(pools)]
        return self._told[name]

    def _keep(self, told: list[_Growing], pool: int, slots: Int64Array) -> int:
        """Return how many leading slots the other side has; it has all of them after this."""
        if not self._remembers:
            return 0
        before = told[pool]
        kept = before.used
        if kept > len(slots) or before.slots.tobytes() != slots[:kept].tobytes():
            before = told[pool] = _Growing()
            kept = 0
        before.add(slots[kept:])
        return kept


class _Unpacker:
    def __init__(self, *, remembers: bool) -> None:
        self._remembers = remembers
        self._names: list[RequestId] = []
        self._told: dict[RequestId, list[_Growing]] = {}

    def unpack(self, packed: PackedSlots) -> Given:
        names, lengths, counts, new = packed
        if names is not None:
            self._names = names
            known = set(names)
            self._told = {name: told for name, told in self._told.items() if name in known}
        pools = len(counts) // 2 // max(1, len(lengths))
        given: Given = {}
        pairs = iter(counts.reshape(-1, 2).tolist())
        start = 0
        for name, length in zip(self._names, lengths.tolist(), strict=True):
            every = []
            for pool in range(pools):
                kept, count = next(pairs)
                every.append(self._whole(name, pool, kept, new[start : start + count]))
                start += count
            given[name] = (length, tuple(every))
        return given

    def _whole(self, name: RequestId, pool: int, kept: int, tail: Int64Array) -> Int64Array:
        if not self._remembers:
            return tail
        told = self._told.setdefault(name, [])
        if pool == len(told):
            told.append(_Growing())
        elif not kept:
            told[pool] = _Growing()
        told[pool].add(tail)
        return told[pool].slots
