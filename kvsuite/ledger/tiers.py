"""Laws of a host tier and of what moves between tiers (I15); numbers and names after the fault catalogue.

    pins       a transfer under way holds both its ends, once each; nothing else holds a block for it (I15)
    progress   a store into a tier with an unpinned copy makes room for itself (I9, per tier)
    reachable  whoever evicts one copy of a chain loses one block of hits, never the rest of the chain
    reset      after a reset nothing is cached in any tier (I3, per tier)
    promise    blocks told at a refusal = blocks taken later, loads included (I6)
    bytes      a tier's bytes <= what was asked for x (1 + eps)

Partition, recount and drain (I1 to I3) hold for each tier as they do for the device, and no count is ever
clamped: they are asked of every pool of a snapshot. A load that failed is no hit: content (I7) sees it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.contract import Transfer
    from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec


def pins(
    transfers: Sequence[Transfer],
    snapshots: Sequence[PoolSnapshot],
    step: int | None = None,
    *,
    steps_in_flight: bool = False,
) -> Iterator[Violation]:
    """Yield ends of ``transfers``, all of those under way, without a pin, and pins without a transfer.

    For each block: pins = transfers under way that read or write it. With ``steps_in_flight`` a launched
    step may pin more (TensorRT-LLM #12834, sglang #26728, LMCache #2847).
    """
    due: Counter[tuple[PoolKey, int]] = Counter()
    for transfer in transfers:
        due[transfer.source_pool, transfer.source] += 1
        due[transfer.target_pool, transfer.target] += 1
    for snapshot in snapshots:
        found = Counter(snapshot.pinned.tolist())
        wanted = {block: count for (key, block), count in due.items() if key == snapshot.key}
        for block in sorted(found.keys() | wanted.keys()):
            has, needs = found[block], wanted.get(block, 0)
            if has < needs or (has > needs and not steps_in_flight):
                yield Violation(
                    "pins",
                    step,
                    str(snapshot.key),
                    f"block {block} is pinned {has} times and is an end of {needs} transfers under way, "
                    "expected one pin each",
                )


def room_is_made(
    before: PoolSnapshot, offered_blocks: int, begun: Sequence[Transfer], step: int | None = None
) -> Iterator[Violation]:
    """Yield when fewer stores into a tier began than ``min(offered, free + cached)`` of it before.

    A full tier whose copies nobody reads evicts for what comes (Mooncake #2187).
    """
    room = len(before.free) + len(before.cached)
    stores = sum(transfer.target_pool == before.key for transfer in begun)
    if stores < min(offered_blocks, room):
        yield Violation(
            "progress",
            step,
            str(before.key),
            f"{stores} of {offered_blocks} offered blocks are being stored, {len(before.free)} were free and "
            f"{len(before.cached)} cached and unpinned: expected {min(offered_blocks, room)}",
        )


def reachable(
    chain_blocks: int, evicted_blocks: int, found_blocks: int, pool: PoolKey, step: int | None = None
) -> Iterator[Violation]:
    """Yield when a chain is found shorter than ``chain - evicted``: a copy whose parent is gone is lost too.

    Its last block goes first, wherever the others are (sglang #23537). Asked of a tier of copies only, which
    has no other purpose. Which idle blocks a device gives up first is a policy: losing the head costs hits
    and breaks no promise, since the rest can be hit again once it is recomputed; goldens tell such engines
    apart.
    """
    if found_blocks < chain_blocks - evicted_blocks:
        yield Violation(
            "reachable",
            step,
            str(pool),
            f"{found_blocks} blocks of a chain of {chain_blocks} are found after {evicted_blocks} evictions, "
            f"expected at least {chain_blocks - evicted_blocks}: evict a chain from its tail",
        )


def reset_empties(snapshots: Sequence[PoolSnapshot], step: int | None = None) -> Iterator[Violation]:
    """Yield tiers with cached blocks after a reset of the cache that was not refused."""
    for snapshot in snapshots:
        if len(snapshot.cached):
            yield Violation(
                "reset",
                step,
                str(snapshot.key),
                f"{len(snapshot.cached)} blocks are cached after the reset, block "
                f"{int(snapshot.cached[0])} the first of them; expected none in any tier",
            )


def told_is_taken(told_blocks: int, taken_blocks: int, pool: PoolKey, who: str) -> Iterator[Violation]:
    """Yield when a refused request was told another need than it took in the end (vllm #42085).

    Blocks that its loads took are among them: copies in another tier need room on the device.
    """
    if told_blocks != taken_blocks:
        message = f"{who} was told it needs {told_blocks} blocks and took {taken_blocks}, loads included"
        yield Violation("promise", None, str(pool), message)


def tier_bytes(spec: PoolSpec, requested_bytes: int, tolerance: float = 0.0) -> Iterator[Violation]:
    """Yield when a tier holds more than ``requested x (1 + eps)`` bytes.

    Pinned memory that is rounded up to a power of two does (vllm #48436): 64 GiB where 40 were asked for.
    """
    if spec.pool_bytes > requested_bytes * (1 + tolerance):
        message = f"the tier holds {spec.pool_bytes} bytes, {requested_bytes} were asked for"
        yield Violation("bytes", None, str(spec.key), message)
