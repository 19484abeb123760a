"""A scene: one engine driven by hand, verb by verb, with every law judged at each forward pass.

Where a replay takes its verbs from a trace and a scheduler, a scene takes them from a case: a fault of a few
steps is played as it was reported, with launches, settlements, acknowledgements and the clock apart.

    scene = Scene(engine)
    scene.admit("a", 17)
    scene.step()                      # launch and settle
    scene.fork("a", "b")
    scene.extend("a"), scene.extend("b")
    scene.step()
    scene.release("a"), scene.release("b")
    scene.drain()
    scene.judge()                     # raises with the lifecycle when a law was broken
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np

from kvsuite.engine.contract import Capability, Release, SupportsFork, SupportsTransfers
from kvsuite.errors import EngineError, InvariantViolation
from kvsuite.ledger.atomic import state_digest
from kvsuite.ledger.invariants import Violation, judge
from kvsuite.ledger.row import INDEX
from kvsuite.ledger.timeline import Timeline
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.addresses import Indices, slots_to_read, slots_to_write
from kvsuite.replay.batch import Sequence, Write
from kvsuite.replay.content import ContentCheck
from kvsuite.replay.fence import Fence
from kvsuite.replay.prompts import Prompts, request_of
from kvsuite.replay.storage import worker_of
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.contract import Admission, Engine, Transfer
    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.replay.addresses import Given, Indexed
    from kvsuite.trace.tokens import TokenContent

SHOWN_VERBS = 40


class Scene:
    """Drives ``engine``; ``violations`` holds every law broken so far, ``lifecycle`` every verb."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prompts = Prompts()
        self.violations: list[Violation] = []
        self.lifecycle: list[str] = []
        self.transfers: list[Transfer] = []
        """Transfers under way, oldest first."""
        self.step_number = 0
        self.judged = False
        self.trackers = tuple(PoolTracker(spec) for spec in engine.spec.pools)
        self.worker = worker_of(engine)
        """The slots; a case may write beside the engine, as a padded batch does."""
        self._indexed = cast("Indexed", engine) if engine.spec.claims(Capability.SLOTS) else None
        self._content = ContentCheck(engine.spec, self.worker, self.trackers, read_all=True)
        self._fence = Fence(self.worker, self.trackers)
        self._live: dict[str, Sequence] = {}
        self._writes: list[Write] = []
        self._settled: dict[RequestId, int] = {}
        self._facts = StepFacts()
        self._look(StepFacts())

    def admit(
        self,
        name: str,
        tokens: int,
        *,
        content: TokenContent | None = None,
        first_chunk: int | None = None,
        max_tokens: int | None = None,
    ) -> Admission:
        """Offer a prompt of ``tokens`` tokens; by default nobody else's."""
        run = TokenRun(content or self.prompts.of((f"only {name}", tokens)), 0, tokens)
        admission = self.engine.admit(
            RequestId(name), run, first_chunk_tokens=first_chunk or tokens, max_tokens=max_tokens
        )
        self._log(f"admit {name} {tokens} -> {_said(admission)}")
        if admission.accepted:
            sequence = Sequence(request_of(name, tokens, len(self._live)), run.content, tokens)
            sequence.computed, sequence.runs = admission.scheduled_tokens, True
            self._live[name] = sequence
            self._facts.hit_tokens[sequence.request_id] = admission.hit_tokens
            hit = admission.hit_tokens
            if not 0 <= hit < tokens:
                self._violate(
                    "hits", f"{name} of {tokens} tokens was found whole ({hit}): one must be computed"
                )
            if admission.scheduled_tokens > hit:
                self._writes.append(Write(sequence, hit, admission.scheduled_tokens, hit))
        return admission

    @property
    def running(self) -> tuple[str, ...]:
        """Live sequences, oldest first."""
        return tuple(self._live)

    def extend(self, name: str, tokens: int = 1, *, lookahead: int = 0) -> bool:
        """Ask for slots for the next ``tokens`` tokens of a live sequence."""
        sequence = self._live[name]
        start = sequence.computed
        run = TokenRun(sequence.content, start, start + tokens)
        done = self.engine.extend(sequence.request_id, run, lookahead_tokens=lookahead)
        self._log(f"extend {name} by {tokens}{f' ahead {lookahead}' if lookahead else ''} -> {done}")
        if done:
            sequence.computed += tokens
            self._writes.append(Write(sequence, start, sequence.computed))
        return done

    def fork(self, parent: str, child: str) -> bool:
        """Fork a live sequence; the child goes on with tokens of its own."""
        if not isinstance(self.engine, SupportsFork):
            raise EngineError(f"{self.engine.spec.name} claims FORK and has no verb fork")
        origin = self._live[parent]
        done = self.engine.fork(RequestId(parent), RequestId(child))
        self._log(f"fork {parent} -> {child}: {done}")
        if done:
            key = self.prompts.of((f"only {child}", 1)).keys[0]
            twin = Sequence(
                request_of(child, origin.computed, len(self._live)),
                origin.content.forked(origin.computed, key),
                origin.computed,
            )
            twin.computed, twin.runs = origin.computed, True
            self._live[child] = twin
            self._settled[RequestId(child)] = self._settled.get(RequestId(parent), 0)
            for tracker in self.trackers:
                tracker.fork(RequestId(parent), RequestId(child))
            self._content.forked(twin, twin.computed)
        return done

    def release(self, name: str, reason: Release = Release.FINISH) -> None:
        """Let a sequence give back what it holds."""
        sequence = self._live.pop(name)
        self._settled.pop(sequence.request_id, None)
        self._content.before_release(sequence, self.step_number)
        self._writes = [write for write in self._writes if write.sequence is not sequence]
        self.engine.release(sequence.request_id, reason)
        self._log(f"release {name} ({reason.value})")

    def cancel(self, name: str) -> None:
        """Let a request that waits, refused or preempted, go away; live ones are released."""
        if isinstance(self.engine, SupportsTransfers):
            self.engine.forget(RequestId(name))
        self._log(f"cancel {name}, which waits")

    def launch(self) -> None:
        """Start a forward pass: copies, writes and reads, and the laws of the state it sees.

        Another one may start before it is settled, where the engine claims ASYNC_STEPS.
        """
        ops = self.engine.take_ops()
        to_write = slots_to_write(self._indexed, self._writes) if self._indexed else {}
        self.engine.launched(self.step_number)
        self.transfers += ops.transfers
        self._look(self._facts)
        sequences = list(self._live.values())
        settled = {s.request_id: self._settled.get(s.request_id, 0) for s in sequences}
        for tracker in self.trackers:
            tracker.agree(
                [s.request_id for s in sequences], [s.computed for s in sequences], self.step_number
            )
            tracker.window_law(settled, self._facts.hit_tokens, self.step_number)
        self._content.step(self.step_number, ops, self._writes, indices=self._indices(to_write))
        self._fence.launch(self.step_number, self._writes, self._content.written())
        self._log(f"launch step {self.step_number}")
        self._writes, self._facts = [], StepFacts()
        self.step_number += 1

    def settle(self, **accepted: int) -> None:
        """End the oldest forward pass; ``accepted`` gives settled lengths where drafts were refused."""
        flight, found = self._fence.settle()
        self.violations += found
        lengths: dict[RequestId, int] = {}
        for write in flight.writes:
            sequence = write.sequence
            if self._live.get(sequence.request_id) is not sequence:
                continue
            lengths[sequence.request_id] = accepted.get(sequence.request_id, write.stop)
            if sequence.request_id in accepted:
                sequence.computed = lengths[sequence.request_id]
                self._content.roll_back(sequence.request_id, sequence.computed)
                if sequence.computed < write.stop:  # other tokens come in the place of rejected ones
                    other = self.prompts.of((f"{sequence.request_id} after step {flight.step}", 1))
                    sequence.content = sequence.content.forked(sequence.computed, other.keys[0])
        self._settled.update(lengths)
        self.engine.done(flight.step, lengths)
        self._log(f"settle step {flight.step}" + "".join(f" {n}={v}" for n, v in accepted.items()))

    def step(self) -> None:
        """Launch and settle; transfers that begin with the step end with it."""
        under_way = len(self.transfers)
        self.launch()
        self.settle()
        for transfer in self.transfers[under_way:]:
            self.acknowledge(transfer)

    def acknowledge(self, transfer: Transfer, *, ok: bool = True) -> None:
        """End a transfer: its bytes move now, and the engine learns of it."""
        if ok:
            self.worker.transfer(transfer)
        self.transfers.remove(transfer)
        assert isinstance(self.engine, SupportsTransfers)
        self.engine.transfer_done(transfer.ref, ok)
        self._log(f"transfer {transfer.ref} done: {ok}")

    def tick(self, now_us: int) -> None:
        """Let time pass."""
        assert isinstance(self.engine, SupportsTransfers)
        self.engine.tick(now_us)
        self._log(f"clock {now_us} us")

    @contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """Expect that what is done inside, a refused operation, leaves no trace (I4)."""
        before = state_digest(self.engine.snapshot())
        yield
        changed = state_digest(self.engine.snapshot()).differences(before)
        if changed:
            self._violate("atomic", f"{what} was refused and changed {', '.join(changed)}")

    def drain(self) -> None:
        """Let every live sequence go and expect that every block rests."""
        for name in list(self._live):
            self.release(name)
        self._look(StepFacts())
        for tracker in self.trackers:
            resting, all_blocks = tracker.states.resting_blocks(), tracker.spec.num_blocks
            if resting != all_blocks or tracker.holdings.tables:
                message = f"{resting} of {all_blocks} blocks rest with nothing running"
                self._violate("drain", message, tracker)

    def column(self, name: str, pool: int = 0) -> int:
        """Return a ledger column of the newest look."""
        return int(self.trackers[pool].timeline().rows[-1, INDEX[name]])

    def table(self, name: str, pool: int = 0) -> Int32Array:
        """Return a live sequence's table as the newest look shows it."""
        return self.trackers[pool].blocks_of(RequestId(name))

    def found(self) -> list[Violation]:
        """Return every law broken so far, rows judged too."""
        steps = len(self.trackers[0].timeline().rows)
        timeline = Timeline(np.arange(steps, dtype=np.int64), tuple(t.timeline() for t in self.trackers))
        kept = [violation for tracker in self.trackers for violation in tracker.violations]
        return [*self.violations, *self._content.violations, *kept, *judge(timeline)]

    def judge(self) -> None:
        """Raise when a law was broken.

        **Raises:** `InvariantViolation` with the first violation of each law and the lifecycle.
        """
        self.judged = True
        found = {violation.invariant: str(violation) for violation in reversed(self.found())}
        if found:
            verbs = self.lifecycle[-SHOWN_VERBS:]
            raise InvariantViolation(
                "\n".join([*found.values(), "lifecycle:", *(f"  {verb}" for verb in verbs)])
            )

    def _indices(self, to_write: Given) -> Indices | None:
        if self._indexed is None:
            return None
        device = [set(t.holdings.tables) for t in self.trackers if t.spec.key.tier == "device"]
        shown = set.intersection(*device)
        return Indices(to_write, slots_to_read(self._indexed, self._live.values(), shown))

    def _look(self, facts: StepFacts) -> None:
        snapshots = self.engine.snapshot()
        for tracker, snapshot in zip(self.trackers, snapshots, strict=True):
            tracker.take(snapshot, facts, self.step_number)
            tracker.add_row(snapshot, facts)
        self.violations += self._fence.look(self.step_number)

    def _violate(self, invariant: str, message: str, tracker: PoolTracker | None = None) -> None:
        pool = str((tracker or self.trackers[0]).spec.key)
        self.violations.append(Violation(invariant, self.step_number, pool, message))

    def _log(self, verb: str) -> None:
        self.lifecycle.append(verb)


def _said(admission: Admission) -> str:
    if admission.refusal is not None:
        short = admission.refusal
        return f"refused ({short.reason.value}: needs {short.needed_blocks}, free {short.free_blocks})"
    return f"{admission.hit_tokens} found, {admission.scheduled_tokens} scheduled"
