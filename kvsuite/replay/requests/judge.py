"""How requests must fare on an engine that schedules by itself, from what was seen of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.ledger.invariants import Violation
from kvsuite.ledger.request_laws import KnownRequest, answers_follow
from kvsuite.replay.batch import Ending
from kvsuite.replay.model import judged_pools
from kvsuite.replay.requests.steps import LEAVING_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.requests.steps import RequestFrame, Watched


def known_requests(frame: RequestFrame) -> tuple[KnownRequest, ...]:
    """Return what is known in one step of every request that was live in it."""
    running = None if frame.seen.running is None else frozenset(frame.seen.running)
    return tuple(
        KnownRequest(
            request_id=one.request_id,
            content=one.content,
            prompt_tokens=one.asked.request.prompt_tokens,
            max_tokens=one.asked.max_tokens,
            num_answers=one.asked.num_answers,
            generated=one.generated,
            sampled=one.sampled,
            ended=one.ending is not None,
            holds=running is None or one.ending is not None or one.request_id in running,
        )
        for one in frame.watched
    )


def step_laws(frame: RequestFrame, spec: EngineSpec) -> Iterator[Violation]:
    """Yield what is wrong with the requests of one step: answers, endings, refusals, leavings."""
    pool = str(spec.pools[0].key)
    for one in frame.watched:
        if one.generated is not None:
            before, most = frame.before.get(one.request_id), one.asked.max_tokens
            yield from answers_follow(before, one.generated, one.request_id, most, frame.step, pool)
        message = _wrong_end(one, spec)
        if message is not None:
            yield Violation("endings", frame.step, pool, message)
        if one.refusal is not None and fits(one, spec):
            tokens = one.asked.final_tokens
            blocks = -(-tokens // spec.pools[0].block_size) * one.asked.num_answers
            message = (
                f"{one.request_id} was refused ({one.refusal}), and its {blocks} blocks for {tokens} tokens "
                f"and {one.asked.num_answers} answers fit the empty pool of {spec.pools[0].usable_blocks}"
            )
            yield Violation("progress", frame.step, pool, message)
        if one.ending is None and one.left_step is not None and frame.step == one.left_step + LEAVING_STEPS:
            message = (
                f"{one.request_id} was cancelled before step {one.left_step} and is live after step "
                f"{frame.step}: expected to end within {LEAVING_STEPS} steps"
            )
            yield Violation("progress", frame.step, pool, message)


def fits(one: Watched, spec: EngineSpec) -> bool:
    """Return whether every answer of a request fits the empty pools, and the engine's longest sequence."""
    tokens, answers = one.asked.final_tokens, one.asked.num_answers
    longest = spec.effective.get("max_model_tokens")
    if isinstance(longest, int) and tokens > longest:
        return False
    return all(answers * -(-tokens // pool.block_size) <= pool.usable_blocks for pool in judged_pools(spec))


def never_ended(live: Iterable[Watched], why: str, spec: EngineSpec, step: int) -> Iterator[Violation]:
    """Yield one violation for each request that was still live when the replay gave up."""
    for one in live:
        message = f"{one.request_id}, submitted at step {one.submitted_step}, did not end: {why}"
        yield Violation("progress", step, str(spec.pools[0].key), message)


def _wrong_end(one: Watched, spec: EngineSpec) -> str | None:
    if one.ending is Ending.CANCELLED and one.left_step is None:
        return f"{one.request_id} ended as cancelled, and its client is there"
    if one.ending is not Ending.FINISHED:
        return None
    if one.by_error:
        return f"{one.request_id} ended with an error, expected it to finish or to be refused"
    if one.generated is not None and min(one.generated) < one.asked.max_tokens:
        return (
            f"{one.request_id} finished with {', '.join(map(str, one.generated))} tokens, expected "
            f"{one.asked.max_tokens} in each answer"
        )
    computed = one.asked.final_tokens - 1
    for pool in judged_pools(spec):
        if computed > pool.usable_blocks * pool.block_size:
            slots = pool.usable_blocks * pool.block_size
            return (
                f"{one.request_id} finished with {computed} tokens computed, and the pool has {slots} slots"
            )
    return None
