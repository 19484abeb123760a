"""What an engine reports to whoever watches it, held against its blocks (I14).

    used = (|L| + |Q|) / usable     cached = |C| / usable     free = |F| / usable

Each share lies in 0..1 and they add up to 1; an idle pool reads 0 used, full of cached blocks or not. Prefix
hits count at first admissions only. A capacity is a whole number of blocks, and the one a search finds.

L is counted from tables and never from the engine's own counters. Source: the fault catalogue, GAUGE, after
imp #1115, vllm #25780, #40694, #45737, #51041 and TensorRT-LLM #224.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.snapshot import Gauges, PoolSnapshot, PoolSpec

TOLERANCE = 1e-6
"""What a share may be off by: it may have been kept in single precision."""


def block_shares(spec: PoolSpec, snapshot: PoolSnapshot) -> dict[str, int]:
    """Return how many blocks each share stands for, from a full snapshot: tables and lists, ids once."""
    live = np.setdiff1d(snapshot.table_blocks, np.union1d(snapshot.null_ids, snapshot.never_allocatable))
    return {
        "used": len(np.union1d(live, snapshot.quarantined)),
        "cached": len(np.unique(snapshot.cached)),
        "free": len(np.unique(snapshot.free)),
    }


def gauge_range(gauges: Gauges, step: int | None = None) -> Iterator[Violation]:
    """Yield shares outside 0..1; formula ``0 <= share <= 1``."""
    for name in ("used", "cached", "free"):
        share = getattr(gauges, name)
        if not -TOLERANCE <= share <= 1 + TOLERANCE:
            yield Violation(
                "gauge-range", step, str(gauges.key), f"{name} reads {share:.4f}, expected 0 to 1"
            )


def gauge_sum(gauges: Gauges, step: int | None = None) -> Iterator[Violation]:
    """Yield shares that are not the whole pool; formula ``used + cached + free = 1``."""
    total = gauges.used + gauges.cached + gauges.free
    if abs(total - 1) > TOLERANCE:
        message = (
            f"used {gauges.used:.4f} + cached {gauges.cached:.4f} + free {gauges.free:.4f} = {total:.4f}, "
            "expected 1"
        )
        yield Violation("gauge-sum", step, str(gauges.key), message)


def gauge_shares(
    gauges: Gauges, spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None
) -> Iterator[Violation]:
    """Yield shares that are not their blocks over the usable ones.

    Named ``gauge-used``, ``gauge-cached`` and ``gauge-free``; the snapshot is a full one.
    """
    usable = spec.usable_blocks
    for name, blocks in block_shares(spec, snapshot).items():
        share = getattr(gauges, name)
        if abs(share - blocks / usable) > TOLERANCE:
            due = f"{blocks} of {usable} usable blocks = {blocks / usable:.4f}"
            message = f"{name} reads {share:.4f}, expected {due}"
            yield Violation(f"gauge-{name}", step, str(spec.key), message)


def gauge_idle(gauges: Gauges, snapshot: PoolSnapshot, step: int | None = None) -> Iterator[Violation]:
    """Yield an idle pool that reads as in use; formula ``no sequence, nothing quarantined -> used = 0``."""
    if not snapshot.request_ids and not len(snapshot.quarantined) and gauges.used > TOLERANCE:
        message = (
            f"used reads {gauges.used:.4f} with nothing running, expected 0: {len(snapshot.cached)} blocks "
            "are cached, which is room and no use"
        )
        yield Violation("gauge-idle", step, str(gauges.key), message)


def gauge_hits(gauges: Gauges, first_hits: int, step: int | None = None) -> Iterator[Violation]:
    """Yield a hit count that is not the tokens found at first admissions.

    What a resumed sequence finds of its own was computed before and saves nobody work (vllm #25780).
    """
    if gauges.hit_tokens != first_hits:
        message = f"{gauges.hit_tokens} hit tokens, expected {first_hits}, found at first admissions"
        yield Violation("gauge-hits", step, str(gauges.key), message)


def gauge_capacity(gauges: Gauges, spec: PoolSpec, found_tokens: int) -> Iterator[Violation]:
    """Yield a capacity in tokens that is no whole number of blocks, or not what a search finds.

    ``gauge-whole-blocks``: ``tokens mod b = 0``. ``gauge-capacity``: equal to ``found_tokens``, the longest
    single sequence that the empty pool took, rounded up to whole blocks.
    """
    claimed, size = gauges.capacity_tokens, spec.block_size
    if claimed % size:
        message = f"a capacity of {claimed} tokens is no multiple of the block size {size}"
        yield Violation("gauge-whole-blocks", None, str(gauges.key), message)
    found = -(-found_tokens // size) * size
    if claimed != found:
        message = f"a capacity of {claimed} tokens is claimed, expected {found}: the longest that went in"
        yield Violation("gauge-capacity", None, str(gauges.key), message)


def longest(takes: Callable[[int], bool], limit: int) -> int:
    """Return, by bisection, the largest number up to ``limit`` that ``takes`` accepts; 0: none.

    ``takes`` accepts every number below one that it accepts.

    >>> longest(lambda tokens: -(-tokens // 16) <= 5, 1000)
    80
    """
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return low


def fixed_and_rate(first: tuple[int, int], second: tuple[int, int]) -> tuple[float, float]:
    """Return ``a`` bytes and ``c`` bytes a token of ``bytes = a + c * n`` through two (n, bytes) points.

    Bytes over tokens are no rate where ``a`` is not 0 (vllm #51041).

    >>> fixed_and_rate((100, 1700), (300, 3100))
    (1000.0, 7.0)
    """
    (few, small), (many, large) = first, second
    rate = (large - small) / (many - few)
    return small - rate * few, rate
