"""Laws of physical placement (I17): scattered room is room, and only what nobody can use is waste.

    contiguity  paged: |F| x b >= need implies success; contiguous: the largest hole decides
    waste       operational waste = slack + over-reserved + pad + free bytes no queued request can use
    pinned      physical pages held <= ideal pages + one a layer
    capacity    only blocks that lie inside one page count

Formulas after the kind FRAG of the fault catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot, PoolSpec
    from kvsuite.ledger.admission import Offer

_MAY_REFUSE_WHAT_FITS = {RefusalReason.WATERMARK, RefusalReason.PROMISED, RefusalReason.LOADING}


def free_runs(free: Int32Array) -> Int64Array:
    """Return the lengths of the unbroken runs of free ids, lowest first, int64[runs].

    >>> free_runs(np.array([7, 0, 1, 3], np.int32))
    array([2, 1, 1])
    """
    ids = np.sort(free).astype(np.int64)
    if not len(ids):
        return ids
    ends = np.flatnonzero(np.diff(ids) != 1)
    return np.diff(np.concatenate([[-1], ends, [len(ids) - 1]]))


def largest_hole(free: Int32Array) -> int:
    """Return the blocks of the longest unbroken run of free ids."""
    return int(free_runs(free).max(initial=0))


def admits_what_fits(offer: Offer) -> Iterator[Violation]:
    """Yield a refusal for want of room where there is room.

    Paged: ``need <= |F| + |C| - idle hits`` must be admitted, wherever the blocks lie (llama.cpp #10873,
    #17982). Contiguous: a run of ``need`` slots must be taken where the largest hole holds it.
    """
    refusal = offer.admission.refusal
    if refusal is None or refusal.reason in _MAY_REFUSE_WHAT_FITS or offer.spec.kind is not PoolKind.FULL:
        return
    free = len(offer.before.free)
    if offer.spec.contiguous:
        hole = largest_hole(offer.before.free)
        if refusal.needed_blocks <= hole:
            said = f"was refused a run of {refusal.needed_blocks} slots beside a hole of {hole}"
            yield offer.violation("contiguity", f"{said} ({refusal.reason.value}): expected success")
        return
    # Without knowledge of hits the whole prompt is the most that it can need.
    if offer.needed_blocks <= offer.room_blocks - offer.idle_hits:
        yield offer.violation(
            "contiguity",
            f"was refused ({refusal.reason.value}) {offer.needed_blocks} blocks with {free} free in "
            f"{len(free_runs(offer.before.free))} runs and {len(offer.before.cached)} cached: "
            "expected success, any block serves",
        )


def grows_where_there_is_room(
    spec: PoolSpec, snapshot: PoolSnapshot, name: str, needed_blocks: int, step: int | None = None
) -> Iterator[Violation]:
    """Yield a refused extension of a paged pool that had the blocks: ``need <= |F| + |C|``."""
    free, cached = len(snapshot.free), len(snapshot.cached)
    if not spec.contiguous and needed_blocks <= free + cached:
        message = (
            f"{name} was refused {needed_blocks} blocks more with {free} free and {cached} cached: "
            "expected success, any block serves"
        )
        yield Violation("contiguity", step, str(spec.key), message)


def wasted_bytes(spec: PoolSpec, snapshot: PoolSnapshot, queued_tokens: Sequence[int]) -> int:
    """Return the operational waste of a pool, from a full snapshot and what the queue has declared.

    ``slack + over-reserved + pad + free bytes that no queued declared request can use``. With nobody in the
    queue no free byte is missed. A paged pool can use every free block for a request that fits it; of a
    contiguous one only the holes that are long enough for some request count as usable.
    """
    filled = np.zeros(spec.num_blocks, np.int64)
    held = np.zeros(spec.num_blocks, np.bool_)
    for row, length in zip(snapshot.table_rows.tolist(), snapshot.lengths.tolist(), strict=True):
        blocks = snapshot.table(row).astype(np.int64)
        fill = np.clip(length - np.arange(len(blocks)) * spec.block_size, 0, spec.block_size)
        owned = ~np.isin(blocks, snapshot.null_ids)
        np.maximum.at(filled, blocks[owned], fill[owned])
        held[blocks[owned]] = True
    empty_slots = int((spec.block_size - filled)[held].sum())
    unusable_slots = unusable_blocks(spec, snapshot, queued_tokens) * spec.block_size
    pad_bytes = spec.num_blocks * spec.pad_bytes_per_block
    return (empty_slots + unusable_slots) * spec.bytes_per_token + pad_bytes


def unusable_blocks(spec: PoolSpec, snapshot: PoolSnapshot, queued_tokens: Sequence[int]) -> int:
    """Return the free blocks that no queued request can use; 0 where nobody waits."""
    if not len(queued_tokens):
        return 0
    smallest = min(-(-tokens // spec.block_size) for tokens in queued_tokens)
    if spec.contiguous:
        runs = free_runs(snapshot.free)
        return int(runs[runs < smallest].sum())
    room = len(snapshot.free) + len(snapshot.cached)
    return 0 if smallest <= room else len(snapshot.free)


def waste_told(
    spec: PoolSpec, snapshot: PoolSnapshot, queued_tokens: Sequence[int], told_bytes: int, teller: str
) -> Iterator[Violation]:
    """Yield a figure of waste that is not `wasted_bytes`."""
    due = wasted_bytes(spec, snapshot, queued_tokens)
    if told_bytes != due:
        message = (
            f"{teller} calls {told_bytes} bytes wasted with {len(snapshot.free)} blocks free in "
            f"{len(free_runs(snapshot.free))} runs, expected {due}: a scattered free block is no waste where "
            "any free block serves"
        )
        yield Violation("waste", None, str(spec.key), message)


def hole_waste_bytes(spec: PoolSpec, snapshot: PoolSnapshot, queued_tokens: Sequence[int]) -> int:
    """Return what a dashboard shows that calls every free block outside the largest run wasted.

    The run is the engine's own where it reports one. Kept as a rejected control, see `waste_told`.
    """
    run = snapshot.largest_free_run
    outside = len(snapshot.free) - (largest_hole(snapshot.free) if run is None else run)
    missed = unusable_blocks(spec, snapshot, queued_tokens)
    return wasted_bytes(spec, snapshot, queued_tokens) + (outside - missed) * spec.block_size * (
        spec.bytes_per_token
    )


def run_claimed(spec: PoolSpec, snapshot: PoolSnapshot) -> Iterator[Violation]:
    """Yield a claimed longest hole that is not one: a paged pool has none to claim.

    Whoever reports one says that the other free blocks are out of reach.
    """
    claimed = snapshot.largest_free_run
    if claimed is None:
        return
    if not spec.contiguous and claimed < len(snapshot.free):
        message = (
            f"{claimed} of {len(snapshot.free)} free blocks are said to be in reach, expected all: any free "
            "block serves"
        )
        yield Violation("waste", None, str(spec.key), message)
    elif spec.contiguous and claimed != largest_hole(snapshot.free):
        message = (
            f"a largest hole of {claimed} slots is claimed, the free ids show {largest_hole(snapshot.free)}"
        )
        yield Violation("contiguity", None, str(spec.key), message)


def pages_of(blocks: Int32Array, blocks_per_page: int) -> int:
    """Return how many physical pages hold at least one of ``blocks``.

    >>> pages_of(np.array([0, 1, 2, 9], np.int32), 4)
    2
    """
    return len(np.unique(blocks // blocks_per_page))


def pinned_pages(
    spec: PoolSpec, held: Int32Array, blocks_per_page: int, layers: int = 1, cap_blocks: int | None = None
) -> Iterator[Violation]:
    """Yield when the pages that ``held`` blocks pin exceed the ideal by more than one page a layer.

    ``held`` are the live and cached blocks, ideal is ``ceil(|held| / blocks per page)``, or of the cap where
    one was set; after full eviction nothing but that one page a layer is left (kvcached #359).
    """
    pinned = pages_of(held, blocks_per_page)
    wanted = len(held) if cap_blocks is None else cap_blocks
    ideal = -(-wanted // blocks_per_page)
    if pinned > ideal + layers:
        message = (
            f"{len(held)} blocks pin {pinned} pages of {blocks_per_page} blocks, expected at most "
            f"{ideal} + {layers} for {wanted} blocks"
        )
        yield Violation("pinned", None, str(spec.key), message)


def blocks_inside_pages(page_bytes: int, block_bytes: int, num_pages: int) -> tuple[int, ...]:
    """Return the ids of blocks, laid end to end over all pages, that lie inside one page.

    A block that straddles a border can be mapped with neither page (kvcached #452).

    >>> blocks_inside_pages(page_bytes=2048, block_bytes=1536, num_pages=3)
    (0, 3)
    """
    ids = range(page_bytes * num_pages // block_bytes)
    return tuple(
        block
        for block in ids
        if block * block_bytes // page_bytes == ((block + 1) * block_bytes - 1) // page_bytes
    )


def capacity_in_pages(
    claimed_blocks: int, page_bytes: int, block_bytes: int, num_pages: int, pool: str
) -> Iterator[Violation]:
    """Yield a capacity that counts blocks which belong to no page, or misses some that do."""
    inside = blocks_inside_pages(page_bytes, block_bytes, num_pages)
    if claimed_blocks != len(inside):
        message = (
            f"{claimed_blocks} blocks of {block_bytes} bytes are counted in {num_pages} pages of "
            f"{page_bytes}, expected {len(inside)}: ids {', '.join(map(str, inside)) or 'none'} lie inside "
            "one page"
        )
        yield Violation("capacity", None, pool, message)
