"""The ledger's side of a replay: rows, content and fork families from the parts of `replay.frame`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.ledger.claims import claim_line
from kvsuite.ledger.families import FamilyBook, ForkFamily, copies_seen
from kvsuite.ledger.invariants import NotJudged, Violation, judge
from kvsuite.ledger.timeline import Timeline
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.content import ContentCheck, ContentTally
from kvsuite.replay.frame import Broken, Check, Closing, Forked, Frame, Opening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.engine.contract import BlockCopy, EngineSpec, Ops, RefusalReason, Transfer
    from kvsuite.engine.snapshot import Int64Array, PoolSnapshot
    from kvsuite.ledger.timeline import DeviceLine
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.frame import Event, Leaving, Outcome, Part, Since
    from kvsuite.replay.step_clock import ClockLog
    from kvsuite.replay.worker import Worker

PROGRESS_INTERVAL_STEPS = 64


@dataclass(frozen=True)
class Replay:
    """Everything one replay came to; laws are judged already, nothing is raised."""

    spec: EngineSpec
    scheduler: SchedulerConfig
    timeline: Timeline
    outcomes: tuple[Outcome, ...]
    content: ContentTally
    violations: tuple[Violation, ...]
    not_judged: tuple[NotJudged, ...]
    final_lengths: Int64Array
    """Tokens each sequence held when it finished or was cancelled, in order of ending."""
    fork_families: tuple[ForkFamily, ...]
    refusals: Mapping[RefusalReason, int]
    """Refused admissions by reason."""
    clock: ClockLog | None
    """Where steps lasted as long as what they did."""


class Recorder:
    """Takes in the parts of one replay in order; `result` needs them all, `found` any of them.

    ``progress`` is called with the number of requests that have ended.
    """

    def __init__(
        self,
        spec: EngineSpec,
        worker: Worker,
        *,
        read_all: bool,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._spec = spec
        self._worker = worker
        self._trackers = tuple(PoolTracker(pool) for pool in spec.pools)
        self._content = ContentCheck(spec, worker, self._trackers, read_all=read_all)
        self._families = FamilyBook(self._trackers[0])
        self._copies_itself = spec.claims(Capability.COPIES_ITSELF)
        self._progress = progress
        self._step = 0
        self._steps: list[int] = []
        self._device: list[DeviceLine] = []
        self._final_lengths: list[int] = []
        self._violations: list[Violation] = []
        self._transfers: tuple[Transfer, ...] = ()
        self._closing: Closing | None = None

    def take(self, part: Part) -> None:
        """Take in one part.

        **Raises:** `EngineError` for a snapshot that has not the form of the contract.
        """
        match part:
            case Frame():
                self._take_frame(part)
            case Check():
                self._take_check(part)
            case Opening():
                self._take_snapshots(part.snapshots, StepFacts())
            case Closing():
                self._take_closing(part)
            case Broken():
                self._take_since(part.since)

    def take_event(self, event: Event) -> None:
        """Take in a fork, or a sequence that is about to give its blocks back."""
        if isinstance(event, Forked):
            child = event.child
            for tracker in self._trackers:
                tracker.fork(event.parent_id, child.request_id)
            self._content.forked(child, event.tokens)
            self._families.forked(event.parent_id, child.request_id)
            return
        leaving: Leaving = event
        self._content.before_release(leaving.sequence, leaving.step)
        self._families.leaving(leaving.sequence.request_id)
        if leaving.final_tokens is not None:
            self._final_lengths.append(leaving.final_tokens)

    def found(self) -> list[Violation]:
        """Return what was seen step by step so far, in the order of steps."""
        found = [violation for tracker in self._trackers for violation in tracker.violations]
        found += [*self._violations, *self._content.violations]
        return sorted(found, key=lambda violation: violation.step or 0)

    @property
    def ended(self) -> int:
        """Requests that had ended when everything was over."""
        return 0 if self._closing is None else self._closing.since.ended

    def result(self, scheduler: SchedulerConfig) -> Replay:
        """Return what the replay came to; `Closing` was taken in."""
        assert self._closing is not None
        timeline = Timeline(
            np.array(self._steps, np.int64),
            tuple(tracker.timeline() for tracker in self._trackers),
            tuple(self._device),
        )
        found = (*self.found(), *judge(timeline))
        return Replay(
            spec=self._spec,
            scheduler=scheduler,
            timeline=timeline,
            outcomes=self._closing.outcomes,
            content=self._content.tally(),
            violations=tuple(sorted(found, key=lambda v: (v.step or 0, v.invariant))),
            not_judged=tuple(
                NotJudged("recount", str(tracker.spec.key), "ref_counts")
                for tracker in self._trackers
                if not tracker.claims_ref_counts
            ),
            final_lengths=np.array(self._final_lengths, np.int64),
            fork_families=self._families.result(),
            refusals=self._closing.refusals,
            clock=self._closing.clock,
        )

    def _take_frame(self, frame: Frame) -> None:
        self._take_since(frame.since)
        step = self._step = frame.step
        ops, facts = frame.ops, frame.facts
        self._take_snapshots(frame.snapshots, facts)
        settled = {request_id: self._content.settled(request_id) for request_id in frame.request_ids}
        copies = self._copies(ops)
        for tracker, snapshot in zip(self._trackers, frame.snapshots, strict=True):
            tracker.agree(frame.request_ids, frame.lengths, step)
            tracker.window_law(settled, facts.hit_tokens, step)
            facts.counts["copied"] = sum(c.num_tokens for c in copies if c.pool == tracker.spec.key)
            tracker.add_row(snapshot, facts)
        self._families.observe(copies)
        self._steps.append(step)
        self._content.step(step, ops, frame.writes, copies, frame.indices)
        if frame.memory_due:
            for tracker in self._trackers:
                self._worker.blocks_in_use(tracker.spec.key, tracker.valuable_blocks())
            self._device += self._worker.memory(step)
        self._transfers = ops.transfers

    def _copies(self, ops: Ops) -> tuple[BlockCopy, ...]:
        """Return the copies that were asked for and, of an engine that copies by itself, those seen."""
        if not self._copies_itself:
            return ops.copies
        seen = (copies_seen(tracker, self._content.settled) for tracker in self._trackers)
        return (*ops.copies, *chain.from_iterable(seen))

    def _take_check(self, check: Check) -> None:
        if check.full is not None:
            for tracker, snapshot in zip(self._trackers, check.full, strict=True):
                tracker.compare_full(snapshot, self._step)
        if check.claim is not None:
            self._device.append(claim_line(check.claim, self._step))

    def _take_closing(self, closing: Closing) -> None:
        self._take_since(closing.since)
        self._take_snapshots(closing.snapshots, StepFacts())
        for tracker in self._trackers:
            tables = tracker.holdings.tables
            whole = tracker.states.resting_blocks()
            if tables or whole != tracker.spec.num_blocks:
                message = (
                    f"all requests have ended and {whole} of {tracker.spec.num_blocks} blocks are free, "
                    f"cached or never allocatable; live sequences: {', '.join(tables) or 'none'}"
                )
                tracker.violations.append(Violation("drain", self._step, str(tracker.spec.key), message))
        self._closing = closing

    def _take_snapshots(self, snapshots: tuple[PoolSnapshot, ...], facts: StepFacts) -> None:
        for tracker, snapshot in zip(self._trackers, snapshots, strict=True):
            tracker.take(snapshot, facts, self._step)

    def _take_since(self, since: Since) -> None:
        """Take in the end of a step, whose transfers are over by now, and the beginning of the next."""
        self._violations += since.violations
        for transfer in self._transfers:
            self._worker.transfer(transfer)
        self._transfers = ()
        for event in since.events:
            self.take_event(event)
        if since.after is not None:
            for tracker in self._trackers:
                tracker.add_to_last_row(since.after)
            if self._progress is not None and len(self._steps) % PROGRESS_INTERVAL_STEPS == 0:
                self._progress(since.ended)
