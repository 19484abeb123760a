"""Bytes of a page (I10): what an engine declares, against a count over the layout's own vectors.

    token   = sum over layers and streams of heads_rank * (dim * width + scale)
    page    = block_size * token, rounded up to the layout's alignment: the rest is pad
    tensors = num_blocks * page, on each rank

``heads_rank = max(1, ceil(H_kv / tp))``; a replicated stream is whole on every rank. Each stream has its own
width, and a scale of 4 bytes a head and token where the layout keeps scales. Nothing here asks the layout for
bytes: the formula stands on its own (TensorRT-LLM #15088, vllm #27185, transformers #48566).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.cache.layout import Layout
    from kvsuite.engine.snapshot import MemoryClaim, PoolSpec

INVARIANT = "bytes"
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
SCALE_BYTES = 4


def heads_on_rank(kv_heads: int, tp_size: int) -> int:
    """Return the heads of one rank: ``max(1, ceil(H_kv / tp))``, replicated once ranks outnumber heads.

    >>> [heads_on_rank(8, tp) for tp in (1, 4, 8, 32)]
    [8, 2, 1, 1]
    """
    return max(1, -(-kv_heads // tp_size))


def token_bytes(layout: Layout) -> int:
    """Return the bytes of one token on one rank, every layer and stream, scales included."""
    total = 0
    for stream in layout.streams:
        heads = stream.heads if stream.replicated else heads_on_rank(stream.heads, layout.tp_size)
        width = WIDTHS[(layout.dtype if stream.dtype is None else stream.dtype).value]
        total += heads * (stream.dim * width + (SCALE_BYTES if layout.scaled else 0))
    return layout.num_layers * total


def page_bytes(layout: Layout, block_size: int) -> int:
    """Return the bytes of one block on one rank, padding included."""
    unit = layout.block_alignment_bytes
    return -(-block_size * token_bytes(layout) // unit) * unit


def declared_pages(pools: Sequence[PoolSpec], layout: Layout) -> Iterator[Violation]:
    """Yield device pools whose declared bytes are not those of ``layout``.

    The groups of a rank together hold each layer once; a recurrent state is no part of the layout. A block
    is padded to the alignment, or to the largest page of its rank where all pages are made equal.
    """
    paged = [pool for pool in pools if pool.key.tier == "device" and pool.kind is not PoolKind.STATE]
    for rank in sorted({pool.key.rank for pool in paged}):
        of_rank = [pool for pool in paged if pool.key.rank == rank]
        declared, due = sum(pool.bytes_per_token for pool in of_rank), token_bytes(layout)
        if declared != due:
            parts = " + ".join(str(pool.bytes_per_token) for pool in of_rank)
            told = f"{parts} = {declared}" if len(of_rank) > 1 else parts
            yield Violation(
                INVARIANT,
                None,
                " and ".join(str(pool.key) for pool in of_rank),
                f"a token of {layout} is declared with {told} bytes, expected {due}",
            )
        natural = [_natural_page(pool, layout.block_alignment_bytes) for pool in of_rank]
        for pool, page in zip(of_rank, natural, strict=True):
            if pool.block_bytes not in {page, max(natural)}:
                yield Violation(
                    INVARIANT,
                    None,
                    str(pool.key),
                    f"a block of {pool.block_size} tokens of {pool.bytes_per_token} bytes is declared with "
                    f"{pool.pad_bytes_per_block} bytes of pad and {pool.block_bytes} in all, expected {page}",
                )


def tensor_bytes(claim: MemoryClaim, pools: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield when the pool's storages are not ``num_blocks * page`` of every declared pool.

    A storage counts once however often it is listed (vllm-ascend #3438: half the blocks for the same page).
    """
    storages = {s.data_pointer: s.nbytes for s in claim.storages if s.role == "pool"}
    held, due = sum(storages.values()), sum(pool.num_blocks * pool.block_bytes for pool in pools)
    if held != due:
        blocks = sum(pool.num_blocks for pool in pools)
        yield Violation(
            INVARIANT,
            None,
            " and ".join(str(pool.key) for pool in pools),
            f"the storages hold {held} bytes, {held // blocks} for each of {blocks} blocks; the declared "
            f"pages come to {due}",
        )


def shares_over_ranks(token_bytes_by_tp: Mapping[int, int], kv_heads: int) -> Iterator[Violation]:
    """Yield where twice the ranks do not halve a rank's bytes, as long as heads can be split, and keep
    them from then on; ``token_bytes_by_tp`` holds powers of two. Needs no layout at all."""
    for tp_size, narrow in sorted(token_bytes_by_tp.items()):
        wide = token_bytes_by_tp.get(tp_size // 2)
        if tp_size < 2 or wide is None:
            continue
        before, after = heads_on_rank(kv_heads, tp_size // 2), heads_on_rank(kv_heads, tp_size)
        if narrow * before != wide * after:
            yield Violation(
                INVARIANT,
                None,
                f"tp {tp_size}",
                f"{narrow} bytes a token, and {wide} at tp {tp_size // 2}; of {kv_heads} KV heads "
                f"a rank holds {after} after {before}: expected {wide * after // before} bytes",
            )


def tokens_double(pool_bytes: int, wide: PoolSpec, narrow: PoolSpec) -> Iterator[Violation]:
    """Yield when half the element width does not hold twice the tokens in the same bytes, up to one block."""
    before, after = (pool_bytes // pool.block_bytes * pool.block_size for pool in (wide, narrow))
    if abs(after - 2 * before) > narrow.block_size:
        yield Violation(
            INVARIANT,
            None,
            str(narrow.key),
            f"{pool_bytes} bytes hold {before} tokens, and {after} at half the element width: expected "
            f"{2 * before}, up to {narrow.block_size} more",
        )


def auxiliary_kept(wide_bytes: int, narrow_bytes: int, auxiliary_bytes: int) -> Iterator[Violation]:
    """Yield when half the element width does not leave a token's ``auxiliary_bytes`` (scales) as they are."""
    due = auxiliary_bytes + (wide_bytes - auxiliary_bytes) // 2
    if narrow_bytes != due:
        yield Violation(
            INVARIANT,
            None,
            "all groups",
            f"a token of {wide_bytes} bytes, {auxiliary_bytes} of them auxiliary, takes {narrow_bytes} at "
            f"half the element width, expected {due}",
        )


def slots_cost_the_same(pools: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield when a slot costs other bytes in another block size, padding apart."""
    if len({pool.bytes_per_token for pool in pools}) > 1:
        found = ", ".join(f"{pool.bytes_per_token} at {pool.block_size}" for pool in pools)
        yield Violation(INVARIANT, None, str(pools[0].key), f"a token takes {found} tokens a block")


def _natural_page(pool: PoolSpec, unit_bytes: int) -> int:
    return -(-pool.block_size * pool.bytes_per_token // unit_bytes) * unit_bytes
