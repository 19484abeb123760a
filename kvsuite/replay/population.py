"""Who is there: requests arrive, fork, give way, and leave; each leaves its blocks behind once."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Protocol

from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.snapshot import PoolKind
from kvsuite.replay.batch import Ending, Sequence
from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from kvsuite.engine.guard import GuardedEngine
    from kvsuite.ledger.tracker import StepFacts
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.step_clock import StepClock
    from kvsuite.trace.model import Request, Trace


class Witness(Protocol):
    """Whoever must see a sequence while it still holds its blocks."""

    def forked(self, parent: Sequence, child: Sequence) -> None:
        """See a child that now shares its parent's blocks."""
        ...

    def leaving(self, sequence: Sequence) -> None:
        """See a running sequence just before it gives its blocks back."""
        ...


class Population:
    """The sequences of a replay. ``running`` is oldest admission first, ``waiting`` first come first."""

    def __init__(
        self,
        trace: Trace,
        engine: GuardedEngine,
        config: SchedulerConfig,
        witness: Witness,
        clock: StepClock,
    ) -> None:
        self.sequences: list[Sequence | None] = [None] * len(trace)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.ended = 0
        self._trace = trace
        self._engine = engine
        self._config = config
        self._witness = witness
        self._clock = clock
        self._cancels: list[tuple[float, int]] = []
        """Times in microseconds and request indices."""
        self._arrivals = [index for index in range(len(trace)) if trace.parent[index] < 0]
        self._next_arrival = 0
        self._tiers = engine.spec.claims(Capability.HOST_TIER)
        self._forks = engine.spec.claims(Capability.FORK)
        self._windowed = engine.spec.claims(Capability.SLIDING_WINDOW)

    def next_arrival_us(self) -> int | None:
        """Return the time of the next arrival; ``None`` when all have come."""
        if self._next_arrival == len(self._arrivals):
            return None
        return int(self._trace.arrival_us[self._arrivals[self._next_arrival]])

    def cancel_due(self, step: int, facts: StepFacts) -> None:
        """Let the clients go that are due by ``step``, by request index."""
        due = []
        while self._cancels and self._cancels[0][0] <= self._clock.now_us:
            due.append(heapq.heappop(self._cancels)[1])
        for index in sorted(due):
            sequence = self.sequences[index]
            if sequence is None or sequence.ending is not None:
                continue
            if not sequence.runs:
                self.waiting.remove(sequence)
            self.leave(sequence, Release.CANCEL, Ending.CANCELLED, step)
            facts.add("cancelled")

    def arrive_due(self, step: int, facts: StepFacts) -> None:
        """Let the requests in that arrive up to ``step``."""
        while self._next_arrival < len(self._arrivals):
            index = self._arrivals[self._next_arrival]
            if self._trace.arrival_us[index] > self._clock.now_us:
                break
            self._next_arrival += 1
            self._join(self._trace[index], step, facts)

    def plan_cancel(self, sequence: Sequence) -> None:
        """Note when the client of ``sequence`` goes away, if that is known by now: in the next step at the
        earliest, since those that go in this one have gone.
        """
        request = sequence.request
        if request.cancel_at_us is not None:
            heapq.heappush(self._cancels, (request.cancel_at_us, request.index))
        elif request.cancel_after is not None and sequence.generated >= request.cancel_after:
            heapq.heappush(self._cancels, (self._clock.now_us, request.index))

    def preempt(self, victim: Sequence, facts: StepFacts) -> None:
        """Send a running sequence back to the head of the queue."""
        self._witness.leaving(victim)
        self._engine.release(victim.request_id, Release.PREEMPT)
        self.running.remove(victim)
        victim.runs = False
        victim.preemptions += 1
        victim.written_before = max(victim.written_before, victim.computed)
        victim.target = victim.request.prompt_tokens + victim.generated
        victim.computed = 0
        self.waiting.appendleft(victim)
        facts.add("preempted")

    def reject(self, sequence: Sequence, step: int, facts: StepFacts) -> None:
        """End a request that can never run."""
        self.leave(sequence, None, Ending.REJECTED, step)
        facts.add("rejected")

    def leave(self, sequence: Sequence, reason: Release | None, ending: Ending, step: int) -> None:
        """End a sequence; what it holds goes back first. Children yet to come are orphaned."""
        if not sequence.runs and self._tiers:
            self._engine.forget(sequence.request_id)
        if sequence.runs:
            assert reason is not None
            self._witness.leaving(sequence)
            self._engine.release(sequence.request_id, reason)
            self.running.remove(sequence)
            sequence.runs = False
        sequence.ending, sequence.ended_step = ending, step
        self.ended += 1
        for index in self._trace.children.get(sequence.request.index, ()):
            if self.sequences[index] is None:
                child = Sequence(self._trace[index], sequence.content, 0)
                self.sequences[index] = child
                self.leave(child, None, Ending.ORPHANED, step)

    def fork_due(self, step: int, facts: StepFacts) -> None:
        """Make the children whose parent has come to the fork point."""
        for parent in list(self.running):
            if not parent.decodes:
                continue
            for index in self._trace.children.get(parent.request.index, ()):
                if self.sequences[index] is None:
                    request = self._trace[index]
                    if request.fork_kind is ForkKind.SPAWN:
                        self._join(request, step, facts)
                    elif parent.computed == request.fork_at:
                        self._fork(parent, request, step, facts)

    def finish_due(self, step: int, facts: StepFacts) -> None:
        """End the sequences that have all their tokens."""
        for sequence in list(self.running):
            if sequence.first_token_step is None and sequence.generated:
                sequence.first_token_step = step
            if sequence.decodes and sequence.generated >= sequence.request.output_tokens:
                self.leave(sequence, Release.FINISH, Ending.FINISHED, step)
                facts.add("finished")

    def _join(self, request: Request, step: int, facts: StepFacts) -> None:
        sequence = Sequence(request, self._trace.content(request.index), request.prompt_tokens)
        sequence.arrived_step = step
        self.sequences[request.index] = sequence
        facts.add("arrived")
        if self._never_fits(request):
            self.reject(sequence, step, facts)
            return
        self.plan_cancel(sequence)
        self.waiting.append(sequence)

    def _never_fits(self, request: Request) -> bool:
        return not self._windowed and any(
            -(-request.final_tokens // pool.block_size) > pool.usable_blocks
            for pool in self._engine.spec.pools
            if pool.key.tier == "device" and pool.kind is PoolKind.FULL
        )

    def _fork(self, parent: Sequence, request: Request, step: int, facts: StepFacts) -> None:
        assert request.fork_at is not None
        child = Sequence(request, self._trace.content(request.index), request.fork_at)
        child.generated = request.fork_at - request.prompt_tokens
        child.arrived_step = step
        self.sequences[request.index] = child
        if self._never_fits(request):
            self.reject(child, step, facts)
            return
        if not self._forks:
            self.plan_cancel(child)
            self.waiting.append(child)
            return
        seat = len(self.running) < self._config.max_sequences
        if not seat or not self._engine.fork(parent.request_id, child.request_id):
            self.leave(child, None, Ending.FORK_DENIED, step)
            facts.add("fork_denied")
            return
        child.runs, child.computed, child.admitted_step = True, parent.computed, step
        self.running.append(child)
        self._witness.forked(parent, child)
        facts.add("forked")
        self.plan_cancel(child)
