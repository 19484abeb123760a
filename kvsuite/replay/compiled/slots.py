"""The compiled step beside real slots: its copies and writes carried out by a worker, and read back.

The same `open_step` and `close_step` make up the fast loop, so what is shown here of tables and copies holds
there. What is read: every write, with the block before it, one write later at the latest; a prefix hit; every
copy; and the whole of one running sequence a step, in turn. With ``read_all`` every live token at every step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.invariants import Violation
from kvsuite.replay.compiled.fields import C, S
from kvsuite.replay.compiled.loop import close_step, open_step
from kvsuite.replay.compiled.step import next_step
from kvsuite.replay.compiled.timing import has_room
from kvsuite.replay.content import MAX_KEPT_VIOLATIONS, ContentTally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.snapshot import Int64Array, PoolKey
    from kvsuite.replay.compiled.state import State
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import TokenContent

_KEPT_CONTENTS = 4096


class SlotSteps:
    """Takes steps of ``state`` as `loop.run` does, each of them through the slots of ``worker``."""

    def __init__(self, state: State, trace: Trace, worker: Worker, pool: PoolKey, *, read_all: bool) -> None:
        self._state = state
        self._trace = trace
        self._worker = worker
        self._pool = pool
        self._read_all = read_all
        self._size = int(state.c[C.BLOCK_SIZE])
        self._content = lru_cache(maxsize=_KEPT_CONTENTS)(trace.content)
        self._written = self._read = self._mismatches = 0
        self.violations: list[Violation] = []

    def run(self, rows: Int64Array, order: Int64Array) -> int:
        """Take steps until ``rows`` are full or all is done; see `kvsuite.replay.compiled.loop.run`."""
        s = self._state
        for taken in range(len(rows)):
            step = next_step(s, s.c[C.STEP])
            if step < 0 or not has_room(s):
                return taken
            open_step(s, step)
            self._carry_out(step)
            close_step(s, step)
            rows[taken, 0] = step
            rows[taken, 1 + order] = s.row
        return len(rows)

    def tally(self) -> ContentTally:
        """Return what was written and read so far."""
        first = self.violations[0].message if self.violations else None
        return ContentTally(self._worker.mode, self._written, self._read, self._mismatches, first)

    def _carry_out(self, step: int) -> None:
        s = self._state
        copies = [copy for copy in s.copies[: s.c[C.COPIES]].tolist() if copy[3]]
        for slot, entry, source, tokens in copies:
            self._worker.copy(self._pool, source, int(s.table[slot, entry]), tokens)
        writes = [*s.writes[: s.c[C.WRITES]].tolist(), *self._decoded()]
        for slot, start, stop, _ in writes:
            self._worker.write(
                self._pool, self._slots(slot, start, stop), self._content_of(slot).tags(start, stop)
            )
            self._written += stop - start
        running = s.running[: s.c[C.RUNNING]].tolist()
        if self._read_all:
            for slot in running:
                self._read_back(step, slot, 0, self._length(slot))
            return
        for slot, start, stop, hit in writes:
            self._read_back(step, slot, 0 if hit else max(0, start - self._size), stop)
        for slot, entry, _, tokens in copies:
            self._read_back(step, slot, entry * self._size, entry * self._size + tokens)
        if running:
            slot = running[step % len(running)]
            self._read_back(step, slot, 0, self._length(slot))

    def _read_back(self, step: int, slot: int, start: int, stop: int) -> None:
        places = self._slots(slot, start, stop)
        found = self._worker.matches(self._pool, places, self._content_of(slot).tags(start, stop))
        self._read += stop - start
        if found.all():
            return
        wrong = np.flatnonzero(~found)
        self._mismatches += len(wrong)
        if len(self.violations) < MAX_KEPT_VIOLATIONS:
            block, offset = divmod(int(places[wrong[0]]), self._size)
            name = self._trace.request_ids[int(self._state.slots[S.REQUEST, slot])]
            message = (
                f"token {start + int(wrong[0])} of {name}, block {block} offset {offset}, does not hold what "
                f"was written for it ({len(wrong)} tokens of this read are wrong)"
            )
            self.violations.append(Violation("content", step, str(self._pool), message))

    def _decoded(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield what each decoder writes; one that became a decoder in this step has written its prompt."""
        s = self._state
        for slot in s.running[: s.c[C.RUNNING]].tolist():
            if s.slots[S.DECODING, slot] and s.slots[S.BECAME, slot] < s.c[C.TICKS]:
                length = self._length(slot)
                yield slot, length - 1, length, 0

    def _length(self, slot: int) -> int:
        s = self._state
        return int(s.slots[S.LENGTH, slot] + s.slots[S.DECODING, slot] * s.c[C.TICKS])

    def _content_of(self, slot: int) -> TokenContent:
        return self._content(int(self._state.slots[S.REQUEST, slot]))

    def _slots(self, slot: int, start: int, stop: int) -> Int64Array:
        positions = np.arange(start, stop)
        blocks = self._state.table[slot, positions // self._size].astype(np.int64)
        return blocks * self._size + positions % self._size
