from __future__ import annotations

import numpy as np
import pytest

from kvsuite.ledger.row import ABSENT
from kvsuite.record.schema import LedgerLine, PoolFacts
from kvsuite.record.thin import bucket_ends, coarser, rows_per_bucket, thinned, with_nulls

COLUMNS = ["payload", "freed"]


def table(*rows: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(rows, np.int64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("rows", "most", "size"), [(0, 3, 1), (5, 5, 1), (6, 5, 2), (10, 6, 3), (1502, 1500, 2)]
)
def test_buckets_are_no_larger_than_they_must_be(rows: int, most: int, size: int) -> None:
    assert rows_per_bucket(rows, most) == size


def test_buckets_end_regularly_at_the_peak_and_at_the_last_row() -> None:
    rows = table(*[(1 if k != 4 else 9, 0) for k in range(10)])
    assert bucket_ends(rows, COLUMNS, 6).tolist() == [2, 4, 5, 8, 9]
    assert bucket_ends(table(), COLUMNS, 6).tolist() == []
    assert bucket_ends(rows[:, 1:], COLUMNS[1:], 6).tolist() == [2, 5, 8, 9]


def test_a_bucket_with_an_event_that_was_not_seen_has_no_sum() -> None:
    rows = table((1, 2), (ABSENT, 3), (5, ABSENT), (6, 7))
    kept = thinned(rows, COLUMNS, np.array([1, 3]))
    assert with_nulls(kept) == [[None, 5], [6, None]]


def test_a_coarser_ledger_keeps_what_was_taken_over_every_step() -> None:
    pool = PoolFacts(
        key="device/g0/r0",
        num_blocks=1,
        block_size=1,
        bytes_per_token=1,
        block_bytes=1,
        pad_bytes_per_block=0,
        never_allocatable_blocks=0,
        pool_bytes=1,
        contiguous=False,
    )
    line = LedgerLine(
        ref="L",
        case="c",
        engine="e",
        trace="t",
        pool=pool,
        recipe={},
        steps_total=16,
        first_step=0,
        last_step=15,
        step_us=1,
        steps_per_row=2,
        columns=COLUMNS,
        steps=[1, 3, 5, 7, 9, 11, 13, 15],
        rows=[[1, 1], [2, 1], [3, 1], [7, None], [4, 1], [3, 1], [2, 1], [1, 1]],
        totals={"freed": None},
        peaks={"payload": 7},
        means={},
        closing_gap_bytes=0,
    )
    short = coarser(line, 5)

    assert short.steps == [5, 7, 11, 15]
    assert short.rows == [[3, 3], [7, None], [3, 2], [1, 2]]
    assert short.steps_per_row == 2 * 3
    assert (short.peaks, short.totals, short.steps_total) == (line.peaks, line.totals, 16)
    assert coarser(line, 8) is line
