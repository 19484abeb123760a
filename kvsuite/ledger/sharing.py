"""Forks and bursts: who holds a block, what a step must copy, and what is left of the saving.

With ``m`` children forked at ``n`` tokens in blocks of ``b``, all ``m + 1`` writing one token::

    blocks before     floor(n / b) + (1 if n mod b else 0)
    blocks after      floor(n / b) + m + 1
    demand            their difference: m, or m + 1 where n mod b = 0
    net               m * floor(n / b) * b slots stay shared, m * (n mod b) tokens are copied

Laws (numbers as in `kvsuite.ledger.invariants`): a block counts once a holder, however often a table names
it (I2); growth is granted exactly where its demand fits (I6); full blocks are never copied; the order in
which a family ends makes no difference, nor does a child that came and went.
Sources: vllm #1556, #787, tvm #16666, #17045, TensorRT-LLM #19527.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class Demand:
    """Blocks that a step must take, worked out before any table changes."""

    new_blocks: int
    """For tokens that cross into a further block."""
    copies: int
    """For writes into part-full blocks that somebody else holds too."""

    @property
    def blocks(self) -> int:
        """Both together."""
        return self.new_blocks + self.copies


@dataclass(frozen=True, slots=True)
class Rest:
    """Which blocks are free and which cached, as sets: order is the engine's own affair."""

    free: frozenset[int]
    cached: frozenset[int]

    @classmethod
    def of(cls, snapshot: PoolSnapshot) -> Rest:
        """Return what rests in a full snapshot."""
        return cls(frozenset(snapshot.free.tolist()), frozenset(snapshot.cached.tolist()))


def available_blocks(snapshot: PoolSnapshot) -> int:
    """Return |F| + |C|: free blocks, and cached ones that nobody holds."""
    return len(snapshot.free) + len(snapshot.cached)


def tables_of(snapshot: PoolSnapshot) -> dict[RequestId, list[int]]:
    """Return the table of each live sequence of a full snapshot."""
    return {name: snapshot.table(row).tolist() for row, name in enumerate(snapshot.request_ids)}


def claimed_counts(snapshot: PoolSnapshot) -> dict[int, int] | None:
    """Return the reference counts that a full snapshot claims, ``None`` where it shows none."""
    if snapshot.ref_count_ids is None or snapshot.ref_counts is None:
        return None
    return dict(sorted(zip(snapshot.ref_count_ids.tolist(), snapshot.ref_counts.tolist(), strict=True)))


def holder_counts(tables: Iterable[Collection[int]]) -> dict[int, int]:
    """Return ``ref(x) = #{h : x in set(T(h))}`` of each block in a table: per holder, not per entry.

    >>> holder_counts([[0, 1, 0], [0, 1, 0]])          # a ring of two blocks, and its fork
    {0: 2, 1: 2}
    """
    return dict(sorted(Counter(block for table in tables for block in set(table)).items()))


