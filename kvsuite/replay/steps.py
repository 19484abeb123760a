"""The engine's side of a replay: scheduler and engine take a trace through, one `Frame` a step.

It looks at nothing that it hands over, so it can run beside the engine in another interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability
from kvsuite.engine.guard import GuardedEngine
from kvsuite.errors import EngineError
from kvsuite.replay.addresses import Indices, slots_to_read, slots_to_write
from kvsuite.replay.frame import Broken, Check, Closing, Forked, Frame, Leaving, Opening, Outcome, Since
from kvsuite.replay.scheduler import Scheduler
from kvsuite.replay.step_clock import CostClock
from kvsuite.replay.step_meter import StepMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from kvsuite.engine.contract import Engine, EngineSpec
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.replay.addresses import Given
    from kvsuite.replay.batch import SchedulerConfig, Sequence, StepPlan
    from kvsuite.replay.frame import Event, Part
    from kvsuite.trace.model import Trace

FULL_SNAPSHOT_INTERVAL_STEPS = 256
MEMORY_INTERVAL_STEPS = 64


class Stepper:
    """Takes ``trace`` through ``engine``; `parts` may be walked once.

    **Raises:** `EngineError` when the engine breaks the contract in a way that leaves nothing to judge.
    """

    def __init__(self, trace: Trace, engine: Engine, config: SchedulerConfig, *, read_all: bool) -> None:
        self._trace = trace
        self.engine = GuardedEngine(engine)
        """The engine, every answer of which has the form of the contract."""
        self.witness: Callable[[Event], None] | None = None
        """Sees each event as it happens; without one they stand in the next part."""
        self._read_all = read_all
        self._scheduler = Scheduler(trace, self.engine, config, self)
        clock = self._clock = self._scheduler.clock
        self._meter = StepMeter(self.spec, clock) if isinstance(clock, CostClock) else None
        self._since = Since()
        self._step = 0
        self._revision: int | None = None
        self._num_steps = 0
        self._calm = True
        self._violations_told = 0
        self._claims_memory = self.spec.claims(Capability.MEMORY)
        self._tiers = self.spec.claims(Capability.HOST_TIER)
        self._indexed = self.spec.claims(Capability.SLOTS)

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims, as it said when the replay began."""
        return self.engine.spec

    def parts(self) -> Generator[Part]:
        """Yield what happens, in order; each part is to be consumed before the next is asked for.

        Where the engine fails, `Broken` comes first with what happened until then, and then the error.
        """
        try:
            yield from self._parts()
        except EngineError:
            yield Broken(self._take_since())
            raise

    def forked(self, parent: Sequence, child: Sequence) -> None:
        """See a child that now shares its parent's blocks."""
        if self._meter is not None:
            self._meter.forked(parent.request_id, child.request_id)
        self._tell(Forked(parent.request_id, child, child.computed))

    def leaving(self, sequence: Sequence) -> None:
        """See a running sequence just before it gives its blocks back."""
        done = sequence.decodes and sequence.generated >= sequence.request.output_tokens
        self._tell(Leaving(self._step, sequence, sequence.computed if done else None))

    def _tell(self, event: Event) -> None:
        if self.witness is None:
            self._since.events.append(event)
        else:
            self.witness(event)

    def _parts(self) -> Iterator[Part]:
        opening = self.engine.snapshot()
        self._revision = opening[0].revision
        if self._meter is not None:
            self._meter.opened(opening)
        yield Opening(opening)
        step = self._scheduler.next_step(0)
        while step is not None:
            self._step = self.engine.step = step
            yield from self._one_step(step)
            step = self._scheduler.next_step(step + 1)
        snapshots = self.engine.snapshot()
        yield Closing(
            self._take_since(),
            snapshots,
            self._outcomes(),
            dict(self._scheduler.refusals),
            None if self._meter is None else self._meter.log(),
        )
        self.engine.check_spec_is_constant()

    def _one_step(self, step: int) -> Iterator[Part]:
        engine = self.engine
        self._clock.begin(step)
        if self._tiers:
            engine.tick(int(self._clock.now_us))
        plan = self._scheduler.begin(step)
        ops = engine.take_ops()
        to_write = slots_to_write(engine, plan.writes) if self._indexed else {}
        engine.launched(step)
        snapshots = engine.snapshot(None if self._read_all else self._revision)
        self._revision = snapshots[0].revision
        if self._meter is not None:
            self._meter.measure(plan, snapshots)
        # Asked before the frame goes out: whoever takes it may add to its facts.
        full_due = self._full_due(plan) and not self._read_all and not snapshots[0].is_full
        self._num_steps += 1
        memory_due = self._read_all or self._num_steps % MEMORY_INTERVAL_STEPS == 1
        running = self._scheduler.population.running
        yield Frame(
            since=self._take_since(),
            step=step,
            facts=plan.facts,
            ops=ops,
            snapshots=snapshots,
            request_ids=[sequence.request_id for sequence in running],
            lengths=[sequence.computed for sequence in running],
            writes=plan.writes,
            memory_due=memory_due,
            indices=Indices(to_write, self._to_read(snapshots)) if self._indexed else None,
        )
        claim_due = memory_due and self._claims_memory
        if full_due or claim_due:
            yield self._check(full_due=full_due, claim_due=claim_due)
        engine.done(step, {write.sequence.request_id: write.stop for write in plan.writes})
        for transfer in ops.transfers:  # they all end with the step that they begin in
            engine.transfer_done(transfer.ref, ok=True)
        self._since.after = self._scheduler.end(step)
        if self._meter is not None:
            self._meter.end()
        self._since.ended = self._scheduler.population.ended

    def _to_read(self, snapshots: tuple[PoolSnapshot, ...]) -> Given:
        device = [set(shot.request_ids) for shot in snapshots if shot.key.tier == "device"]
        running = self._scheduler.population.running
        return slots_to_read(self.engine, running, set.intersection(*device))

    def _check(self, *, full_due: bool, claim_due: bool) -> Check:
        full = None
        if full_due:
            full = self.engine.snapshot()
            self._revision = full[0].revision
            if self._meter is not None:
                self._meter.checked(full)
        return Check(full, self.engine.memory() if claim_due else None)

    def _full_due(self, plan: StepPlan) -> bool:
        """Full snapshots at intervals, on preemption, and when refusals begin."""
        begins = plan.pressed and self._calm
        self._calm = not plan.pressed
        preempted = "preempted" in plan.facts.counts
        return begins or preempted or self._num_steps % FULL_SNAPSHOT_INTERVAL_STEPS == 0

    def _take_since(self) -> Since:
        since = self._since
        violations = self._scheduler.violations
        since.violations = tuple(violations[self._violations_told :])
        self._violations_told = len(violations)
        self._since = Since(ended=since.ended)
        return since

    def _outcomes(self) -> tuple[Outcome, ...]:
        return tuple(self._outcome(index) for index in range(len(self._trace)))

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
