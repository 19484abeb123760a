"""Laws of admission: what is promised is what is taken, what fits gets in, work is not thrown away.

    promise   (I6)  blocks told before = blocks taken after; need + idle hits <= |F| + |C|
    progress  (I9)  what can never fit is refused for good, what fits an idle pool is admitted
    recompute (I9)  recomputed tokens <= alpha x useful tokens
    headroom  (I9)  a watermark is kept at admission, and more of it never means more preemptions
    floor     (I9)  a window's pool holds one window and one block, or is refused at the start
    packing         pressure is told of a packed batch and of churn, never of the packed batch alone

Formulas after the kind ADMIT of the fault catalogue. ``F`` are free blocks, ``C`` cached-idle ones; a hit
that is idle is in ``C`` and stays there no longer, so it is not room as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.contract import Admission
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.ledger.timeline import PoolTimeline, Timeline
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class Offer:
    """One `Engine.admit` as it was answered, with one pool before and after it, both in full."""

    spec: PoolSpec
    request_id: RequestId
    prompt_tokens: int
    """Tokens to be computed, hits included."""
    admission: Admission
    before: PoolSnapshot
    after: PoolSnapshot
    expected_hits: tuple[int, ...] | None = None
    """Blocks of this pool that the prompt should find; ``None`` where that is not known."""
    step: int | None = None

    @property
    def total_blocks(self) -> int:
        """Blocks of the whole prompt: ``ceil(n / b)``."""
        return -(-self.prompt_tokens // self.spec.block_size)

    @property
    def room_blocks(self) -> int:
        """Blocks that could be taken before: ``|F| + |C|``."""
        return len(self.before.free) + len(self.before.cached)

    @property
    def hits(self) -> tuple[int, ...]:
        """Blocks found: of an accepted offer from its table, of a refused one as expected."""
        if not self.admission.accepted:
            return self.expected_hits or ()
        rows = dict(zip(self.after.request_ids, range(len(self.after.request_ids)), strict=True))
        table = self.after.table(rows[self.request_id]).tolist()
        return tuple(table[: self.admission.hit_tokens // self.spec.block_size])

    @property
    def idle_hits(self) -> int:
        """Hits that nobody held before."""
        return len(set(self.hits) & set(self.before.cached.tolist()))

    @property
    def needed_blocks(self) -> int:
        """New blocks for the whole prompt: ``ceil(n / b) - hits``."""
        return self.total_blocks - len(self.hits)

    def violation(self, invariant: str, message: str) -> Violation:
        """Return a violation by this offer."""
        said = f"{self.request_id} of {self.prompt_tokens} tokens {message}"
        return Violation(invariant, self.step, str(self.spec.key), said)


def promise(offer: Offer) -> Iterator[Violation]:
    """Yield where an answer contradicts the pool it was given for (I6).

    Accepted: ``need + idle hits <= |F| + |C|`` for the whole prompt, chunked or not (vllm #25538, #6849).
    Refused: the numbers told are those of the pool, ``free = |F|`` and ``reclaimable = |C| - idle hits``,
    ``needed = ceil(n / b) - hits``, and with `RefusalReason.NO_BLOCKS` they do fall short (vllm #11565).
    """
    free, cached = len(offer.before.free), len(offer.before.cached)
    if offer.admission.refusal is None:
        if offer.needed_blocks + offer.idle_hits > free + cached:
            yield offer.violation(
                "promise",
                f"was admitted: it needs {offer.needed_blocks} new blocks beside {offer.idle_hits} idle "
                f"hits, {free} are free and {cached} cached; expected a refusal, an idle hit is no room",
            )
        return
    told = offer.admission.refusal
    if told.pool != offer.spec.key:
        return
    reclaimable = cached - offer.idle_hits
    fewest = reclaimable if offer.expected_hits is not None else 0
    if told.free_blocks != free or not fewest <= told.reclaimable_blocks <= reclaimable:
        yield offer.violation(
            "promise",
            f"was told of {told.free_blocks} free and {told.reclaimable_blocks} reclaimable blocks, expected "
            f"{free} and {reclaimable}: {cached} are cached, {offer.idle_hits} of them its own hits",
        )
    if offer.expected_hits is not None and told.needed_blocks != offer.needed_blocks:
        yield offer.violation(
            "promise",
            f"was told it needs {told.needed_blocks} blocks, expected {offer.needed_blocks}: "
            f"{offer.total_blocks} in all, {len(offer.hits)} found",
        )
    spare = told.free_blocks + told.reclaimable_blocks - told.needed_blocks
    if told.reason is RefusalReason.NO_BLOCKS and spare >= 0:
        yield offer.violation(
            "promise",
            f"was refused for want of blocks: told {told.needed_blocks} needed, {told.free_blocks} free and "
            f"{told.reclaimable_blocks} reclaimable, which suffice",
        )


def chunk_granted(
    spec: PoolSpec, name: str, prompt_tokens: int, held_tokens: int, granted: bool, step: int
) -> Iterator[Violation]:
    """Yield a refused chunk of a prompt that was admitted whole while nobody decodes (I6).

    Its ``ceil(n / b)`` blocks were there when it was admitted, and only admissions have taken blocks since.
    """
    if not granted:
        message = (
            f"{name} was admitted whole and is refused a chunk at {held_tokens} of {prompt_tokens} tokens: "
            "its blocks were promised to it, and another prompt was admitted on them"
        )
        yield Violation("promise", step, str(spec.key), message)


def told_and_taken(refused: Offer, accepted: Offer) -> Iterator[Violation]:
    """Yield where one prompt was told another need than it then took, hits alike (vllm #8824)."""
    assert refused.admission.refusal is not None
    told, taken = refused.admission.refusal.needed_blocks, accepted.needed_blocks
    if told != taken:
        yield accepted.violation("promise", f"was told it needs {told} blocks and then took {taken}")


def never_fits(offer: Offer, kept_blocks: int = 0) -> Iterator[Violation]:
    """Yield where `RefusalReason.NEVER_FITS` is not said exactly of what exceeds the usable blocks (I9).

    ``ceil(n / b) > N - |R|`` is refused for good, at once: whoever waits for ever at the head of the queue
    blocks all others (vllm #39734, #39828). What fits, but not beside the ``kept_blocks`` of a watermark, may
    be refused for good as well: an engine that never waives it could never let that in.
    """
    if offer.admission.refusal is None or offer.spec.kind is not PoolKind.FULL:
        return
    usable = offer.spec.usable_blocks
    never = offer.total_blocks > usable
    said = offer.admission.refusal.reason
    if not never and said is RefusalReason.NEVER_FITS and offer.total_blocks + kept_blocks > usable:
        return
    if never != (said is RefusalReason.NEVER_FITS):
        expected = "never_fits" if never else "another reason"
        yield offer.violation(
            "progress",
            f"was refused ({said.value}); it is {offer.total_blocks} blocks of {usable} usable ones: "
            f"expected {expected}",
        )


def headroom_kept(offer: Offer, watermark_blocks: int) -> Iterator[Violation]:
    """Yield an admission beside live sequences that leaves fewer blocks than the watermark.

    ``need + idle hits + watermark <= |F| + |C|``; an empty engine waives it.
    """
    if not offer.admission.accepted or not offer.before.request_ids:
        return
    left = offer.room_blocks - offer.needed_blocks - offer.idle_hits
    if left < watermark_blocks:
        yield offer.violation(
            "headroom", f"was admitted and leaves {left} blocks, expected a watermark of {watermark_blocks}"
        )


def headroom_helps(preemptions: Sequence[tuple[int, int]], pool: str) -> Iterator[Violation]:
    """Yield where more head-room meant more preemptions, or none of it helped (vllm #44594).

    ``preemptions`` are pairs of watermark in blocks and preemptions counted, by rising watermark.
    """
    for (less, many), (more, few) in pairwise(preemptions):
        if few > many:
            message = f"{few} preemptions with {more} blocks kept back, {many} with {less}: expected no more"
            yield Violation("headroom", None, pool, message)
    (least, before), (most, after) = preemptions[0], preemptions[-1]
    if before > 0 and after >= before:
        message = (
            f"{before} preemptions with {least} blocks kept back and {after} with {most}: expected fewer"
        )
        yield Violation("headroom", None, pool, message)


def standstill(timeline: Timeline) -> Iterator[Violation]:
    """Yield steps at which somebody waited, nobody ran, and the next step admitted and ended nobody (I9)."""
    (pool, *_) = timeline.pools
    idle = (pool.column("waiting") > 0) & (pool.column("running") == 0)
    moved = sum(
        (pool.column(name) for name in ("admitted", "rejected", "cancelled")), np.zeros(len(idle), np.int64)
    )
    for row in np.flatnonzero(idle[:-1] & (moved[1:] == 0)).tolist():
        waiting = int(pool.column("waiting")[row])
        message = f"{waiting} requests wait, nothing runs, and the next step admits none"
        yield Violation("progress", int(timeline.steps[row]), str(pool.spec.key), message)


def recompute_bound(pool: PoolTimeline, alpha: float) -> Iterator[Violation]:
    """Yield when more was computed again than ``alpha`` times the useful tokens (vllm #25538, #37307).

    Useful tokens are those written for the first time: written - recomputed.
    """
    recomputed = pool.total("recomputed")
    useful = pool.total("written") - recomputed
    if recomputed > alpha * useful:
        message = (
            f"{recomputed} tokens were computed again after {pool.total('preempted')} preemptions, beside "
            f"{useful} useful ones: expected at most {alpha:g} times as many"
        )
        yield Violation("recompute", None, str(pool.spec.key), message)


def overcommit(max_tokens: Sequence[int], spec: PoolSpec) -> float:
    """Return promises over slots: the sum of what clients may ask for, over what the pool can hold.

    Above 1, somebody must be able to give way (llama.cpp #23652).
    """
    return sum(max_tokens) / (spec.usable_blocks * spec.block_size)


def window_floor(spec: PoolSpec) -> Iterator[Violation]:
    """Yield a window pool that cannot hold one window and the block that is being filled.

    ``usable x b >= W + b``: below that no sequence gets past its window (sglang #37610).
    """
    if spec.kind is not PoolKind.WINDOW or spec.window_tokens is None:
        return
    tokens, floor = spec.usable_blocks * spec.block_size, spec.window_tokens + spec.block_size
    if tokens < floor:
        message = (
            f"the window pool holds {tokens} tokens, a window of {spec.window_tokens} and a block of "
            f"{spec.block_size} take {floor}: refuse it at the start"
        )
        yield Violation("floor", None, str(spec.key), message)


@dataclass(frozen=True, slots=True)
class Pressure:
    """How hard one replay was for its pool."""

    pool: str
    refused: int
    """Admissions and extensions refused for now."""
    preempted: int

    @classmethod
    def of(cls, pool: PoolTimeline) -> Pressure:
        """Return the pressure that a timeline shows."""
        refused = pool.total("refused_admissions") + pool.total("refused_growths")
        return cls(str(pool.spec.key), refused, pool.total("preempted"))


def packing_control(packed: Pressure, churn: Pressure | None) -> Iterator[Violation]:
    """Yield where a figure of a packed batch stands alone, or the two do not differ as they must.

    A packed batch never grows, so it shows no refusal; the same requests as churn must show one.
    """
    if packed.refused or packed.preempted:
        message = f"the packed batch shows {packed.refused} refusals and {packed.preempted} preemptions"
        yield Violation("packing", None, packed.pool, f"{message}, expected none: it is no packed batch")
    if churn is None:
        message = "only the packed batch was measured; expected churn of the same requests on the same pool"
        yield Violation("packing", None, packed.pool, message)
    elif not churn.refused + churn.preempted:
        message = "churn of the same requests shows no refusal and no preemption, expected one at least"
        yield Violation("packing", None, churn.pool, message)
