from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.device import residency
from kvsuite.device.residency import ResidentBlocks, runs


def ids(*blocks: int) -> residency.Int64Array:
    return np.array(blocks, np.int64)


def test_doctests_hold() -> None:
    assert doctest.testmod(residency).failed == 0


def test_blocks_of_a_page_and_a_half_share_pages() -> None:
    """Four blocks of 6144 bytes: block 0 needs pages 0-1, block 1 pages 1-2, block 2 pages 3-4."""
    resident = ResidentBlocks(4, block_bytes=6144, page_bytes=4096)
    assert resident.take(ids(0)).tolist() == [0, 1]
    assert resident.take(ids(1)).tolist() == [2]
    assert resident.take(ids(2, 1)).tolist() == [3, 4]
    assert resident.expected_committed_bytes == 5 * 4096
    assert resident.keep(ids(1, 2)).tolist() == [0]
    assert resident.keep(ids(2)).tolist() == [1, 2]
    assert resident.num_blocks == 1
    assert resident.expected_committed_bytes == 2 * 4096


def test_whole_pages_come_to_blocks_times_block_bytes() -> None:
    resident = ResidentBlocks(100, block_bytes=3 * 4096, page_bytes=4096)
    resident.take(ids(7, 99, 7, 0))
    assert resident.expected_committed_bytes == 3 * (3 * 4096)
    resident.keep(ids(99, 50))
    assert resident.expected_committed_bytes == 3 * 4096


@pytest.mark.parametrize(
    ("pages", "expected"), [([], []), ([5], [(5, 1)]), ([0, 1, 4, 6, 7, 8], [(0, 2), (4, 1), (6, 3)])]
)
def test_runs_of_pages(pages: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(ids(*pages))) == expected


BLOCKS = st.lists(st.integers(0, 11), max_size=12)


@given(
    block_bytes=st.integers(1, 40),
    page_bytes=st.sampled_from([1, 8, 16]),
    moves=st.lists(st.tuples(st.booleans(), BLOCKS), max_size=8),
)
def test_pages_are_those_of_a_byte_by_byte_count(
    block_bytes: int, page_bytes: int, moves: list[tuple[bool, list[int]]]
) -> None:
    resident = ResidentBlocks(12, block_bytes, page_bytes)
    blocks: set[int] = set()
    needed: set[int] = set()
    for takes, chosen in moves:
        before = needed
        blocks = blocks | set(chosen) if takes else blocks & set(chosen)
        needed = {
            byte // page_bytes
            for block in blocks
            for byte in range(block * block_bytes, (block + 1) * block_bytes)
        }
        changed = resident.take(ids(*chosen)) if takes else resident.keep(ids(*chosen))
        assert set(changed.tolist()) == before ^ needed
        assert resident.num_blocks == len(blocks)
        assert resident.expected_committed_bytes == len(needed) * page_bytes
