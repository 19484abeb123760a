"""How requests must end, and when nobody may be refused: closed forms over a trace and a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import Violation
from kvsuite.replay.batch import Ending
from kvsuite.replay.model import judged_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.driver import Outcome, Replay
    from kvsuite.trace.model import Request, Trace

_NOT_BORN = {Ending.FORK_DENIED, Ending.ORPHANED}


def endings(trace: Trace, done: Replay) -> Iterator[Violation]:
    """Yield requests that ended otherwise than they must, or with another number of answers.

    What exceeds a pool, ``ceil(final / b) > N - |R|``, is rejected; what is cancelled before its last answer
    is cancelled with exactly as many; everything else finishes with all of them. Contiguous pools may reject
    what outgrows their holes, and are not judged.
    """
    if any(pool.contiguous for pool in done.spec.pools):
        return
    for outcome in done.outcomes:
        request = trace[outcome.index]
        expected = _expected(request, done.spec)
        if outcome.ending not in expected:
            names = " or ".join(sorted(ending.value for ending in expected))
            found = "did not end" if outcome.ending is None else outcome.ending.value
            yield _violation(done.spec, outcome, f"{request.request_id} {found}, expected {names}")
            continue
        answers = _answers(request, outcome.ending)
        if answers is not None and outcome.generated_tokens != answers:
            message = f"{request.request_id} came to {outcome.generated_tokens} answers, expected {answers}"
            yield _violation(done.spec, outcome, message)


def pressure_without_cause(trace: Trace, done: Replay) -> Iterator[Violation]:
    """Yield refusals and preemptions in a pool that holds every request of the trace at once.

    ``sum over requests of ceil((final + k) / b) + watermark <= N - |R|``, k being the drafts asked for:
    nothing is short, whatever the order.
    """
    pools = judged_pools(done.spec)
    if len(pools) < len(done.spec.pools):
        return
    watermark = kept_back(done.spec)
    most_tokens = trace.prompt_tokens + trace.output_tokens + done.scheduler.lookahead_tokens
    for pool in pools:
        demand = int((-(-most_tokens // pool.block_size)).sum())
        if demand + watermark > pool.usable_blocks:
            return
    rows = done.timeline.pools[0]
    counts = {name: rows.total(name) for name in ("refused_admissions", "refused_growths", "preempted")}
    if any(counts.values()):
        said = ", ".join(f"{count} {name}" for name, count in counts.items())
        message = f"{said}, in a pool that holds all {len(trace)} requests at once: expected none"
        yield Violation("progress", None, str(rows.spec.key), message)


def _expected(request: Request, spec: EngineSpec) -> set[Ending]:
    needs = [(-(-request.final_tokens // pool.block_size), pool.usable_blocks) for pool in judged_pools(spec)]
    never = any(blocks > usable for blocks, usable in needs)
    allowed = {Ending.REJECTED} if never else set(_life(request))
    if any(blocks + kept_back(spec) > usable for blocks, usable in needs):
        allowed.add(Ending.REJECTED)  # an engine may hold on to its watermark with nothing running
    if request.parent is not None:
        allowed |= _NOT_BORN
    if spec.claims(Capability.SLIDING_WINDOW):
        allowed |= {Ending.REJECTED, *_life(request)}
    return allowed


def _life(request: Request) -> Iterator[Ending]:
    """Yield how a request may end that fits: a cancellation beside its last answer may come too late."""
    after = request.cancel_after
    if request.cancel_at_us is not None or after is not None:
        yield Ending.CANCELLED
    if after is None or after == request.output_tokens or request.parent is not None:
        yield Ending.FINISHED


def _answers(request: Request, ending: Ending | None) -> int | None:
    """Return the answers that follow from how a request ended; ``None`` where several are right."""
    if ending is Ending.FINISHED:
        return request.output_tokens
    if ending is Ending.CANCELLED and request.parent is None and request.cancel_after is not None:
        return request.cancel_after
    return None


def _violation(spec: EngineSpec, outcome: Outcome, message: str) -> Violation:
    return Violation("endings", outcome.ended_step, str(spec.pools[0].key), message)
