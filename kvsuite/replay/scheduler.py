"""Continuous batching over an engine: who gets tokens, who waits, who gives way.

One step, in this order:

1. cancellations that are due, by request index;
2. arrivals up to the time at which the step begins; what can never fit is refused for good;
3. decode: one token for every running sequence whose prompt is computed, oldest first. A refused
   extension preempts the youngest running sequence and asks again; the youngest may be the sequence itself,
   and gives up its drafts before it gives way. An engine that does not claim preemption has to let finish
   whom it admits: there the refused sequence ends, as a violation;
4. the next chunks of prompts under way, oldest first, from what is left of the token budget;
5. admission, first come first served with head-of-line blocking, unless something was preempted;
6. the forward pass (the driver's), then forks and ends, oldest first.

A preempted sequence goes to the head of the queue and computes prompt and answer again.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, Refusal, RefusalReason, Release
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import Violation
from kvsuite.ledger.tracker import StepFacts
from kvsuite.replay.batch import SEMANTICS_VERSION, Ending, SchedulerConfig, StepPlan, Write
from kvsuite.replay.population import Population
from kvsuite.replay.step_clock import clock_of
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.guard import GuardedEngine
    from kvsuite.replay.batch import Sequence
    from kvsuite.replay.population import Witness
    from kvsuite.trace.model import RequestId, Trace

    Extend = Callable[[RequestId, TokenRun], bool]

__all__ = ["SEMANTICS_VERSION", "Ending", "Scheduler", "SchedulerConfig"]

LOADING_STEPS = 16
"""Steps that a request may wait for its blocks with nothing running: transfers end with their step."""


class Scheduler:
    """Takes a trace through an engine; the driver calls `begin` and `end` around each forward pass."""

    def __init__(
        self, trace: Trace, engine: GuardedEngine, config: SchedulerConfig, witness: Witness
    ) -> None:
        self.clock = clock_of(config)
        self.population = Population(trace, engine, config, witness, self.clock)
        self.violations: list[Violation] = []
        self.refusals: Counter[RefusalReason] = Counter()
        self._engine = engine
        self._config = config
        self._chunks = engine.spec.claims(Capability.CHUNKED_PREFILL)
        self._preempts = engine.spec.claims(Capability.PREEMPTION)
        self._lookahead_tokens = config.lookahead_tokens if engine.spec.claims(Capability.LOOKAHEAD) else 0
        self._decode_extend: Extend = engine.extend
        if self._lookahead_tokens:
            self._decode_extend = partial(engine.extend, lookahead_tokens=self._lookahead_tokens)
        self._facts = StepFacts()
        self._pressed = False

    def next_step(self, step: int) -> int | None:
        """Return the next step with work to do, from ``step`` on; ``None`` when all is done."""
        if self.population.running or self.population.waiting:
            return step
        arrival_us = self.population.next_arrival_us()
        return None if arrival_us is None else self.clock.next_step(step, arrival_us)

    def begin(self, step: int) -> StepPlan:
        """Schedule one step and take slots for it."""
        self._facts = StepFacts()
        self._pressed = False
        self.population.cancel_due(step, self._facts)
        self.population.arrive_due(step, self._facts)
        writes: list[Write] = []
        self._decode(writes, step)
        scheduled = len(writes)
        budget = self._prefill(writes, self._config.max_step_tokens - len(writes), step)
        if not self._pressed:
            self._admit(writes, budget, step)
        # Whoever gave way after it was scheduled writes nothing.
        lapsed = [not write.sequence.runs or write.stop > write.sequence.computed for write in writes]
        writes = [write for write, gone in zip(writes, lapsed, strict=True) if not gone]
        self._facts.counts["waiting"] = len(self.population.waiting)
        self._facts.counts["written"] = sum(write.stop - write.start for write in writes)
        return StepPlan(step, writes, scheduled - sum(lapsed[:scheduled]), self._facts, self._pressed)

    def end(self, step: int) -> StepFacts:
        """Fork and end what is due after the forward pass; return what to add to the step's row."""
        facts = StepFacts()
        self.population.fork_due(step, facts)
        self.population.finish_due(step, facts)
        return facts

    def _decode(self, writes: list[Write], step: int) -> None:
        extend = self._decode_extend
        for sequence in list(self.population.running):
            if not sequence.runs or sequence.computed < sequence.target:
                continue
            at = sequence.computed
            run = TokenRun(sequence.content, at, at + 1)
            if extend(sequence.request_id, run) or self._make_room(sequence, run, step, extend):
                sequence.computed = sequence.target = at + 1
                sequence.generated += 1
                writes.append(Write(sequence, at, at + 1))
                if sequence.generated == sequence.request.cancel_after:
                    self.population.plan_cancel(sequence)

    def _prefill(self, writes: list[Write], budget: int, step: int) -> int:
        for sequence in list(self.population.running):
            if budget <= 0:
                break
            if not sequence.runs or sequence.decodes:
                continue
            start = sequence.computed
            stop = min(sequence.target, start + budget)
            run = TokenRun(sequence.content, start, stop)
            extend = self._engine.extend
            if extend(sequence.request_id, run) or self._make_room(sequence, run, step, extend):
                sequence.computed = stop
                writes.append(Write(sequence, start, stop))
                budget -= stop - start
        return budget

    def _make_room(self, sequence: Sequence, run: TokenRun, step: int, extend: Extend) -> bool:
        """Preempt the youngest until ``run`` finds room; False when ``sequence`` gave way itself."""
        self._pressed = True
        self._facts.add("refused_growths")
        drafts = self._lookahead_tokens > 0 and extend is self._decode_extend
        if not self._preempts:
            if drafts and self._engine.extend(sequence.request_id, run):
                return True
            self._give_up(sequence, run, step)
            return False
        while True:
            victim = self.population.running[-1]
            if victim is sequence and drafts and self._engine.extend(sequence.request_id, run):
                return True
            self.population.preempt(victim, self._facts)
            if victim is sequence:
                self._judge_standstill(sequence, run, step)
                return False
            if extend(sequence.request_id, run):
                return True
            self._facts.add("refused_growths")

    def _give_up(self, sequence: Sequence, run: TokenRun, step: int) -> None:
        """End a sequence that cannot grow, where nobody can be asked to give way."""
        message = (
            f"{sequence.request_id} was refused growth from {run.start} to {run.stop} tokens, and the engine "
            "does not claim PREEMPTION: whom it admits it must let finish; refuse at admission, or claim it"
        )
        pool = str(self._engine.spec.pools[0].key)
        self.violations.append(Violation("progress", step, pool, message))
        self.population.leave(sequence, Release.ERROR, Ending.REJECTED, step)
        self._facts.add("rejected")

    def _admit(self, writes: list[Write], budget: int, step: int) -> None:
        running, waiting = self.population.running, self.population.waiting
        while waiting and len(running) < self._config.max_sequences and budget > 0:
            sequence = waiting[0]
            if not self._chunks and sequence.target > budget and writes:
                return
            offer = self._offer(sequence, budget if self._chunks else sequence.target, step)
            if isinstance(offer, Refusal):
                if running and offer.reason is not RefusalReason.NEVER_FITS:
                    return
                if offer.reason is RefusalReason.LOADING and sequence.loading_steps < LOADING_STEPS:
                    sequence.loading_steps += 1
                    return
                waiting.popleft()
                self._judge_refusal(sequence, offer, step)
                self.population.reject(sequence, step, self._facts)
                continue
            waiting.popleft()
            running.append(sequence)
            writes.append(offer)
            budget -= offer.stop - offer.start

    def _offer(self, sequence: Sequence, chunk: int, step: int) -> Write | Refusal:
        request = sequence.request
        cap = request.max_output_tokens
        admission = self._engine.admit(
            sequence.request_id,
            TokenRun(sequence.content, 0, sequence.target),
            first_chunk_tokens=min(chunk, sequence.target),
            max_tokens=None if cap is None else request.prompt_tokens + cap,
        )
        if admission.refusal is not None:
            self._pressed = True
            self._facts.add("refused_admissions")
            self.refusals[admission.refusal.reason] += 1
            return admission.refusal
        hit, stop = admission.hit_tokens, admission.scheduled_tokens
        self._judge_admission(sequence, hit, stop, min(chunk, sequence.target), step)
        sequence.runs, sequence.computed, sequence.loading_steps = True, stop, 0
        if sequence.admitted_step is None:
            sequence.admitted_step, sequence.hit_tokens = step, hit
            self._facts.add("hit", hit)
        else:
            self._facts.add("resumed_hit", hit)
        self._facts.hit_tokens[sequence.request_id] = hit
        self._facts.add("admitted")
        self._facts.add("recomputed", max(0, min(sequence.written_before, stop) - hit))
        return Write(sequence, hit, stop, hit)

    def _judge_standstill(self, sequence: Sequence, run: TokenRun, step: int) -> None:
        """End a sequence that, alone, was refused twice at the same length: it would try for ever."""
        if self.population.running:
            return
        if sequence.stuck_at != run.start:
            sequence.stuck_at = run.start
            return
        self.population.waiting.remove(sequence)
        if not all(pool.contiguous for pool in self._engine.spec.pools):
            message = (
                f"{sequence.request_id} was refused growth from {run.start} to {run.stop} tokens twice, "
                "with nothing else running, and fits the empty pool"
            )
            pool = str(self._engine.spec.pools[0].key)
            self.violations.append(Violation("progress", step, pool, message))
        self.population.reject(sequence, step, self._facts)

    def _judge_admission(self, sequence: Sequence, hit: int, stop: int, chunk: int, step: int) -> None:
        """At least one token must be left to compute, and no more be scheduled than was asked for."""
        if not 0 <= hit < sequence.target or not hit < stop <= min(sequence.target, hit + chunk):
            message = (
                f"{sequence.request_id} was admitted with {hit} of {sequence.target} tokens found and {stop} "
                f"scheduled, expected at most {sequence.target - 1} found and 1 to {chunk} more scheduled"
            )
            pool = str(self._engine.spec.pools[0].key)
            self.violations.append(Violation("hits", step, pool, message))

    def _judge_refusal(self, sequence: Sequence, refusal: Refusal, step: int) -> None:
        """What fits the empty pool is refused neither for good nor, with nothing running, at all.

        For good it may be refused where it would leave less than the engine keeps back at any time.
        """
        pools = self._engine.spec.pools
        if refusal.reason is RefusalReason.NEVER_FITS:
            kept = kept_back(self._engine.spec)
            fits = all(-(-sequence.target // pool.block_size) + kept <= pool.usable_blocks for pool in pools)
            if not fits or any(pool.contiguous for pool in pools):
                return
            message = (
                f"{sequence.request_id} was refused as larger than the empty pool: its {sequence.target} "
                f"tokens fit the {pools[0].usable_blocks} blocks of {pools[0].block_size}"
            )
        else:
            message = (
                f"{sequence.request_id} was refused ({refusal.reason.value}) with nothing running: it needs "
                f"{refusal.needed_blocks} blocks, {refusal.free_blocks} are free and "
                f"{refusal.reclaimable_blocks} reclaimable"
            )
        self.violations.append(Violation("progress", step, str(refusal.pool), message))
