"""How an engine came to the size of its pool, held against the device (I13).

    observed = neighbour + weights + activation + graphs + other + pool + slack     each byte once
    pool     = the most whole blocks that fit in
               fraction * observed - own                    (fraction of ``total``)
               fraction * (observed - neighbour - own)      (fraction of ``free``)
    own      = weights + activation + graphs + other

What was requested is what is in force, and all ranks use the smallest of their pools.

Source: the fault catalogue, POOL, after vllm #37426, #57936, TensorRT-LLM #3497, #6807, lmdeploy #2793,
text-generation-inference #678 and nano-vllm #187.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.engine.snapshot import Budget, PoolSpec

OWN_TERMS = ("weights_bytes", "activation_bytes", "graphs_bytes", "other_bytes")
TERMS = ("neighbour_bytes", *OWN_TERMS, "pool_bytes", "slack_bytes")
FRACTIONS = ("total", "free")


def _violation(invariant: str, message: str) -> Violation:
    return Violation(invariant, None, "budget", message)


def own_bytes(budget: Budget) -> int:
    """Return what the process holds beside its pool."""
    return sum(int(getattr(budget, term)) for term in OWN_TERMS)


def room_bytes(budget: Budget) -> int:
    """Return what the fraction in force leaves to the pool; the formula is at the head of this module."""
    share = Fraction(budget.effective_fraction).limit_denominator(10_000)
    if budget.fraction_of == "free":
        return floor(share * (budget.observed_bytes - budget.neighbour_bytes - own_bytes(budget)))
    return floor(share * budget.observed_bytes) - own_bytes(budget)


def budget_closes(budget: Budget) -> Iterator[Violation]:
    """Yield terms below 0, and a sum that is not what the device holds."""
    for term in TERMS:
        if getattr(budget, term) < 0:
            message = f"{term} is {getattr(budget, term)}: more was given out than there is"
            yield _violation("budget-closure", message)
    total = sum(int(getattr(budget, term)) for term in TERMS)
    if total != budget.observed_bytes:
        parts = ", ".join(f"{term.removesuffix('_bytes')} {getattr(budget, term)}" for term in TERMS)
        message = (
            f"{parts} add up to {total}, expected the observed {budget.observed_bytes}: "
            f"{abs(budget.observed_bytes - total)} bytes are "
            f"{'in no term' if total < budget.observed_bytes else 'in two terms'}"
        )
        yield _violation("budget-closure", message)


def terms_as_measured(budget: Budget, measured: Mapping[str, int]) -> Iterator[Violation]:
    """Yield terms that are not what the device showed when they were measured alone.

    A sum can close while one term holds another's bytes and the pool makes up for it (vllm #57936).
    """
    for term, expected in measured.items():
        found = int(getattr(budget, term))
        if found != expected:
            message = f"{term} is {found}, expected the {expected} that were measured: each byte counts once"
            yield _violation("budget-terms", message)


def request_in_force(budget: Budget) -> Iterator[Violation]:
    """Yield a fraction that was lost on its way, or does not say what it is a fraction of."""
    if budget.effective_fraction != budget.requested_fraction:
        message = (
            f"a fraction of {budget.requested_fraction} was requested and {budget.effective_fraction} "
            f"of {budget.fraction_of} is in force"
        )
        yield _violation("budget-request", message)
    if budget.fraction_of not in FRACTIONS:
        message = f"the fraction is of {budget.fraction_of!r}, expected one of {', '.join(FRACTIONS)}"
        yield _violation("budget-request", message)


def pool_fills_room(
    budget: Budget, block_bytes: int, num_blocks: int, asked_blocks: int
) -> Iterator[Violation]:
    """Yield a pool that is not the most whole blocks that budget, ranks and request allow.

    ``block_bytes`` is what one more block costs, in a draft model's pool too; ``asked_blocks`` the most
    that were asked for.
    """
    room = room_bytes(budget)
    fits = max(0, room // block_bytes)
    ranks = budget.rank_pool_blocks or (fits,)
    if ranks[0] != fits:
        message = (
            f"the pool was sized for {ranks[0]} blocks, expected {fits}: {budget.effective_fraction} of "
            f"{budget.fraction_of} leaves {room} bytes, and a block takes {block_bytes}"
        )
        yield _violation("budget-size", message)
    expected = min(asked_blocks, *ranks)
    if num_blocks != expected:
        message = (
            f"the pool has {num_blocks} blocks, expected {expected}: {asked_blocks} were asked for, and the "
            f"ranks' budgets hold {', '.join(map(str, ranks))}"
        )
        yield _violation("budget-size", message)


def pool_as_declared(
    budget: Budget, pools: Sequence[PoolSpec], draft_block_bytes: int = 0
) -> Iterator[Violation]:
    """Yield a budget for another pool than the declared ones, a draft model's included."""
    declared = sum(pool.pool_bytes + pool.num_blocks * draft_block_bytes for pool in pools)
    if budget.pool_bytes != declared:
        message = (
            f"the budget gives {budget.pool_bytes} bytes to the pool, the declared pools hold {declared}"
        )
        yield _violation("budget-pool", message)


def smallest_rank(budget: Budget, num_blocks: int) -> Iterator[Violation]:
    """Yield a pool that some rank cannot hold; formula ``N <= min over ranks`` (vllm, nano-vllm #187)."""
    for rank, blocks in enumerate(budget.rank_pool_blocks):
        if num_blocks > blocks:
            message = f"the pool has {num_blocks} blocks, rank {rank} holds {blocks}: all use the smallest"
            yield _violation("budget-ranks", message)


def ids_on_every_rank(ids: Sequence[int], budget: Budget) -> Iterator[Violation]:
    """Yield block ids that some rank lacks; formula ``id < min over ranks``."""
    if not budget.rank_pool_blocks:
        return
    smallest = min(budget.rank_pool_blocks)
    beyond = sorted(block for block in ids if block >= smallest)
    if beyond:
        message = (
            f"block {beyond[0]} was handed out ({len(beyond)} such), the smallest rank holds {smallest} "
            "blocks: ids beyond it are nowhere there"
        )
        yield _violation("budget-ids", message)


def same_start(first: Sequence[PoolSpec], second: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield pools that a second start on the same device made larger or smaller; formula ``N +- 0``."""
    for one, other in zip(first, second, strict=True):
        if one.num_blocks != other.num_blocks:
            message = f"{one.num_blocks} blocks at the first start, {other.num_blocks} at the second"
            yield Violation("budget-repeat", None, str(one.key), f"{message}, on the same device")


def neighbour_effect(
    alone: tuple[int, int], beside: tuple[int, int], fraction: float, fraction_of: str, block_bytes: int
) -> Iterator[Violation]:
    """Yield a pool that another process changed by more or less than the budget says.

    ``alone`` and ``beside`` are (neighbour's bytes, blocks). A fraction of ``total`` is attributed to the
    process and loses nothing; one of ``free`` loses ``fraction * change``, once, within a block
    (vllm-ascend #14274).
    """
    share = Fraction(fraction).limit_denominator(10_000) if fraction_of == "free" else Fraction(0)
    due = share * (beside[0] - alone[0])
    lost = (alone[1] - beside[1]) * block_bytes
    if abs(lost - due) >= (block_bytes if due else 1):
        message = (
            f"{beside[0] - alone[0]} bytes of a neighbour took {lost} bytes from the pool "
            f"({alone[1]} to {beside[1]} blocks), expected {floor(due)}: the fraction is of {fraction_of}"
        )
        yield _violation("budget-neighbour", message)
