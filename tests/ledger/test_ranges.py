"""Index ranges, table widths, ids and padding: right values by hand, and each law broken once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger.ranges import (
    index_range,
    largest_pool_blocks,
    null_ids_are_nobodys,
    reads_within_table,
    table_columns,
    table_ids,
)
from kvsuite.trace.model import RequestId

POOL = PoolSpec(PoolKey(), 4, 256, 1)


def shot_of(
    length: int, *table: int, never: tuple[int, ...] = (), null: tuple[int, ...] = ()
) -> PoolSnapshot:
    none = np.zeros(0, np.int32)
    return PoolSnapshot(
        key=POOL.key,
        revision=1,
        since=None,
        request_ids=(RequestId("a"),),
        lengths=np.array([length], np.int64),
        table_rows=np.array([0], np.int32),
        table_offsets=np.array([0, len(table)], np.int64),
        table_blocks=np.array(table, np.int32),
        free=none,
        cached=none,
        never_allocatable=np.array(never, np.int32),
        null_ids=np.array(null, np.int32),
    )


@pytest.mark.parametrize(
    ("elements", "bits", "blocks"),
    [
        (65_536, 32, 32_767),
        (576 * 480, 32, 7_767),
        (1_039_680, 32, 2_065),
        (576, 32, 3_728_270),
        (65_536, 64, 140_737_488_355_327),
        (128, 16, 255),
    ],
)
def test_the_largest_pool_that_an_index_addresses(elements: int, bits: int, blocks: int) -> None:
    assert largest_pool_blocks(elements, bits) == blocks
    assert blocks * elements < 2 ** (bits - 1) <= (blocks + 1) * elements


def test_a_pool_beyond_its_indices_is_named_with_the_limit() -> None:
    """Blocks of 256 two-byte tokens: 128 elements each at 4 bytes, and 16-bit indices end at block 255."""
    pool = PoolSpec(PoolKey(), 255, 256, 2, index_bits=16)
    assert not list(index_range(pool, 4))
    (found,) = index_range(replace(pool, num_blocks=256), 4)
    assert found.invariant == "range"
    assert "block 255 of 256 ends at element 32768, beyond signed 16-bit" in found.message
    assert "the limit of 255 blocks" in found.message
    assert not list(index_range(replace(pool, num_blocks=256, index_bits=32), 4))


@pytest.mark.parametrize(
    ("longest", "size", "ahead", "multiple", "columns"),
    [
        (80_000, 128, 0, 1, 625),
        (80_000, 128, 3, 1, 626),
        (1_024, 16, 0, 1, 64),
        (131_072, 16, 0, 8, 8_192),
        (131_072, 48, 5, 8, 2_736),
        (4_097, 256, 0, 4, 20),
        (1, 256, 0, 1, 1),
    ],
)
def test_columns_of_a_table(longest: int, size: int, ahead: int, multiple: int, columns: int) -> None:
    assert table_columns(longest, size, lookahead_tokens=ahead, multiple=multiple) == columns


def test_a_length_beyond_the_columns_is_named_by_row() -> None:
    pool = PoolSpec(PoolKey(), 80, 16, 1)
    assert not list(reads_within_table(pool, 64, [0, 1, 1_024]))
    (found,) = reads_within_table(pool, 64, [1_024, 1_025], step=3)
    assert (found.invariant, found.step) == ("range", 3)
    assert found.message == (
        "row 1 reads 1025 tokens in 65 columns of 16, the table has 64: it addresses 1024 tokens"
    )


def test_ids_end_at_the_pool_and_tables_at_their_sequence() -> None:
    assert not list(table_ids(POOL, shot_of(1_024, 0, 1, 2, 3)))
    for block in (4, -1):
        (wrong,) = table_ids(POOL, shot_of(512, 0, block))
        assert f"entry 1 of a is block {block}, the pool has ids 0 to 3" in wrong.message
    (short,) = table_ids(POOL, shot_of(1_025, 0, 1, 2, 3))
    assert "token 1024 is beyond its table" in short.message


def test_null_and_padding_ids_are_nobodys() -> None:
    assert not list(null_ids_are_nobodys(POOL, shot_of(512, 0, 2, never=(0,), null=(0,))))
    assert not list(null_ids_are_nobodys(POOL, shot_of(512, 1, 2, never=(0,))))
    assert not list(null_ids_are_nobodys(POOL, shot_of(512, 1, 2)))
    (loose,) = null_ids_are_nobodys(POOL, shot_of(512, 0, 2, null=(0,)))
    assert "null entries point to block 0" in loose.message
    (owned,) = null_ids_are_nobodys(POOL, shot_of(512, 0, 2, never=(0,)))
    assert owned.message == "a holds block 0, which padding points to and nobody may own"
