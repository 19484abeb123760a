"""What a step does, as it is charged for: counted from snapshots and writes, beside the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.step_clock import ClockLog
from kvsuite.replay.step_costs import FEATURES
from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.replay.batch import StepPlan, Write
    from kvsuite.replay.step_clock import CostClock
    from kvsuite.trace.model import Request, RequestId


class StepMeter:
    """Takes in the steps of one replay in order, and ends each on ``clock``.

    Tables and blocks are those of all pools on the device, as the ledger counts them: from two snapshots.
    """

    def __init__(self, spec: EngineSpec, clock: CostClock) -> None:
        self._clock = clock
        self._trackers = [
            (place, PoolTracker(pool)) for place, pool in enumerate(spec.pools) if pool.key.tier == "device"
        ]
        self._features: list[list[int]] = []
        self._running: list[int] = []
        self._ends_us: list[float] = []
        self._spans: dict[int, list[list[int]]] = {}
        self._written: dict[int, int] = {}
        """Tokens of a request that were written, from the first of its own answer on."""

    def opened(self, snapshots: tuple[PoolSnapshot, ...]) -> None:
        """Take in the pools before the first step."""
        self._take(snapshots, StepFacts(), 0)

    def forked(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Learn that a child shares its parent's blocks."""
        for _, tracker in self._trackers:
            tracker.fork(parent_id, child_id)

    def measure(self, plan: StepPlan, snapshots: tuple[PoolSnapshot, ...]) -> None:
        """Count what a step does in its forward pass."""
        self._take(snapshots, plan.facts, plan.step)
        decoded, chunks = plan.writes[: plan.num_decodes], plan.writes[plan.num_decodes :]
        self._features.append(
            [
                1,
                len(decoded),
                sum(write.stop for write in decoded),
                sum(write.stop - write.start for write in chunks),
                sum(_pairs(write) for write in chunks),
                sum(tracker.holdings.table_entries for _, tracker in self._trackers),
                sum(t.changes.allocated + t.changes.freed for _, t in self._trackers),
            ]
        )
        self._running.append(len(snapshots[0].request_ids))
        for write in plan.writes:
            self._note_tokens(write, plan.step)

    def checked(self, full: tuple[PoolSnapshot, ...]) -> None:
        """Take in full snapshots of the moment of the last ones: changes are given since these."""
        for place, tracker in self._trackers:
            tracker.revision = full[place].revision

    def end(self) -> None:
        """End the step that was measured last."""
        self._clock.end(self._features[-1])
        self._ends_us.append(self._clock.now_us)

    def log(self) -> ClockLog:
        """Return what was measured so far."""
        spans = [(index, *span) for index in sorted(self._spans) for span in self._spans[index]]
        return ClockLog(
            step_end_us=np.array(self._ends_us, np.float64),
            features=np.array(self._features, np.int64).reshape(-1, len(FEATURES)),
            running=np.array(self._running, np.int64),
            token_spans=np.array(spans, np.int64).reshape(-1, 3),
        )

    def _take(self, snapshots: tuple[PoolSnapshot, ...], facts: StepFacts, step: int) -> None:
        for place, tracker in self._trackers:
            tracker.take(snapshots[place], facts, step)

    def _note_tokens(self, write: Write, step: int) -> None:
        request = write.sequence.request
        written = self._written.get(request.index, _own_from(request))
        for _ in range(written, write.stop):
            spans = self._spans.setdefault(request.index, [])
            if spans and spans[-1][1] == step - 1:
                spans[-1][1] = step
            else:
                spans.append([step, step])
        self._written[request.index] = max(written, write.stop)


def _pairs(write: Write) -> int:
    return (write.stop * (write.stop + 1) - write.start * (write.start + 1)) // 2


def _own_from(request: Request) -> int:
    """Return the position of the first answer token that a request writes for itself."""
    if request.fork_at is None or request.fork_kind is ForkKind.SPAWN:
        return request.prompt_tokens
    return max(request.prompt_tokens, request.fork_at)
