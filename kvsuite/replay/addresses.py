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

    def __init__(self, trackers: tuple[PoolTracker, ...]) -> None:
        self._trackers = trackers
        self.whole = True
        """Whether every live sequence has a slot for each of its tokens, without asking one by one."""

    def begin(self, writes: list[Write], indices: Indices | None) -> None:
        """Learn that a step is launched and its snapshot taken in."""
        del writes, indices
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

    def singles_to_write(self, tracker: PoolTracker, writes: list[Write]) -> Int64Array:
        """Return the slots of writes of one token each, int64[len]; only where all is ``whole``."""
        return self.singles_to_read(tracker, writes)

    def singles_to_read(self, tracker: PoolTracker, writes: list[Write]) -> Int64Array:
        """Return where one token each is read, int64[len]: -1 for one that is held no more."""
        size, tables, ring = tracker.spec.block_size, tracker.holdings.tables, _ring_tokens(tracker.spec)
        starts = [write.start % ring if ring else write.start for write in writes]
        blocks = [
            tables[w.sequence.request_id].blocks[at // size] for w, at in zip(writes, starts, strict=True)
        ]
        offsets = [at % size for at in starts]
        return np.array(blocks, np.int64) * size + np.array(offsets, np.int64)


class KernelAddresses(Addresses):
    """Slots as an engine that claims SLOTS gives them to its kernel: see `Indices`."""

    def __init__(self, pools: tuple[PoolSpec, ...], trackers: tuple[PoolTracker, ...]) -> None:
        super().__init__(trackers)
        self._place: dict[PoolKey, int] = {pool.key: at for at, pool in enumerate(pools)}
        self._indices = Indices({}, {})

    def begin(self, writes: list[Write], indices: Indices | None) -> None:
        """Take over the indices of a step."""
        super().begin(writes, indices)
        assert indices is not None
        self._indices = indices
        self.whole = self.whole and all(self._are_sound(tracker, writes) for tracker in self._trackers)

    def lack(self, tracker: PoolTracker, sequence: Sequence, stop: int) -> str | None:
        """Return why token ``stop - 1`` of a sequence has no slot, or another one that it reads."""
        lacking = super().lack(tracker, sequence, stop)
        known = self._indices.reads.get(sequence.request_id)
        if lacking or known is None:
            return lacking
        length, slots = known[0], known[1][self._place[tracker.spec.key]]
        fewest, most = _read_at_once(tracker.spec, length)
        name = f"{sequence.request_id} of {length} tokens"
        return self._fault(tracker, slots, f"read_slots of {name}", fewest, most)

    def lack_to_write(self, tracker: PoolTracker, write: Write) -> str | None:
        """Return why a write has no slots, its sequence having them; ``None`` where it has."""
        length, slots = self._written_at(tracker, write)
        name = f"write_slots of {write.sequence.request_id}, {write.stop - write.start} tokens longer,"
        return self._fault(tracker, slots, name, _written_at_least(tracker.spec, write), length)

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

    def singles_to_write(self, tracker: PoolTracker, writes: list[Write]) -> Int64Array:
        """Return the slots of writes of one token each, int64[len]; only where all is ``whole``."""
        given, place = self._indices.writes, self._place[tracker.spec.key]
        found = [(given[write.sequence.request_id], write.start) for write in writes]
        return np.array([slots[place][start - length] for (length, slots), start in found], np.int64)

    def singles_to_read(self, tracker: PoolTracker, writes: list[Write]) -> Int64Array:
        """Return where one token each is read, int64[len]: -1 for one that is held no more."""
        given, place = self._indices.reads, self._place[tracker.spec.key]
        found = np.full(len(writes), -1, np.int64)
        for row, write in enumerate(writes):
            known = given.get(write.sequence.request_id)
            if known is None:
                found[row : row + 1] = super().singles_to_read(tracker, [write])
            elif known[0] - len(known[1][place]) <= write.start:
                found[row] = known[1][place][write.start - known[0]]
        return found

    def _are_sound(self, tracker: PoolTracker, writes: list[Write]) -> bool:
        """Return whether every index list of the step is as long as it should be, and inside the pool."""
        spec, place = tracker.spec, self._place[tracker.spec.key]
        reads = [(length, slots[place]) for length, slots in self._indices.reads.values()]
        for length, slots in reads:
            fewest, most = _read_at_once(spec, length)
            if not fewest <= len(slots) <= most:
                return False
        written = [(write, *self._written_at(tracker, write)) for write in writes]
        if any(
            not _written_at_least(spec, write) <= len(slots) <= length for write, length, slots in written
        ):
            return False
        parts = [*(slots for _, slots in reads), *(slots for _, _, slots in written)]
        slots = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return bool((slots.view(np.uint64) < spec.num_blocks * spec.block_size).all())  # below 0: huge

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


def _read_at_once(spec: PoolSpec, length: int) -> tuple[int, int]:
    """Return the fewest and the most slots that are read of a sequence of ``length`` tokens.

    The newest token of a window may be one that is yet to come. A ring holds no more than its window, any
    other pool may hold on to tokens that its window let go.
    """
    window = spec.window_tokens
    fewest = length if window is None else min(length, window - 1)
    return fewest, min(length, _ring_tokens(spec) or length)


def _written_at_least(spec: PoolSpec, write: Write) -> int:
    """Return the fewest slots that a write is given; what no window keeps needs none."""
    count, window = write.stop - write.start, spec.window_tokens
    return count if window is None else min(count, window)


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