def step_demand(pool: PoolSpec, snapshot: PoolSnapshot, growth_tokens: Mapping[RequestId, int]) -> Demand:
    """Return what a step takes in which each sequence of ``growth_tokens`` writes so many tokens, 1 or more.

    ``new = sum of max(0, ceil((n + t) / b) - entries)`` and ``copies = sum over shared part-full blocks x of
    min(writers(x), ref(x) - 1)``: the last writer of ``x`` keeps it where nobody else holds it any more. In a
    `PoolKind.STATE` pool nothing is new, and every write is into the one block.
    """
    size, state = pool.block_size, pool.kind is PoolKind.STATE
    tables = tables_of(snapshot)
    holders = holder_counts(tables.values())
    writers: Counter[int] = Counter()
    new = 0
    for name, length in zip(snapshot.request_ids, snapshot.lengths.tolist(), strict=True):
        tokens = growth_tokens.get(name, 0)
        if tokens and not state:
            new += max(0, -(-(length + tokens) // size) - len(tables[name]))
        if tokens and (state or length % size):
            writers[tables[name][0 if state else length // size]] += 1
    return Demand(new, sum(min(count, holders[block] - 1) for block, count in writers.items()))


def burst_demand(children: int, tokens: int, block_size: int) -> int:
    """Return the blocks that ``children`` forked at ``tokens`` and their parent take when all of them write.

    >>> burst_demand(7, 33, 16), burst_demand(7, 32, 16)
    (7, 8)
    """
    return children + (tokens % block_size == 0)


def largest_burst(available: int, tokens: int, block_size: int) -> int:
    """Return the most children at ``tokens`` whose burst ``available`` blocks bear.

    >>> largest_burst(10, 33, 16), largest_burst(10, 32, 16)
    (10, 9)
    """
    return max(0, available - (tokens % block_size == 0))


def family_blocks(children: int, tokens: int, block_size: int) -> tuple[int, int]:
    """Return the unique blocks of a family of ``children`` + 1 before and after all have written one token.

    >>> family_blocks(2, 33, 16), family_blocks(2, 32, 16)
    ((3, 5), (2, 5))
    """
    full, tail = divmod(tokens, block_size)
    return full + (tail > 0), full + children + 1


def family_net_tokens(children: int, tokens: int, block_size: int) -> int:
    """Return slots still shared after the burst minus tokens copied in it; below zero where it cost more.

    >>> family_net_tokens(7, 33, 16), family_net_tokens(7, 15, 16)
    (217, -105)
    """
    full, tail = divmod(tokens, block_size)
    return children * (full * block_size - tail)


@dataclass(frozen=True, slots=True)
class PoolStep:
    """One pool before and after the growth of a step: what was to be had, what is left, what was needed."""

    pool: PoolKey
    had_blocks: int
    left_blocks: int
    demand: Demand


def growth_answered(pools: Sequence[PoolStep], granted: Sequence[bool], step: int) -> Iterator[Violation]:
    """Yield where growth was not granted exactly when ``demand <= |F| + |C|``, or took anything else.

    ``granted`` holds the answer to each sequence of the step; it is granted where every pool bears it.
    """
    fits = all(line.demand.blocks <= line.had_blocks for line in pools)
    for line in pools:
        demand, taken = line.demand, line.had_blocks - line.left_blocks
        asked = f"{len(granted)} writers need {demand.new_blocks} new blocks and {demand.copies} copies"
        if all(granted) != fits:
            answer = f"{sum(granted)} of them were granted with {line.had_blocks} blocks to be had"
            expected = "all to be" if fits else "a refusal"
            yield Violation("demand", step, str(line.pool), f"{asked}; {answer}, expected {expected}")
        elif fits and taken != demand.blocks:
            message = f"{asked} and took {taken} blocks, expected {demand.blocks}"
            yield Violation("demand", step, str(line.pool), message)


def fork_answered(
    pool: PoolKey, snapshot: PoolSnapshot, tokens: int, block_size: int, granted: bool, step: int
) -> Iterator[Violation]:
    """Yield a fork at ``tokens`` that a pool with room refused: it needs no block, or one for a copy."""
    had = available_blocks(snapshot)
    if not granted and had >= (tokens % block_size > 0):
        message = f"a fork at {tokens} tokens was refused with {had} blocks to be had, expected to be granted"
        yield Violation("demand", step, str(pool), message)


def full_blocks_shared(
    pool: PoolSpec, tables: Mapping[RequestId, Sequence[int]], forked_at: int, step: int
) -> Iterator[Violation]:
    """Yield full blocks of the fork point that a family no longer shares: nobody writes them again.

    A `PoolKind.STATE` pool has none: every token rewrites the state.
    """
    full = 0 if pool.kind is PoolKind.STATE else forked_at // pool.block_size
    for entry in range(full):
        blocks = {name: table[entry] for name, table in tables.items()}
        if len(set(blocks.values())) > 1:
            message = (
                f"entry {entry} of a family forked at {forked_at} tokens is {dict(blocks)}, expected one "
                f"block for all: it was full, and full blocks are not copied"
            )
            yield Violation("sharing", step, str(pool.key), message)


def removal_orders_agree(
    pool: PoolKey, ends: Mapping[tuple[str, ...], Rest], step: int
) -> Iterator[Violation]:
    """Yield each order of removal whose end is not that of the first one (I3 over permutations)."""
    first, *others = ends
    for order in others:
        if ends[order] != ends[first]:
            message = (
                f"removed as {', '.join(order)}: {_rest(ends[order])}; "
                f"as {', '.join(first)}: {_rest(ends[first])}; expected the same"
            )
            yield Violation("commute", step, str(pool), message)


def fork_undone(pool: PoolKey, before: PoolSnapshot, after: PoolSnapshot, step: int) -> Iterator[Violation]:
    """Yield what a child left behind that was forked and let go: nothing is expected."""
    if tables_of(before) != tables_of(after):
        yield Violation("undone", step, str(pool), "tables differ after a child came and went")
    if Rest.of(before) != Rest.of(after):
        message = f"{_rest(Rest.of(before))} before a child came and went, {_rest(Rest.of(after))} after it"
        yield Violation("undone", step, str(pool), message)
    if claimed_counts(before) != claimed_counts(after):
        message = (
            f"reference counts {claimed_counts(before)} became {claimed_counts(after)} by a child that went"
        )
        yield Violation("undone", step, str(pool), message)


def _rest(rest: Rest) -> str:
    return f"{len(rest.free)} blocks free, {len(rest.cached)} cached"
