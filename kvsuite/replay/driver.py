"""The driver: a trace through an engine, a ledger row a step, every token written and read back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.engine.guard import GuardedEngine
from kvsuite.errors import EngineError
from kvsuite.ledger.claims import claim_line
from kvsuite.ledger.families import FamilyBook, ForkFamily, copies_seen
from kvsuite.ledger.invariants import NotJudged, Violation, judge
from kvsuite.ledger.timeline import Timeline
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.content import ContentCheck, ContentTally
from kvsuite.replay.scheduler import Scheduler
from kvsuite.replay.storage import worker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.engine.contract import BlockCopy, Engine, EngineSpec, Ops, RefusalReason
    from kvsuite.engine.snapshot import Int64Array, PoolSnapshot
    from kvsuite.ledger.timeline import DeviceLine
    from kvsuite.replay.batch import Sequence, StepPlan
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace

FULL_SNAPSHOT_INTERVAL_STEPS = 256
MEMORY_INTERVAL_STEPS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request fared; steps are absent where it never came so far."""

    index: int
    ending: Ending | None
    arrived_step: int | None
    admitted_step: int | None
    first_token_step: int | None
    ended_step: int | None
    generated_tokens: int
    final_tokens: int
    hit_tokens: int
    preemptions: int


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


def replay(
    trace: Trace,
    engine: Engine,
    worker: Worker | None = None,
    scheduler: SchedulerConfig | None = None,
    *,
    read_all: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Take ``trace`` through ``engine``.

    Without a ``worker`` the probe stands in: one int64 a token. An engine that copies by itself is written
    and read in its own tensors, whatever ``worker`` is given. ``read_all`` is for short cases: full snapshots
    and every live token read at every step. ``progress`` is called with requests ended and in all.

    **Raises:** `EngineError` when the engine breaks the contract in a way that leaves nothing to judge.
    """
    driver = _Driver(trace, engine, worker, scheduler or SchedulerConfig(), read_all=read_all)
    return driver.run(progress)


class _Driver:
    def __init__(
        self, trace: Trace, engine: Engine, worker: Worker | None, config: SchedulerConfig, *, read_all: bool
    ) -> None:
        self._trace = trace
        self._engine = GuardedEngine(engine)
        self._config = config
        self._read_all = read_all
        pools = self._engine.spec.pools
        self._worker = worker_of(self._engine, worker)
        self._trackers = tuple(PoolTracker(spec) for spec in pools)
        self._content = ContentCheck(self._engine, self._worker, self._trackers, read_all=read_all)
        self._scheduler = Scheduler(trace, self._engine, config, self)
        self._families = FamilyBook(self._trackers[0])
        self._steps: list[int] = []
        self._device: list[DeviceLine] = []
        self._final_lengths: list[int] = []
        self._step = 0
        self._calm = True
        self._claims_memory = self._engine.spec.claims(Capability.MEMORY)
        self._tiers = self._engine.spec.claims(Capability.HOST_TIER)
        self._copies_itself = self._engine.spec.claims(Capability.COPIES_ITSELF)

    def run(self, progress: Callable[[int, int], None] | None) -> Replay:
        try:
            self._all_steps(progress)
        except EngineError as error:
            found = self._found()
            if not found:
                raise
            raise EngineError(f"{error}\nbroken before that: {found[0]}") from error
        return self._result()

    def _all_steps(self, progress: Callable[[int, int], None] | None) -> None:
        self._take(self._engine.snapshot(), StepFacts())
        step = self._scheduler.next_step(0)
        while step is not None:
            self._step = self._engine.step = step
            self._one_step()
            if progress is not None and len(self._steps) % 64 == 0:
                progress(self._scheduler.population.ended, len(self._trace))
            step = self._scheduler.next_step(step + 1)
        self._drain()
        self._engine.check_spec_is_constant()
        if progress is not None:
            progress(self._scheduler.population.ended, len(self._trace))

    def _one_step(self) -> None:
        step = self._step
        if self._tiers:
            self._engine.tick(step * self._config.step_us)
        plan = self._scheduler.begin(step)
        ops = self._engine.take_ops()
        self._content.given(plan.writes)
        self._engine.launched(step)
        copied = self._observe(plan, ops)
        self._content.step(step, ops, plan.writes, copied)
        self._memory()
        self._engine.done(step, {w.sequence.request_id: w.stop for w in plan.writes})
        self._end_transfers(ops)
        after = self._scheduler.end(step)
        for tracker in self._trackers:
            tracker.add_to_last_row(after)

    def _observe(self, plan: StepPlan, ops: Ops) -> tuple[BlockCopy, ...]:
        """Take the rows of this step, and return the copies that were asked for or, else, seen."""
        whole = self._read_all or self._due_full(plan)
        since = None if self._read_all else self._trackers[0].revision
        snapshots = self._engine.snapshot(since)
        self._take(snapshots, plan.facts)
        running = self._scheduler.population.running
        ids, lengths = [s.request_id for s in running], [s.computed for s in running]
        settled = {request_id: self._content.settled(request_id) for request_id in ids}
        copies = ops.copies
        if self._copies_itself:
            seen = (copies_seen(tracker, self._content.settled) for tracker in self._trackers)
            copies += tuple(chain.from_iterable(seen))
        for tracker, snapshot in zip(self._trackers, snapshots, strict=True):
            tracker.agree(ids, lengths, self._step)
            tracker.window_law(settled, plan.facts.hit_tokens, self._step)
            plan.facts.counts["copied"] = sum(c.num_tokens for c in copies if c.pool == tracker.spec.key)
            tracker.add_row(snapshot, plan.facts)
        self._families.observe(copies)
        self._steps.append(self._step)
        if whole and not snapshots[0].is_full:
            for tracker, snapshot in zip(self._trackers, self._engine.snapshot(), strict=True):
                tracker.compare_full(snapshot, self._step)
        return copies

    def _due_full(self, plan: StepPlan) -> bool:
        """Full snapshots at intervals, on preemption, and when refusals begin."""
        begins = plan.pressed and self._calm
        self._calm = not plan.pressed
        preempted = "preempted" in plan.facts.counts
        return begins or preempted or len(self._steps) % FULL_SNAPSHOT_INTERVAL_STEPS == 0

    def _take(self, snapshots: tuple[PoolSnapshot, ...], facts: StepFacts) -> None:
        for tracker, snapshot in zip(self._trackers, snapshots, strict=True):
            tracker.take(snapshot, facts, self._step)

    def forked(self, parent: Sequence, child: Sequence) -> None:
        for tracker in self._trackers:
            tracker.fork(parent.request_id, child.request_id)
        self._content.forked(child)
        self._families.forked(parent.request_id, child.request_id)

    def leaving(self, sequence: Sequence) -> None:
        self._content.before_release(sequence, self._step)
        self._families.leaving(sequence.request_id)
        done = sequence.decodes and sequence.generated >= sequence.request.output_tokens
        if done:
            self._final_lengths.append(sequence.computed)

    def _end_transfers(self, ops: Ops) -> None:
        """Move the bytes of every transfer, which all end with the step that they begin in."""
        for transfer in ops.transfers:
            self._worker.transfer(transfer)
            self._engine.transfer_done(transfer.ref, ok=True)

    def _memory(self) -> None:
        if self._read_all or len(self._steps) % MEMORY_INTERVAL_STEPS == 1:
            for tracker in self._trackers:
                self._worker.blocks_in_use(tracker.spec.key, tracker.valuable_blocks())
            self._device += self._worker.memory(self._step)
            if self._claims_memory:
                self._device.append(claim_line(self._engine.memory(), self._step))

    def _drain(self) -> None:
        self._take(self._engine.snapshot(), StepFacts())
        for tracker in self._trackers:
            tables = tracker.holdings.tables
            whole = tracker.states.resting_blocks()
            if tables or whole != tracker.spec.num_blocks:
                message = (
                    f"all requests have ended and {whole} of {tracker.spec.num_blocks} blocks are free, "
                    f"cached or never allocatable; live sequences: {', '.join(tables) or 'none'}"
                )
                tracker.violations.append(Violation("drain", self._step, str(tracker.spec.key), message))

    def _result(self) -> Replay:
        timeline = Timeline(
            np.array(self._steps, np.int64),
            tuple(tracker.timeline() for tracker in self._trackers),
            tuple(self._device),
        )
        found = (*self._found(), *judge(timeline))
        return Replay(
            spec=self._engine.spec,
            scheduler=self._config,
            timeline=timeline,
            outcomes=tuple(self._outcome(index) for index in range(len(self._trace))),
            content=self._content.tally(),
            violations=tuple(sorted(found, key=lambda v: (v.step or 0, v.invariant))),
            not_judged=tuple(
                NotJudged("recount", str(tracker.spec.key), "ref_counts")
                for tracker in self._trackers
                if not tracker.claims_ref_counts
            ),
            final_lengths=np.array(self._final_lengths, np.int64),
            fork_families=self._families.result(),
            refusals=dict(self._scheduler.refusals),
        )

    def _found(self) -> list[Violation]:
        """Return what was seen step by step so far, in the order of steps."""
        found = [violation for tracker in self._trackers for violation in tracker.violations]
        found += [*self._scheduler.violations, *self._content.violations]
        return sorted(found, key=lambda violation: violation.step or 0)

    def _outcome(self, index: int) -> Outcome:
        request = self._trace[index]
        sequence = self._scheduler.population.sequences[index]
        if sequence is None:
            return Outcome(index, None, None, None, None, None, 0, request.final_tokens, 0, 0)
        return Outcome(
            index=index,
            ending=sequence.ending,
            arrived_step=sequence.arrived_step,
            admitted_step=sequence.admitted_step,
            first_token_step=sequence.first_token_step,
            ended_step=sequence.ended_step,
            generated_tokens=sequence.generated,
            final_tokens=request.final_tokens,
            hit_tokens=sequence.hit_tokens,
            preemptions=sequence.preemptions,
        )
