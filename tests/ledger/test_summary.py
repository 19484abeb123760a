"""A summary holds every step in its totals and extremes, whatever the number of buckets."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, INDEX
from kvsuite.ledger.summary import LedgerSummary, SummaryBuilder, summary_of
from kvsuite.ledger.timeline import PoolTimeline

SPEC = PoolSpec(key=PoolKey(), num_blocks=8, block_size=16, bytes_per_token=2)
PAYLOAD, SLACK, WRITTEN = (INDEX[name] for name in ("payload", "slack", "written"))


def rows_of(*payloads: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    rows = np.zeros((len(payloads), len(COLUMN_NAMES)), np.int64)
    rows[:, PAYLOAD] = payloads
    rows[:, WRITTEN] = 1
    return rows


def summed(payloads: list[int], max_buckets: int, cuts: list[int]) -> LedgerSummary:
    """Sum up rows that come in parts of the lengths ``cuts``, and the rest."""
    builder = SummaryBuilder(SPEC, max_buckets)
    rows, steps = rows_of(*payloads), np.arange(len(payloads)) * 3
    done = 0
    for cut in [*cuts, len(payloads)]:
        builder.add(np.column_stack([steps, rows])[done : done + cut])
        done += cut
    return builder.finish()


def test_seven_rows_in_four_buckets() -> None:
    summary = summed([5, 9, 2, 4, 1, 8, 6], 4, [])
    assert (summary.num_steps, summary.first_step, summary.last_step) == (7, 0, 18)
    assert (summary.total("payload"), summary.peak("payload"), summary.low("payload")) == (35, 9, 1)
    assert summary.total("written") == 7
    buckets = summary.buckets
    assert buckets.rows_per_bucket == 2
    assert buckets.steps.tolist() == [3, 9, 15, 18]
    assert buckets.low[:, PAYLOAD].tolist() == [5, 2, 1, 6]
    assert buckets.high[:, PAYLOAD].tolist() == [9, 4, 8, 6]
    assert buckets.last[:, PAYLOAD].tolist() == [9, 4, 8, 6]
    assert buckets.total[:, WRITTEN].tolist() == [2, 2, 2, 1]


def test_an_odd_number_of_buckets_is_joined_too() -> None:
    buckets = summed([1, 2, 3, 4], 3, []).buckets
    assert buckets.rows_per_bucket == 2
    assert buckets.total[:, PAYLOAD].tolist() == [3, 7]
    assert buckets.steps.tolist() == [3, 9]


def test_the_digest_is_that_of_steps_and_rows() -> None:
    values = [0, *rows_of(5)[0].tolist(), 3, *rows_of(9)[0].tolist()]
    expected = hashlib.blake2b(struct.pack(f"<{len(values)}q", *values), digest_size=16).hexdigest()
    assert summed([5, 9], 4, []).digest == expected


def test_one_other_value_or_order_is_another_digest() -> None:
    digests = {summed(payloads, 4, []).digest for payloads in ([5, 9, 2], [5, 9, 3], [9, 5, 2], [5, 9])}
    assert len(digests) == 4


def test_a_column_that_was_absent_once_is_absent() -> None:
    rows = rows_of(5, 9, 2)
    rows[1, SLACK] = ABSENT
    summary = summary_of(PoolTimeline(SPEC, rows), np.arange(3), 2)
    assert summary.total("slack") == summary.peak("slack") == summary.low("slack") == ABSENT
    assert summary.buckets.high[:, SLACK].tolist() == [ABSENT, ABSENT]
    assert summary.total("payload") == 16


def test_no_rows_at_all() -> None:
    summary = SummaryBuilder(SPEC).finish()
    assert (summary.num_steps, summary.first_step, summary.last_step, len(summary.buckets)) == (
        0,
        None,
        None,
        0,
    )
    assert summary.peak("payload") == summary.total("payload") == 0


def test_one_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 buckets: expected 2 or more"):
        SummaryBuilder(SPEC, 1)


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=60),
    st.integers(2, 9),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_no_way_to_cut_the_rows_changes_anything(
    payloads: list[int], max_buckets: int, cuts: list[int]
) -> None:
    summary = summed(payloads, max_buckets, cuts)
    assert summary.total("payload") == sum(payloads)
    assert (summary.peak("payload"), summary.low("payload")) == (max(payloads), min(payloads))
    size, buckets = summary.buckets.rows_per_bucket, summary.buckets
    parts = [payloads[start : start + size] for start in range(0, len(payloads), size)]
    assert len(parts) <= max_buckets
    assert size == 1 or len(payloads) > max_buckets * size // 2
    assert buckets.total[:, PAYLOAD].tolist() == [sum(part) for part in parts]
    assert buckets.low[:, PAYLOAD].tolist() == [min(part) for part in parts]
    assert buckets.high[:, PAYLOAD].tolist() == [max(part) for part in parts]
    assert buckets.last[:, PAYLOAD].tolist() == [part[-1] for part in parts]
    assert summary.digest == summed(payloads, 64, []).digest
