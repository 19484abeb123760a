"""Writes a sequence's tokens where the engine says they lie, reads them back, and counts what is wrong.

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
from kvsuite.replay.addresses import addresses_of
from kvsuite.trace.tokens import mix64

if TYPE_CHECKING:
    from kvsuite.engine.contract import BlockCopy, EngineSpec, Ops
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.replay.addresses import Indices
    from kvsuite.replay.batch import Sequence, Write
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import RequestId

SAMPLE_TOKENS = 256
MAX_KEPT_VIOLATIONS = 50


@dataclass(frozen=True, slots=True)
class ContentTally:
    """What was written and read back in a replay; ``mode`` is ``full``, ``probe``, ``engine`` or ``none``."""

    mode: str
    tokens_written: int
    tokens_read: int
    mismatches: int
    first_mismatch: str | None


class ContentCheck:
    """The worker's side of a replay, over every device pool of an engine."""

    def __init__(
        self, spec: EngineSpec, worker: Worker, trackers: tuple[PoolTracker, ...], *, read_all: bool
    ) -> None:
        self._worker = worker
        self._trackers = tuple(
            t for t in trackers if t.spec.key.tier == "device" and t.spec.kind is not PoolKind.STATE
        )
        self._addresses = addresses_of(spec, self._trackers)
        self._read_all = read_all
        self._live: dict[RequestId, Sequence] = {}
        self._written: dict[RequestId, int] = {}
        self._last_singles: list[Write] = []
        self._last_tags: Int64Array = np.zeros(0, np.int64)
        self._last_runs: list[Write] = []
        self._forked: list[Sequence] = []
        self._turn = 0
        self.violations: list[Violation] = []
        self.tokens_written = self.tokens_read = self.mismatches = 0

    def tally(self) -> ContentTally:
        """Return the counts so far."""
        first = self.violations[0].message if self.violations else None
        return ContentTally(self._worker.mode, self.tokens_written, self.tokens_read, self.mismatches, first)

    def step(
        self,
        step: int,
        ops: Ops,
        writes: list[Write],
        copied: tuple[BlockCopy, ...] = (),
        indices: Indices | None = None,
    ) -> None:
        """Execute copies, write this step's tokens, and read what is due; tables are this step's.

        ``copied`` are the copies to be read: those of ``ops``, and those that the engine made by itself.
        ``indices`` are given by an engine that claims SLOTS.
        """
        for copy in ops.copies:
            self._worker.copy(copy.pool, copy.source, copy.target, copy.num_tokens)
        for pool, block in ops.zeroed:
            self._worker.zero(pool, block)
        self._addresses.begin(indices)
        writes = [write for write in writes if self._may_write(write, step)]
        singles, runs = self._parted(writes)
        tags = _tags(singles)
        self._write(singles, tags, runs)
        for write in writes:
            self._live[write.sequence.request_id] = write.sequence
            self._written[write.sequence.request_id] = write.stop
        if self._read_all:
            for request_id, sequence in self._live.items():
                self._read(sequence, 0, self._written[request_id], step, "with every live token")
        else:
            self._read_due(step, copied, writes)
            self._read_leaving(step, writes)
        self._last_singles, self._last_tags, self._last_runs = singles, tags, runs
        self._forked = []

    def forked(self, child: Sequence, tokens: int) -> None:
        """Learn that a child shares its parent's blocks, ``tokens`` tokens long."""
        self._live[child.request_id] = child
        self._written[child.request_id] = tokens
        self._forked.append(child)

    def before_release(self, sequence: Sequence, step: int) -> None:
        """Read all that a sequence still holds once more, through the tables of the last forward pass.

        What a window has let go of since, others may hold by now, and an engine that copies by itself may
        have copied there already.
        """
        written = self._written.pop(sequence.request_id, 0)
        self._live.pop(sequence.request_id, None)
        if written and all(sequence.request_id in t.holdings.tables for t in self._trackers):
            self._read(sequence, 0, written, step, "before its release", settled=True)

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

    def _read_due(self, step: int, copies: tuple[BlockCopy, ...], writes: list[Write]) -> None:
        self._read_last_writes(step)
        for write in writes:
            if write.hit:
                self._read(write.sequence, 0, write.hit, step, "on a prefix hit")
        for child in self._forked:
            if child.request_id in self._live:
                self._read(child, 0, self._written[child.request_id], step, "after its fork")
        for copy in copies:
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
                self._worker.write(tracker.spec.key, self._addresses.singles(tracker, singles), tags)
        self.tokens_written += len(singles)
        for write in runs:
            run_tags = write.sequence.content.tags(write.start, write.stop)
            for tracker in self._trackers:
                slots = self._addresses.to_write(tracker, write)
                self._worker.write(tracker.spec.key, slots, run_tags[len(run_tags) - len(slots) :])
            self.tokens_written += len(run_tags)

    def _read(
        self, sequence: Sequence, start: int, stop: int, step: int, why: str, *, settled: bool = False
    ) -> None:
        if not self._has_slots(sequence, stop, step):
            return
        tags = sequence.content.tags(start, stop)
        for tracker in self._trackers:
            held = _first_held(tracker, stop) if settled else 0
            slots = self._addresses.to_read(tracker, sequence, max(start, held), stop)
            found = self._worker.matches(tracker.spec.key, slots, tags[len(tags) - len(slots) :])
            self.tokens_read += len(slots)
            if not found.all():
                wrong = np.flatnonzero(~found)
                position = stop - len(slots) + int(wrong[0])
                self._mismatch(tracker, sequence, position, int(slots[wrong[0]]), len(wrong), step, why)

    def _read_singles(self, writes: list[Write], tags: Int64Array, step: int) -> None:
        for tracker in self._trackers:
            slots = self._addresses.singles(tracker, writes)
            found = self._worker.matches(tracker.spec.key, slots, tags)
            self.tokens_read += len(slots)
            for row in np.flatnonzero(~found).tolist():
                write = writes[row]
                self._mismatch(
                    tracker, write.sequence, write.start, int(slots[row]), 1, step, "one step after its write"
                )

    def _parted(self, writes: list[Write]) -> tuple[list[Write], list[Write]]:
        """Return the writes of one token that are looked up together, and the others."""
        if not self._addresses.together:
            return [], writes
        singles = [write for write in writes if write.stop - write.start == 1]
        if len(singles) == len(writes):
            return singles, []
        return singles, [write for write in writes if write.stop - write.start > 1]

    def _may_write(self, write: Write, step: int) -> bool:
        """Return whether a write has its slots in every pool; where it has not, that is a violation."""
        if self._addresses.whole:
            return True
        return self._has_slots(write.sequence, write.stop, step) and not any(
            self._lacks(tracker, self._addresses.lack_to_write(tracker, write), step)
            for tracker in self._trackers
        )

    def _has_slots(self, sequence: Sequence, stop: int, step: int) -> bool:
        """Return whether token ``stop - 1`` has a slot in every pool; one that has not is a violation."""
        return self._addresses.whole or not any(
            self._lacks(tracker, self._addresses.lack(tracker, sequence, stop), step)
            for tracker in self._trackers
        )

    def _lacks(self, tracker: PoolTracker, lacking: str | None, step: int) -> bool:
        if lacking is not None:
            self._violate(tracker, 1, step, lacking)
        return lacking is not None

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
    """Return the tags of single-token writes, int64[len]."""
    return mix64(np.array([write.sequence.content.tag_seed(write.start) for write in writes], np.int64))


def _first_held(tracker: PoolTracker, settled_tokens: int) -> int:
    """Return the first token of a block that the window of a pool still needs."""
    window, size = tracker.spec.window_tokens, tracker.spec.block_size
    return 0 if window is None else max(0, (settled_tokens - window + 1) // size * size)
