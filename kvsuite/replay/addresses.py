"""Where the tokens of a sequence lie: through its table, or at the indices that the engine gives its kernel.

Both are slots of a pool, ``block * block size + offset``. Leading tokens that a window let go are left out,
so positions are counted back from the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsuite.engine.contract import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int64Array, PoolKey
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.replay.batch import Sequence, Write
    from kvsuite.trace.model import RequestId

    class Indexed(Protocol):
        """What of an engine is asked for indices."""

        @property
        def spec(self) -> EngineSpec:
            """Who the engine is."""
            ...

        def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
            """See `SupportsSlots`."""
            ...

        def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
            """See `SupportsSlots`."""
            ...


class Addresses:
    """Slots through the tables of the newest snapshot."""

    together = True
    """Whether tokens of many sequences are looked up at once."""

    def __init__(self, trackers: tuple[PoolTracker, ...]) -> None:
        self._trackers = trackers
        self.whole = True
        """Whether every live sequence has a slot for each of its tokens, without asking one by one."""

    def given(self, writes: Iterable[Write]) -> None:
        """Learn what is to be written, before the step is launched."""

    def begin(self, live: Iterable[Sequence]) -> None:
        """Learn that a step is launched and its snapshot taken in."""
        del live
        self.whole = all(t.agrees and (t.held * t.spec.block_size >= t.lengths).all() for t in self._trackers)

    def lack(self, tracker: PoolTracker, sequence: Sequence, stop: int) -> str | None:
        """Return why token ``stop - 1`` of a sequence has no slot; ``None`` where it has one."""
        held = tracker.holdings.tables.get(sequence.request_id)
        slots = 0 if held is None else len(held.blocks) * tracker.spec.block_size
        if stop <= slots:
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
        size, tables = tracker.spec.block_size, tracker.holdings.tables
        blocks = [tables[w.sequence.request_id].blocks[w.start // size] for w in writes]
        offsets = [write.start % size for write in writes]
        return np.array(blocks, np.int64) * size + np.array(offsets, np.int64)


class KernelAddresses(Addresses):
    """Slots as an engine that claims SLOTS gives them to its kernel.

    What a sequence reads is asked for at each step and stands until the next one: whoever leaves before that
    is read once more as its kernel read it last.
    """

    together = False

    def __init__(self, engine: Indexed, trackers: tuple[PoolTracker, ...]) -> None:
        super().__init__(trackers)
        self._engine = engine
        self._place: dict[PoolKey, int] = {pool.key: at for at, pool in enumerate(engine.spec.pools)}
        self._writes: dict[RequestId, tuple[Int64Array, ...]] = {}
        self._reads: dict[RequestId, tuple[int, tuple[Int64Array, ...]]] = {}

    def given(self, writes: Iterable[Write]) -> None:
        """Ask for the indices of every sequence that is written."""
        ids = {write.sequence.request_id for write in writes}
        self._writes = {request_id: self._engine.write_slots(request_id) for request_id in ids}

    def begin(self, live: Iterable[Sequence]) -> None:
        """Ask for the indices that every live sequence reads."""
        super().begin(live)
        self.whole = False
        self._reads = {
            sequence.request_id: (sequence.computed, self._engine.read_slots(sequence.request_id))
            for sequence in live
            if all(sequence.request_id in tracker.holdings.tables for tracker in self._trackers)
        }

    def lack(self, tracker: PoolTracker, sequence: Sequence, stop: int) -> str | None:
        """Return why token ``stop - 1`` of a sequence has no slot, or another one that it reads."""
        lacking = super().lack(tracker, sequence, stop)
        known = self._reads.get(sequence.request_id)
        if lacking or known is None:
            return lacking
        length, slots = known[0], known[1][self._place[tracker.spec.key]]
        window = tracker.spec.window_tokens  # its newest token may be one that is yet to come
        due = length if window is None else min(length, window - 1)
        name = f"{sequence.request_id} of {length} tokens"
        return self._fault(tracker, slots, f"read_slots of {name}", due, length)

    def lack_to_write(self, tracker: PoolTracker, write: Write) -> str | None:
        """Return why a write has no slots, its sequence having them; ``None`` where it has."""
        slots = self._writes[write.sequence.request_id][self._place[tracker.spec.key]]
        count, window = write.stop - write.start, tracker.spec.window_tokens
        due = count if window is None else min(count, window)
        name = f"write_slots of {write.sequence.request_id}, {count} tokens longer,"
        return self._fault(tracker, slots, name, due, write.sequence.computed)

    def to_read(self, tracker: PoolTracker, sequence: Sequence, start: int, stop: int) -> Int64Array:
        """Return the slots of tokens ``start..stop`` that are still held; a new fork's are its parent's."""
        known = self._reads.get(sequence.request_id)
        if known is None:
            return super().to_read(tracker, sequence, start, stop)
        return _counted_back(known[1][self._place[tracker.spec.key]], known[0], start, stop)

    def to_write(self, tracker: PoolTracker, write: Write) -> Int64Array:
        """Return the slots of a write."""
        slots = self._writes[write.sequence.request_id][self._place[tracker.spec.key]]
        return _counted_back(slots, write.sequence.computed, write.start, write.stop)

    @staticmethod
    def _fault(tracker: PoolTracker, slots: Int64Array, what: str, fewest: int, most: int) -> str | None:
        if not fewest <= len(slots) <= most:
            return f"{what} gives {len(slots)} slots, expected {fewest} to {most}"
        pool_slots = tracker.spec.num_blocks * tracker.spec.block_size
        outside = slots[(slots < 0) | (slots >= pool_slots)]
        if len(outside):
            return f"{what} gives slot {int(outside[0])}, the pool has 0..{pool_slots - 1}"
        return None


def addresses_of(engine: Indexed, trackers: tuple[PoolTracker, ...]) -> Addresses:
    """Return where the tokens of ``engine`` lie: at its own indices where it claims SLOTS."""
    return KernelAddresses(engine, trackers) if engine.spec.claims(Capability.SLOTS) else Addresses(trackers)


def slot_range(tracker: PoolTracker, request_id: RequestId, start: int, stop: int) -> Int64Array:
    """Return the slots of positions ``start..stop``; leading positions a window let go are left out."""
    size = tracker.spec.block_size
    table = tracker.holdings.tables[request_id].blocks
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
