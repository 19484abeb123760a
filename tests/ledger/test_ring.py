"""A ring of window 8 in blocks of 4: what a sequence of n tokens holds, fills and drops."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSnapshot, PoolSpec
from kvsuite.ledger.counts import entries_due
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.addresses import slot_range
from kvsuite.trace.request import RequestId

A = RequestId("a")
RING = PoolSpec(PoolKey(), num_blocks=6, block_size=4, bytes_per_token=1, kind=PoolKind.RING, window_tokens=8)


def tracker(length: int, blocks: list[int]) -> PoolTracker:
    watched = PoolTracker(RING)
    snapshot = PoolSnapshot(
        key=RING.key,
        revision=1,
        since=None,
        request_ids=(A,),
        lengths=np.array([length], np.int64),
        table_rows=np.array([0], np.int32),
        table_offsets=np.array([0, len(blocks)], np.int64),
        table_blocks=np.array(blocks, np.int32),
        free=np.array([block for block in range(6) if block not in blocks], np.int32),
        cached=np.zeros(0, np.int32),
    )
    watched.take(snapshot, StepFacts(), 0)
    watched.add_row(snapshot, StepFacts())
    return watched


@pytest.mark.parametrize(
    ("length", "blocks", "payload", "slack", "dropped"),
    [(3, [5], 3, 1, 0), (5, [5, 2], 5, 3, 0), (8, [5, 2], 8, 0, 0), (19, [5, 2], 8, 0, 11)],
)
def test_a_ring_keeps_its_window(
    length: int, blocks: list[int], payload: int, slack: int, dropped: int
) -> None:
    watched = tracker(length, blocks)
    columns = watched.timeline()
    row = {name: int(columns.column(name)[0]) for name in ("payload", "slack", "window_dropped", "logical")}
    assert row == {"payload": payload, "slack": slack, "window_dropped": dropped, "logical": length}
    assert watched.violations == []
    assert entries_due(RING, length) == len(blocks)


@pytest.mark.parametrize(("length", "blocks"), [(9, [5, 2, 1]), (3, [5, 2]), (8, [5])])
def test_another_number_of_blocks_breaks_the_slack_law(length: int, blocks: list[int]) -> None:
    assert [violation.invariant for violation in tracker(length, blocks).violations] == ["slack"]


def test_tokens_come_round_to_the_same_slots() -> None:
    """10 tokens in blocks 5 and 2: 2..7 lie in 22, 23 and 8..11, then 8 and 9 in 20 and 21, over 0 and 1."""
    watched = tracker(10, [5, 2])
    assert slot_range(watched, A, 0, 10).tolist() == [22, 23, 8, 9, 10, 11, 20, 21]
    assert slot_range(watched, A, 9, 10).tolist() == [21]
    assert slot_range(watched, A, 0, 2).tolist() == []
