"""Laws of an engine that is driven by requests: pure functions over what it lets us see.

A request of ``p`` prompt tokens of which ``g`` answer tokens were sampled has computed ``p + g - 1`` tokens;
the last one gets its slot when it is computed itself::

    slots      [ prompt ............ | answer ..... g - 1 ] g
    blocks     ceil((p + g - 1) / b)  <=  held  <=  ceil((p + g + k) / b)       k: declared look-ahead

The lower bound holds for whoever sampled a token in the step, the upper one for everybody who may hold
blocks. Where blocks can be shared, equal prompts count once in the lower bound, and so may equal answers:
two requests that sample alike may share those too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.ledger.invariants import NotJudged, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvsuite.engine.contract import PoolCounts
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """What is known of one request in one step; ``generated`` is ``None`` where no answer can be seen."""

    request_id: RequestId
    content: TokenContent
    prompt_tokens: int
    max_tokens: int
    num_answers: int
    generated: tuple[int, ...] | None
    sampled: bool
    """Every answer was given a token in this step, so that all before it hold slots."""
    ended: bool
    """It ended in this step, and may be seen to hold its blocks or not."""
    holds: bool
    """Whether it may hold blocks: ``False`` only where it is seen that it does not run."""

    @property
    def most_tokens(self) -> int:
        """Slots that its longest answer can have, prompt included."""
        longest = self.max_tokens if self.generated is None else max(self.generated)
        return self.prompt_tokens + longest

    @property
    def fewest_tokens(self) -> tuple[int, ...]:
        """Slots that each answer has at least, prompt included; empty where nothing follows."""
        if not self.sampled or self.ended or self.generated is None:
            return ()
        return tuple(self.prompt_tokens + tokens - 1 for tokens in self.generated)


def fewest_blocks(requests: Iterable[KnownRequest], block_size: int, *, shares: bool) -> int:
    """Return the fewest blocks that what was computed needs; ``shares``: equal contents may be held once."""
    if not shares:
        return sum(-(-tokens // block_size) for request in requests for tokens in request.fewest_tokens)
    needed = set()
    for request in requests:
        for tokens in request.fewest_tokens:
            for end in range(block_size, tokens + block_size, block_size):
                needed.add((end, request.content.prefix_key(min(end, request.prompt_tokens))))
    return len(needed)


def most_blocks(requests: Iterable[KnownRequest], block_size: int, *, lookahead_tokens: int = 0) -> int:
    """Return the most blocks that the requests can hold, nothing shared."""
    return sum(
        request.num_answers * -(-(request.most_tokens + lookahead_tokens) // block_size)
        for request in requests
        if request.holds
    )


def used_between(
    used_blocks: int,
    requests: Sequence[KnownRequest],
    pool: PoolSpec,
    step: int,
    *,
    shares: bool,
    lookahead: int,
) -> Iterator[Violation]:
    """Yield where the blocks in use are fewer than what was computed needs, or more than anybody can hold."""
    size = pool.block_size
    fewest = fewest_blocks(requests, size, shares=False)
    if shares and used_blocks < fewest:
        fewest = fewest_blocks(requests, size, shares=True)
    most = min(most_blocks(requests, size, lookahead_tokens=lookahead), pool.usable_blocks)
    if fewest <= used_blocks <= most:
        return
    live = sum(not request.ended for request in requests)
    message = (
        f"{used_blocks} blocks of {size} tokens are in use, expected {fewest} to {most} for {live} live "
        f"requests and {len(requests) - live} that ended in this step"
    )
    yield Violation("used", step, str(pool.key), message)


def counts_close(counts: PoolCounts, pool: PoolSpec, step: int) -> Iterator[Violation]:
    """Yield where what an engine says of a pool in numbers contradicts itself or the pool's size.

    ``used + free + never allocatable = total``, the total is the pool's, and its bytes are blocks times
    block bytes.
    """
    used, free, total = counts.used_blocks, counts.free_blocks, counts.total_blocks
    whole = pool.num_blocks if total is None else total

    def violated(message: str) -> Violation:
        return Violation("closure", step, str(pool.key), message)

    if total is not None and total != pool.num_blocks:
        yield violated(f"the engine counts {total} blocks in all, its pool has {pool.num_blocks}")
    for name, value in (("used", used), ("free", free)):
        if value is not None and not 0 <= value <= whole:
            yield violated(f"{value} blocks are {name}, of {whole}")
    apart = pool.never_allocatable_blocks
    if used is not None and free is not None and used + free + apart != whole:
        yield violated(
            f"{used} blocks are used, {free} free and {apart} never allocatable: "
            f"{used + free + apart} of {whole}"
        )
    if counts.pool_bytes is not None and counts.pool_bytes != whole * pool.block_bytes:
        yield violated(
            f"the engine says that its pool has {counts.pool_bytes} bytes, "
            f"expected {whole * pool.block_bytes}: {whole} blocks of {pool.block_bytes} bytes"
        )


def counts_absent(counts: PoolCounts, pool: PoolSpec) -> Iterator[NotJudged]:
    """Yield the laws that numbers left out leave without a judgement."""
    if counts.used_blocks is None:
        yield NotJudged("used", str(pool.key), "used_blocks")
    if counts.used_blocks is None or counts.free_blocks is None:
        yield NotJudged("closure", str(pool.key), "used_blocks and free_blocks")
    if counts.pool_bytes is None:
        yield NotJudged("pool bytes", str(pool.key), "pool_bytes")


def shown_lengths(
    request_ids: Sequence[RequestId],
    lengths: Int64Array,
    requests: Iterable[KnownRequest],
    pool: PoolSpec,
    step: int,
    *,
    lookahead: int,
) -> Iterator[Violation]:
    """Yield sequences that a snapshot shows and nobody asked for, and those of a length that cannot be."""
    known = {
        name: (request, answer)
        for request in requests
        for answer, name in enumerate(answer_names(request.request_id, request.num_answers))
    }
    for request_id, length in zip(request_ids, lengths.tolist(), strict=True):
        found = known.get(request_id)
        if found is None:
            message = f"{request_id} is shown with {length} tokens, and no request of that name is live"
            yield Violation("lengths", step, str(pool.key), message)
            continue
        request, answer = found
        fewest = request.fewest_tokens[answer] if request.fewest_tokens else 0
        sampled = request.max_tokens if request.generated is None else request.generated[answer]
        most = request.prompt_tokens + sampled + lookahead
        if not fewest <= length <= most:
            message = (
                f"{request_id} is shown with {length} tokens, expected {fewest} to {most}: "
                f"{request.prompt_tokens} of its prompt, {sampled} sampled"
            )
            yield Violation("lengths", step, str(pool.key), message)
    missing = [
        request.request_id
        for request in requests
        if request.fewest_tokens and request.request_id not in request_ids
    ]
    for request_id in missing:
        message = f"{request_id} was given a token in this step and no snapshot shows what it holds"
        yield Violation("lengths", step, str(pool.key), message)


def answer_names(request_id: str, num_answers: int) -> Iterator[str]:
    """Yield what the sequences of a request are called in snapshots."""
    yield request_id
    yield from (f"{request_id}/{k}" for k in range(1, num_answers))


def answers_follow(
    before: tuple[int, ...] | None,
    now: tuple[int, ...],
    request_id: RequestId,
    max_tokens: int,
    step: int,
    pool: str,
) -> Iterator[Violation]:
    """Yield answers that shrink, or grow beyond what was asked for."""
    for answer, tokens in enumerate(now):
        was = 0 if before is None else before[answer]
        if not was <= tokens <= max_tokens:
            message = (
                f"answer {answer} of {request_id} has {tokens} tokens, expected {was} to {max_tokens}: "
                f"it had {was} in the step before, and {max_tokens} were asked for"
            )
            yield Violation("endings", step, pool, message)
