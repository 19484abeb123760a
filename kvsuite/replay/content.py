"""Writes a sequence's tokens through the engine's tables, reads them back, and counts what is wrong.

A long replay reads each token once after the writes of the step that follows its own, again before its
block is released, on each fork, copy and prefix hit, and a rotating sample each step. With ``read_all``
every live token is read at every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation
from kvsuite.trace.tokens import mix64

if TYPE_CHECKING:
    from kvsuite.engine.contract import Ops
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.replay.batch import Sequence, Write
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import RequestId

SAMPLE_TOKENS = 256
MAX_KEPT_VIOLATIONS = 50


@dataclass(frozen=True, slots=True)
class ContentTally:
    """What was written and read back in one replay; ``mode`` is ``full``, ``probe`` or ``none``."""

    mode: str
    tokens_written: int
    tokens_read: int
    mismatches: int
    first_mismatch: str | None


class ContentCheck:
    """The worker's side of a replay, over every device pool of an engine."""

    def __init__(self, worker: Worker, trackers: tuple[PoolTracker, ...], *, read_all: bool) -> None:
        self._worker = worker
        self._trackers = tuple(
            t for t in trackers if t.spec.key.tier == "device" and t.spec.kind is not PoolKind.STATE
        )
        self._read_all = read_all
        self._live: dict[RequestId, Sequence] = {}
        self._written: dict[RequestId, int] = {}
        self._last_singles: list[Write] = []
        self._last_tags: Int64Array = np.zeros(0, np.int64)
        self._last_runs: list[Write] = []
        self._tables_reach = True
        self._forked: list[Sequence] = []
        self._turn = 0
        self.violations: list[Violation] = []
        self.tokens_written = self.tokens_read = self.mismatches = 0

    def tally(self) -> ContentTally:
        """Return the counts so far."""
        first = self.violations[0].message if self.violations else None
        return ContentTally(self._worker.mode, self.tokens_written, self.tokens_read, self.mismatches, first)

    def step(self, step: int, ops: Ops, writes: list[Write]) -> None:
        """Execute copies, write this step's tokens, and read what is due; tables are this step's."""
        for copy in ops.copies:
            self._worker.copy(copy.pool, copy.source, copy.target, copy.num_tokens)
        for pool, block in ops.zeroed:
            self._worker.zero(pool, block)
        self._tables_reach = all(
            t.agrees and (t.held * t.spec.block_size >= t.stored).all() for t in self._trackers
        )
        writes = [write for write in writes if self._has_slots(write.sequence, write.stop, step)]
        singles = [write for write in writes if write.stop - write.start == 1]
        runs = (
            [write for write in writes if write.stop - write.start > 1] if len(singles) < len(writes) else []
        )
        tags = _tags(singles)
        self._write(singles, tags, runs)
        for write in writes:
            self._live[write.sequence.request_id] = write.sequence
            self._written[write.sequence.request_id] = write.stop
        if self._read_all:
            for request_id, sequence in self._live.items():
                self._read(sequence, 0, self._written[request_id], step, "with every live token")
        else:
            self._read_due(step, ops, writes)
            self._read_leaving(step, writes)
        self._last_singles, self._last_tags, self._last_runs = singles, tags, runs
        self._forked = []

    def forked(self, child: Sequence, tokens: int) -> None:
        """Learn that a child shares its parent's blocks, ``tokens`` tokens long."""
        self._live[child.request_id] = child
        self._written[child.request_id] = tokens
        self._forked.append(child)

    def before_release(self, sequence: Sequence, step: int) -> None:
        """Read all of a sequence once more, through the tables it had in the last forward pass."""
        written = self._written.pop(sequence.request_id, 0)
        self._live.pop(sequence.request_id, None)
        if written and all(sequence.request_id in t.holdings.tables for t in self._trackers):
            self._read(sequence, 0, written, step, "before its release")

    def roll_back(self, request_id: RequestId, length: int) -> None:
        """Learn that tokens beyond ``length`` were drafts and are gone."""
        if request_id in self._written:
            self._written[request_id] = min(self._written[request_id], length)

    def written(self) -> list[tuple[Sequence, int]]:
        """Return every live sequence with the number of its tokens that are written."""
        return [(sequence, self._written[request_id]) for request_id, sequence in self._live.items()]

    def settled(self, request_id: RequestId) -> int:
        """Return how many tokens of a sequence were written before this step."""
        return self._written.get(request_id, 0)

    def _read_due(self, step: int, ops: Ops, writes: list[Write]) -> None:
        self._read_last_writes(step)
        for write in writes:
            if write.hit:
                self._read(write.sequence, 0, write.hit, step, "on a prefix hit")
        for child in self._forked:
            if child.request_id in self._live:
                self._read(child, 0, self._written[child.request_id], step, "after its fork")
        for copy in ops.copies:
            sequence = self._live.get(copy.request_id)
            if sequence is not None:
                written = self._written[copy.request_id]
                self._read(sequence, max(0, written - copy.num_tokens - 1), written, step, "after a copy")
        if writes:
            self._turn += 1
            sequence = writes[self._turn % len(writes)].sequence
            written = self._written[sequence.request_id]
            start = self._turn * SAMPLE_TOKENS % written
            self._read(sequence, start, min(written, start + SAMPLE_TOKENS), step, "in a rotating sample")

    def _read_leaving(self, step: int, writes: list[Write]) -> None:
        """Read what falls out of a window once this step is settled; ``hit`` marks an admission."""
        for tracker in self._trackers:
            if tracker.spec.window_tokens is None:
                continue
            size, unseen = tracker.spec.block_size, tracker.spec.window_tokens - 1
            for write in writes:
                start = max(0, (write.start - unseen) // size * size) if write.start > write.hit else 0
                stop = (write.stop - unseen) // size * size
                if stop > start:
                    self._read(write.sequence, start, stop, step, "before it leaves its window")

    def _read_last_writes(self, step: int) -> None:
        for write in self._last_runs:
            if write.sequence.request_id in self._live:
                self._read(write.sequence, write.start, write.stop, step, "one step after its write")
        live = [
            write.sequence.request_id in self._live and self._has_slots(write.sequence, write.stop, step)
            for write in self._last_singles
        ]
        singles, tags = self._last_singles, self._last_tags
        if not all(live):
            singles = [write for write, lives in zip(singles, live, strict=True) if lives]
            tags = tags[live]
        if singles:
            self._read_singles(singles, tags, step)

    def _write(self, singles: list[Write], tags: Int64Array, runs: list[Write]) -> None:
        for tracker in self._trackers:
            if singles:
                self._worker.write(tracker.spec.key, _slots(tracker, singles), tags)
        self.tokens_written += len(singles)
        for write in runs:
            run_tags = write.sequence.content.tags(write.start, write.stop)
            for tracker in self._trackers:
                slots = slot_range(tracker, write.sequence.request_id, write.start, write.stop)
                self._worker.write(tracker.spec.key, slots, run_tags[len(run_tags) - len(slots) :])
            self.tokens_written += len(run_tags)

    def _read(self, sequence: Sequence, start: int, stop: int, step: int, why: str) -> None:
        if not self._has_slots(sequence, stop, step):
            return
        tags = sequence.content.tags(start, stop)
        for tracker in self._trackers:
            slots = slot_range(tracker, sequence.request_id, start, stop)
            found = self._worker.matches(tracker.spec.key, slots, tags[len(tags) - len(slots) :])
            self.tokens_read += len(slots)
            if not found.all():
                wrong = np.flatnonzero(~found)
                position = stop - len(slots) + int(wrong[0])
                self._mismatch(tracker, sequence, position, int(slots[wrong[0]]), len(wrong), step, why)

    def _read_singles(self, writes: list[Write], tags: Int64Array, step: int) -> None:
        for tracker in self._trackers:
            slots = _slots(tracker, writes)
            found = self._worker.matches(tracker.spec.key, slots, tags)
            self.tokens_read += len(slots)
            for row in np.flatnonzero(~found).tolist():
                write = writes[row]
                self._mismatch(
                    tracker, write.sequence, write.start, int(slots[row]), 1, step, "one step after its write"
                )

    def _has_slots(self, sequence: Sequence, stop: int, step: int) -> bool:
        """Return whether every table reaches to token ``stop``; where one does not, that is a violation."""
        if self._tables_reach:
            return True
        for tracker in self._trackers:
            held = tracker.holdings.tables.get(sequence.request_id)
            slots = 0 if held is None else len(held.blocks) * tracker.spec.block_size
            if _end_in_table(tracker.spec, stop) > slots:
                table = "it has no table" if held is None else f"its table ends at {slots} tokens"
                self._violate(
                    tracker, 1, step, f"token {stop - 1} of {sequence.request_id} has no slot: {table}"
                )
                return False
        return True

    def _mismatch(
        self,
        tracker: PoolTracker,
        sequence: Sequence,
        position: int,
        slot: int,
        count: int,
        step: int,
        why: str,
    ) -> None:
        block, offset = divmod(slot, tracker.spec.block_size)
        self._violate(
            tracker,
            count,
            step,
            f"token {position} of {sequence.request_id}, block {block} offset {offset}, does not hold what "
            f"was written for it; read {why} ({count} tokens of this read are wrong)",
        )

    def _violate(self, tracker: PoolTracker, count: int, step: int, message: str) -> None:
        self.mismatches += count
        if len(self.violations) < MAX_KEPT_VIOLATIONS:
            self.violations.append(Violation("content", step, str(tracker.spec.key), message))


def _tags(writes: list[Write]) -> Int64Array:
    """Return the tags of single-token writes, int64[len]: a prefix key ends one past its last position."""
    keys = [write.sequence.content.prefix_key(write.stop) - 1 for write in writes]
    return mix64(np.array(keys, np.int64))


def _slots(tracker: PoolTracker, writes: list[Write]) -> Int64Array:
    """Return the slots of single-token writes through the engine's tables, int64[len]."""
    size, tables, ring = tracker.spec.block_size, tracker.holdings.tables, _ring_tokens(tracker.spec)
    starts = [write.start % ring if ring else write.start for write in writes]
    blocks = [tables[w.sequence.request_id].blocks[at // size] for w, at in zip(writes, starts, strict=True)]
    offsets = [at % size for at in starts]
    return np.array(blocks, np.int64) * size + np.array(offsets, np.int64)


def _ring_tokens(spec: PoolSpec) -> int | None:
    """Return the window of a ring, whose tokens come round to the same slots; None for any other pool."""
    return spec.window_tokens if spec.kind is PoolKind.RING else None


def _end_in_table(spec: PoolSpec, stop: int) -> int:
    ring = _ring_tokens(spec)
    return min(stop, ring) if ring else stop


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
