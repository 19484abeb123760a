"""Whether every index stays in range (I16): elements of a pool, columns of a table, ids of blocks.

    (N * b) * stride < 2^(w - 1)              for indices of w bits, or refuse at the start
    columns >= ceil((Lmax + k) / b)           rounded up to the kernel's multiple
    0 <= id < N                               for every entry
    padding and null entries                  point to a block that is never given out

All violations are of the invariant ``range``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec


def largest_pool_blocks(elements_per_block: int, index_bits: int) -> int:
    """Return the most blocks whose elements a signed index of that width addresses.

    The end of the pool must be an index too: ``blocks * elements < 2^(w - 1)``.

    >>> largest_pool_blocks(65_536, 32), largest_pool_blocks(576 * 480, 32)
    (32767, 7767)
    """
    return ((1 << index_bits - 1) - 1) // elements_per_block


def index_range(spec: PoolSpec, element_bytes: int) -> Iterator[Violation]:
    """Yield when a pool has elements beyond the indices it declares (I16; vllm #1486, #47671).

    ``element_bytes`` is the width of one element of the cache; an index addresses one of them.
    """
    elements = spec.block_bytes // element_bytes
    limit = largest_pool_blocks(elements, spec.index_bits)
    if spec.num_blocks > limit:
        yield Violation(
            "range",
            None,
            str(spec.key),
            f"block {limit} of {spec.num_blocks} ends at element {(limit + 1) * elements}, beyond signed "
            f"{spec.index_bits}-bit indices: expected a refusal at the start, naming the limit of {limit} "
            "blocks",
        )


def table_columns(max_tokens: int, block_size: int, *, lookahead_tokens: int = 0, multiple: int = 1) -> int:
    """Return the columns that a table must have: ``ceil((Lmax + k) / b)``, up to a multiple.

    >>> table_columns(80_000, 128), table_columns(80_000, 128, lookahead_tokens=3, multiple=8)
    (625, 632)
    """
    columns = -(-(max_tokens + lookahead_tokens) // block_size)
    return -(-columns // multiple) * multiple


def reads_within_table(
    spec: PoolSpec, columns: int, lengths: Sequence[int], step: int | None = None
) -> Iterator[Violation]:
    """Yield lengths whose tokens a table of that many columns cannot address (vllm #53658)."""
    for row, length in enumerate(lengths):
        read = -(-length // spec.block_size)
        if read > columns:
            yield Violation(
                "range",
                step,
                str(spec.key),
                f"row {row} reads {length} tokens in {read} columns of {spec.block_size}, the table has "
                f"{columns}: it addresses {columns * spec.block_size} tokens",
            )


def table_ids(spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None) -> Iterator[Violation]:
    """Yield table entries that are no block of the pool, and tables that end before their sequence.

    Neither is checked by a kernel that is given the table (flash-attention #2711).
    """
    for row, request_id in enumerate(snapshot.request_ids):
        table, length = snapshot.table(row), int(snapshot.lengths[row])
        wrong = np.flatnonzero((table < 0) | (table >= spec.num_blocks))
        if len(wrong):
            entry = int(wrong[0])
            yield Violation(
                "range",
                step,
                str(spec.key),
                f"entry {entry} of {request_id} is block {int(table[entry])}, the pool has ids 0 to "
                f"{spec.num_blocks - 1}",
            )
        if length > len(table) * spec.block_size:
            yield Violation(
                "range",
                step,
                str(spec.key),
                f"{request_id} has {length} tokens and {len(table)} entries of {spec.block_size}: token "
                f"{len(table) * spec.block_size} is beyond its table",
            )


def null_ids_are_nobodys(
    spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None
) -> Iterator[Violation]:
    """Yield null ids that are not set apart, and null or padding ids that a sequence may come to own.

    What is read or written through a padded entry then lands in somebody's block (tt-metal #45193).
    """
    apart = set(snapshot.never_allocatable.tolist())
    for block in snapshot.null_ids.tolist():
        if block not in apart:
            yield Violation(
                "range",
                step,
                str(spec.key),
                f"null entries point to block {block}, which is not among the blocks never given out "
                f"({', '.join(map(str, sorted(apart))) or 'none'})",
            )
    owned = apart - set(snapshot.null_ids.tolist())
    for row, request_id in enumerate(snapshot.request_ids):
        taken = sorted(owned & set(snapshot.table(row).tolist()))
        if taken:
            yield Violation(
                "range",
                step,
                str(spec.key),
                f"{request_id} holds block {taken[0]}, which padding points to and nobody may own",
            )
