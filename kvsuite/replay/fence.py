"""Steps that are launched and not yet done, and what each of them still reads and writes (I7).

    launch n     the slots of every live sequence, and the tokens due in them, are remembered
    launch n+1   a block that step n uses and that is free by now is a violation of *fence*
    settle n     the slots of step n are read once more: whoever else wrote there broke *content*

A step is done when it is settled, in the order of launches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import EngineError
from kvsuite.ledger.invariants import Violation
from kvsuite.replay.addresses import slot_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.tracker import PoolTracker
    from kvsuite.replay.batch import Sequence, Write
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class _Use:
    """Slots of one sequence that a step reads or writes, with the tags due in them, both int64[n]."""

    tracker: PoolTracker
    request_id: RequestId
    slots: Int64Array
    tags: Int64Array

    @property
    def blocks(self) -> Int64Array:
        return np.unique(self.slots // self.tracker.spec.block_size)


@dataclass(frozen=True, slots=True)
class Flight:
    """One launched step: what it writes, and everything it touches."""

    step: int
    writes: list[Write]
    uses: list[_Use]


class Fence:
    """Keeps the read and write sets of launched steps until they are done."""

    def __init__(self, worker: Worker, trackers: tuple[PoolTracker, ...]) -> None:
        self._worker = worker
        self._trackers = tuple(
            t for t in trackers if t.spec.key.tier == "device" and t.spec.kind is not PoolKind.STATE
        )
        self._flights: deque[Flight] = deque()

    def launch(self, step: int, writes: list[Write], live: Iterable[tuple[Sequence, int]]) -> None:
        """Remember a step; ``live`` is every sequence with the tokens written for it so far."""
        uses = [
            _Use(tracker, sequence.request_id, slots, tags[len(tags) - len(slots) :])
            for sequence, written in live
            for tracker in self._trackers
            if written <= len(tracker.blocks_of(sequence.request_id)) * tracker.spec.block_size
            for slots, tags in [
                (
                    slot_range(tracker, sequence.request_id, 0, written),
                    sequence.content.tags(0, written),
                )
            ]
        ]
        self._flights.append(Flight(step, writes, uses))

    def look(self, step: int) -> Iterator[Violation]:
        """Yield blocks that a launched step uses and that the newest snapshot lists as free."""
        for flight in self._flights:
            for use in flight.uses:
                free = use.tracker.states.free_among(use.blocks)
                if len(free):
                    yield Violation(
                        "fence",
                        step,
                        str(use.tracker.spec.key),
                        f"block {int(free[0])} of {use.request_id} is free while step {flight.step} uses it "
                        f"({len(free)} blocks are); expected it in quarantine until that step is done",
                    )

    def settle(self) -> tuple[Flight, list[Violation]]:
        """Return the oldest step in flight, and the slots of it that others wrote to meanwhile.

        **Raises:** `EngineError` when no step is in flight.
        """
        if not self._flights:
            raise EngineError("no step is in flight: launch one before it is settled")
        flight = self._flights.popleft()
        return flight, [violation for use in flight.uses for violation in self._overwritten(use, flight.step)]

    def _overwritten(self, use: _Use, step: int) -> Iterator[Violation]:
        spec = use.tracker.spec
        wrong = np.flatnonzero(~self._worker.matches(spec.key, use.slots, use.tags))
        if len(wrong):
            block, offset = divmod(int(use.slots[wrong[0]]), spec.block_size)
            yield Violation(
                "content",
                step,
                str(spec.key),
                f"block {block} offset {offset} of {use.request_id} was overwritten while step {step} "
                f"uses it ({len(wrong)} tokens are wrong)",
            )
