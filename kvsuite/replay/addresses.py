"""Where the tokens of a sequence lie: through its table, or at the indices that the engine gives its kernel.

Both are slots of a pool, ``block * block size + offset``. Leading tokens that a window let go are left out,
so positions are counted back from the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int64Array, PoolKey, PoolSpec
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.replay.batch import Sequence, Write
    from kvsuite.trace.model import RequestId

    class Indexed(Protocol):
        """What of an engine is asked for indices."""

        def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
            """See `SupportsSlots`."""
            ...

        def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
            """See `SupportsSlots`."""
            ...

    Given = dict[RequestId, tuple[int, tuple[Int64Array, ...]]]
    """Length of a sequence, and its slots in every pool."""


@dataclass(slots=True)
class Indices:
    """The slots that an engine which claims SLOTS gives its kernel in one step."""

    writes: Given
    """Of every sequence that is written, asked before the step is launched."""
    reads: Given
    """Of every sequence that the step's snapshots show. They stand until the next step: whoever leaves before
    that is read once more as its kernel read it last."""


def slots_to_write(engine: Indexed, writes: Iterable[Write]) -> Given:
    """Ask for the slots of every sequence that is written."""
    sequences = {write.sequence.request_id: write.sequence for write in writes}
    return {name: (sequence.computed, engine.write_slots(name)) for name, sequence in sequences.items()}


def slots_to_read(engine: Indexed, sequences: Iterable[Sequence], shown: Collection[RequestId]) -> Given:
    """Ask for the slots that live sequences read, but for one that the snapshots do not show."""
    return {
        sequence.request_id: (sequence.computed, engine.read_slots(sequence.request_id))
        for sequence in sequences
        if sequence.request_id in shown
    }


class Addresses:
    """Slots through the tables of the newest snapshot."""

    together = True
    """Whether tokens of many sequences are looked up at once."""

    def __init__(self, trackers: tuple[PoolTracker, ...]) -> None:
        self._trackers = trackers
        self.whole = True
        """Whether every live sequence has a slot for each of its tokens, without asking one by one."""

    def begin(self, indices: Indices | None) -> None:
        """Learn that a step is launched and its snapshot taken in."""
        del indices
        self.whole = all(t.agrees and (t.held * t.spec.block_size >= t.stored).all() for t in self._trackers)

    def lack(self, tracker: PoolTracker, sequence: Sequence, stop: int) -> str | None:
        """Return why token ``stop - 1`` of a sequence has no slot; ``None`` where it has one."""
        held = tracker.holdings.tables.get(sequence.request_id)
        slots = 0 if held is None else len(held.blocks) * tracker.spec.block_size
        if _end_in_table(tracker.spec, stop) <= slots:
            return None
        table = "it has no table" if held is None else f"its table ends at {slots} tokens"
        return f"token {stop - 1} of {sequence.request_id} has no slot: {table}"

    def lack_to_write(self, tracker: PoolTracker, write: Write) -> str | None:
        """Return why a write has no slots, its sequence having them; ``None`` where it has."""
        del tracker, write
        return None

    def to_read(self, tracker: PoolTracker, sequence: Sequence, start: int, stop: int) -> Int64Array:
        """Return the slots of tokens ``start..stop`` that are still held, int64[<= stop - start]."""
        return slot_range(tracker, sequence.request_id, start, stop)

    def to_write(self, tracker: PoolTracker, write: Write) -> Int64Array:
        """Return the slots of a write."""
        return self.to_read(tracker, write.sequence, write.start, write.stop)

    def singles(self, tracker: PoolTracker, writes: list[Write]) -> Int64Array:
        """Return the slots of writes of one token each, int64[len]; only where they are ``together``."""
        size, tables, ring = tracker.spec.block_size, tracker.holdings.tables, _ring_tokens(tracker.spec)
        starts = [write.start % ring if ring else write.start for write in writes]
        blocks = [
            tables[w.sequence.request_id].blocks[at // size] for w, at in zip(writes, starts, strict=True)
        ]
        offsets = [at % size for at in starts]
        return np.array(blocks, np.int64) * size + np.array(offsets, np.int64)


class KernelAddresses(Addresses):
    """Slots as an engine that claims SLOTS gives them to its kernel: see `Indices`."""

    together = False

    def __init__(self, pools: tuple[PoolSpec, ...], trackers: tuple[PoolTracker, ...]) -> None:
        super().__init__(trackers)
        self._place: dict[PoolKey, int] = {pool.key: at for at, pool in enumerate(pools)}
        self._indices = Indices({}, {})

    def begin(self, indices: Indices | None) -> None:
        """Take over the indices of a step."""
        super().begin(indices)
        self.whole = False
        assert indices is not None
        self._indices = indices

    def lack(self, tracker: PoolTracker, sequence: Sequence, stop: int) -> str | None:
        """Return why token ``stop - 1`` of a sequence has no slot, or another one that it reads."""
        lacking = super().lack(tracker, sequence, stop)
        known = self._indices.reads.get(sequence.request_id)
        if lacking or known is None:
            return lacking
        length, slots = known[0], known[1][self._place[tracker.spec.key]]
        window = tracker.spec.window_tokens  # its newest token may be one that is yet to come
        due = length if window is None else min(length, window - 1)
        name = f"{sequence.request_id} of {length} tokens"
        return self._fault(tracker, slots, f"read_slots of {name}", due, length)

    def lack_to_write(self, tracker: PoolTracker, write: Write) -> str | None:
        """Return why a write has no slots, its sequence having them; ``None`` where it has."""
        length, slots = self._written_at(tracker, write)
        count, window = write.stop - write.start, tracker.spec.window_tokens
        due = count if window is None else min(count, window)
        name = f"write_slots of {write.sequence.request_id}, {count} tokens longer,"
        return self._fault(tracker, slots, name, due, length)

    def to_read(self, tracker: PoolTracker, sequence: Sequence, start: int, stop: int) -> Int64Array:
        """Return the slots of tokens ``start..stop`` that are still held; a new fork's are its parent's."""
        known = self._indices.reads.get(sequence.request_id)
        if known is None:
            return super().to_read(tracker, sequence, start, stop)
        return _counted_back(known[1][self._place[tracker.spec.key]], known[0], start, stop)

    def to_write(self, tracker: PoolTracker, write: Write) -> Int64Array:
        """Return the slots of a write."""
        length, slots = self._written_at(tracker, write)
        return _counted_back(slots, length, write.start, write.stop)

    def _written_at(self, tracker: PoolTracker, write: Write) -> tuple[int, Int64Array]:
        length, slots = self._indices.writes[write.sequence.request_id]
        return length, slots[self._place[tracker.spec.key]]

    @staticmethod
    def _fault(tracker: PoolTracker, slots: Int64Array, what: str, fewest: int, most: int) -> str | None:
        if not fewest <= len(slots) <= most:
            return f"{what} gives {len(slots)} slots, expected {fewest} to {most}"
        pool_slots = tracker.spec.num_blocks * tracker.spec.block_size
        outside = slots[(slots < 0) | (slots >= pool_slots)]
        if len(outside):
            return f"{what} gives slot {int(outside[0])}, the pool has 0..{pool_slots - 1}"
        return None


def addresses_of(spec: EngineSpec, trackers: tuple[PoolTracker, ...]) -> Addresses:
    """Return where the tokens of an engine lie: at its own indices where it claims SLOTS."""
    if spec.claims(Capability.SLOTS):
        return KernelAddresses(spec.pools, trackers)
    return Addresses(trackers)


def slot_range(tracker: PoolTracker, request_id: RequestId, start: int, stop: int) -> Int64Array:
    """Return the slots of positions ``start..stop``; leading positions a window let go are left out."""
    size = tracker.spec.block_size
    table = tracker.holdings.tables[request_id].blocks
    ring = _ring_tokens(tracker.spec)
    if ring:
        length = int(tracker.lengths[tracker.order.index(request_id)])
        places = np.arange(max(start, length - ring), stop, dtype=np.int64) % ring
        return table[places // size].astype(np.int64) * size + places % size
    first, last = start // size, -(-stop // size)
    blocks = table[first:last].astype(np.int64)
    slots = (blocks[:, None] * size + np.arange(size, dtype=np.int64)).ravel()
    slots = slots[start - first * size : stop - first * size]
    if len(tracker.holdings.null_ids):
        owned = ~np.isin(
            np.repeat(blocks, size)[start - first * size : stop - first * size], tracker.holdings.null_ids
        )
        slots = slots[owned]
    return slots


def _counted_back(slots: Int64Array, length: int, start: int, stop: int) -> Int64Array:
    """Return the part of ``slots``, the last ones of ``length`` tokens, that is of ``start..stop``."""
    first = length - len(slots)
    return slots[max(0, start - first) : max(0, stop - first)]


def _ring_tokens(spec: PoolSpec) -> int | None:
    """Return the window of a ring, whose tokens come round to the same slots; None for any other pool."""
    return spec.window_tokens if spec.kind is PoolKind.RING else None


def _end_in_table(spec: PoolSpec, stop: int) -> int:
    ring = _ring_tokens(spec)
    return min(stop, ring) if ring else stop
