"""Each law fails on a snapshot that breaks it, by name; the clean snapshot breaks none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.engine.snapshot import MemoryClaim, PoolKey, PoolSnapshot, PoolSpec, Storage
from kvsuite.errors import EngineError, InvariantViolation
from kvsuite.ledger.claims import claim_line
from kvsuite.ledger.invariants import (
    Violation,
    device_closes,
    judge,
    raise_violations,
    slack_outside_bound,
    storages_hold_pools,
)
from kvsuite.ledger.row import ABSENT
from kvsuite.ledger.timeline import DeviceLine, RowBuffer, Timeline
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int32Array

SPEC = PoolSpec(PoolKey(), num_blocks=8, block_size=4, bytes_per_token=10)


def ids(*blocks: int) -> Int32Array:
    return np.array(blocks, np.int32)


def snapshot(**changes: Any) -> PoolSnapshot:
    """Two sequences: a holds 6 tokens in blocks 0, 1; b holds 9 in 0, 2, 3 (block 0 shared); 4 is cached."""
    tables = [ids(0, 1), ids(0, 2, 3)]
    clean = PoolSnapshot(
        key=SPEC.key,
        revision=1,
        since=None,
        request_ids=(RequestId("a"), RequestId("b")),
        lengths=np.array([6, 9], np.int64),
        table_rows=ids(0, 1),
        table_offsets=np.array([0, 2, 5], np.int64),
        table_blocks=np.concatenate(tables),
        free=ids(5, 6, 7),
        cached=ids(4),
        ref_count_ids=ids(0, 1, 2, 3),
        ref_counts=ids(2, 1, 1, 1),
    )
    return replace(clean, **changes)


def judged(taken: PoolSnapshot) -> list[Violation]:
    tracker = PoolTracker(SPEC)
    tracker.take(taken, StepFacts(), 7)
    tracker.add_row(taken, StepFacts())
    timeline = Timeline(np.array([7], np.int64), (tracker.timeline(),))
    return [*tracker.violations, *judge(timeline)]


def test_the_clean_snapshot_breaks_nothing_and_adds_up_by_hand() -> None:
    """Payload: block 0 once (4), 1 half (2), 2 (4), 3 (1); slack 2 + 3; 16 - 5 = 11 of 15 logical tokens."""
    tracker = PoolTracker(SPEC)
    tracker.take(snapshot(), StepFacts(), 0)
    tracker.add_row(snapshot(), StepFacts())
    pool = tracker.timeline()
    assert judged(snapshot()) == []
    row = {
        name: int(pool.column(name)[0]) for name in ("payload", "slack", "cached", "free", "over_reserved")
    }
    assert row == {"payload": 11, "slack": 5, "cached": 4, "free": 12, "over_reserved": 0}
    assert int(pool.column("sharing_saved")[0]) == 4
    assert [
        int(pool.column(n)[0]) for n in ("full_blocks", "final_blocks", "shared_blocks", "live_blocks")
    ] == [2, 2, 1, 4]
    assert pool.category_bytes("payload").tolist() == [110]
    assert pool.closing_gap_bytes().tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"free": ids(5, 6)}, {"partition", "closure"}),
        ({"free": ids(5, 6, 7, 4)}, {"partition", "closure"}),
        ({"free": ids(5, 6, 7, 1)}, {"partition", "closure"}),
        ({"free": ids(5, 6, 7, 7)}, {"partition", "closure"}),
        ({"free": ids(5, 6, 8)}, {"partition"}),
        ({"cached": ids()}, {"partition", "closure"}),
        ({"quarantined": ids(5)}, {"partition", "closure"}),
        ({"never_allocatable": ids(6)}, {"partition", "closure"}),
        ({"ref_counts": ids(1, 1, 1, 1)}, {"recount"}),
        ({"ref_counts": ids(2, 1, 1, 0)}, {"recount"}),
        ({"ref_count_ids": ids(0, 1, 2, 3, 5), "ref_counts": ids(2, 1, 1, 1, 1)}, {"recount"}),
        ({"lengths": np.array([9, 9], np.int64)}, {"slack", "lengths"}),
        ({"lengths": np.array([4, 9], np.int64)}, {"slack"}),
    ],
    ids=[
        "lost block",
        "cached and free",
        "live and free",
        "free twice",
        "id outside the pool",
        "cached block unlisted",
        "free and quarantined",
        "free and never allocatable",
        "shared block counted once",
        "held block counted zero",
        "count without a holder",
        "length beyond the table",
        "an empty block at an exact boundary",
    ],
)
def test_one_broken_fact_is_named(changes: dict[str, Any], broken: set[str]) -> None:
    assert {violation.invariant for violation in judged(snapshot(**changes))} == broken


def test_a_violation_names_the_block_its_holders_and_what_was_expected() -> None:
    (violation,) = judged(snapshot(ref_counts=ids(1, 1, 1, 1)))
    assert str(violation) == (
        "recount at step 7 in pool device/g0/r0: block 0 has ref_count 1, expected 2: held by a, b "
        "(1 blocks are wrong)"
    )


def test_changes_that_leave_out_a_freed_block_are_found_by_the_next_full_snapshot() -> None:
    tracker = PoolTracker(SPEC)
    tracker.take(snapshot(), StepFacts(), 0)
    gone = {
        "request_ids": ("b",),
        "lengths": np.array([9], np.int64),
        "table_rows": ids(),
        "table_offsets": np.zeros(1, np.int64),
        "table_blocks": ids(),
        "since": 1,
        "revision": 2,
        "cached": ids(),
    }
    changed = snapshot(**gone, free=ids(), ref_count_ids=ids(0), ref_counts=ids(1))
    tracker.take(changed, StepFacts(), 1)
    full = snapshot(
        revision=2,
        request_ids=("b",),
        lengths=np.array([9], np.int64),
        table_rows=ids(0),
        table_offsets=np.array([0, 3], np.int64),
        table_blocks=ids(0, 2, 3),
        free=ids(5, 6, 7, 1),
        ref_count_ids=ids(0, 2, 3),
        ref_counts=ids(1, 1, 1),
    )
    assert tracker.violations == []
    tracker.compare_full(full, 1)
    assert {violation.invariant for violation in tracker.violations} == {"changes"}
    assert "block 1 is free in the full snapshot and live by the changes" in tracker.violations[0].message


def test_changes_since_the_wrong_revision_are_refused() -> None:
    tracker = PoolTracker(SPEC)
    with pytest.raises(
        EngineError, match="answered with changes since revision 5 at step 0, asked for changes since None"
    ):
        tracker.take(snapshot(since=5, revision=6), StepFacts(), 0)


def test_declared_lookahead_is_slack_and_what_lies_beyond_is_over_reserved() -> None:
    """a: 6 tokens in 4 blocks, 2 tokens ahead allowed: blocks 0, 1 hold it all, 2 more are over-reserved."""
    taken = snapshot(
        request_ids=("a",),
        lengths=np.array([6], np.int64),
        table_rows=ids(0),
        table_offsets=np.array([0, 4], np.int64),
        table_blocks=ids(0, 1, 2, 3),
        ref_counts=ids(1, 1, 1, 1),
    )
    tracker = PoolTracker(SPEC)
    for lookahead, slack, over in ((0, 2, 8), (2, 2, 8), (3, 6, 4), (10, 10, 0)):
        seen = replace(taken, lookahead_tokens=lookahead)
        tracker = PoolTracker(SPEC)
        tracker.take(seen, StepFacts(), 0)
        tracker.add_row(seen, StepFacts())
        pool = tracker.timeline()
        assert (int(pool.column("slack")[0]), int(pool.column("over_reserved")[0])) == (slack, over)
        assert pool.closing_gap_bytes().tolist() == [0]
        assert bool(tracker.violations) == (lookahead < 7)  # 10 slots too many; b - 1 + k allows 3 + k


@pytest.mark.parametrize(
    ("length", "held", "breaks"), [(16, 16, 0), (17, 32, 0), (16, 32, 1), (17, 16, 1), (1, 16, 0)]
)
def test_the_slack_law_at_exact_boundaries_and_one_past(length: int, held: int, breaks: int) -> None:
    assert len(slack_outside_bound(np.array([length]), np.array([held]), 16)) == breaks


CLOSING = DeviceLine(
    step=3,
    owner="engine",
    observer="allocator",
    observed_bytes=1000,
    pool_bytes=320,
    tables_bytes=80,
    workspace_bytes=100,
    rounding_bytes=12,
    reserve_bytes=488,
    unattributed_bytes=0,
    claimed_cache_bytes=320,
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observed_bytes": 1001}, "1001 bytes observed, the lines add up to 1000"),
        ({"claimed_cache_bytes": 808}, "808 bytes are claimed as cache, the pool's storages hold 320"),
        ({"unattributed_bytes": 5, "observed_bytes": 1005}, "5 bytes belong to no line, at most 0 may"),
        (
            {"committed_bytes": 160, "expected_committed_bytes": 120},
            "160 bytes committed, the blocks in use come to 120",
        ),
    ],
    ids=["does not add up", "reserve claimed as cache", "unattributed", "committed without a block"],
)
def test_a_device_line_that_does_not_close_is_named(changes: dict[str, Any], words: str) -> None:
    assert list(device_closes(CLOSING)) == []
    (violation,) = device_closes(replace(CLOSING, **changes))
    assert words in violation.message


def test_storages_are_counted_once_a_pointer_and_must_hold_the_declared_pools() -> None:
    """8 blocks of 40 bytes are 320; the same pointer listed twice is one storage."""
    pool = Storage("pool", data_pointer=1, nbytes=320)
    line = claim_line(MemoryClaim((pool, pool, Storage("tables", 2, 64)), claimed_cache_bytes=320), step=0)
    assert (line.observed_bytes, line.pool_bytes, line.tables_bytes) == (384, 320, 64)
    assert list(storages_hold_pools(line, [SPEC])) == []
    short = claim_line(MemoryClaim((replace(pool, nbytes=316),), claimed_cache_bytes=316), step=0)
    (violation,) = storages_hold_pools(short, [SPEC])
    assert "hold 316 bytes, the declared pools 320" in violation.message


def test_violations_are_raised_with_the_first_few_named() -> None:
    many = [Violation("closure", step, "p", f"gap {step}") for step in range(7)]
    with pytest.raises(InvariantViolation, match=r"closure at step 0 in pool p: gap 0(.|\n)*\(\+2 more\)"):
        raise_violations(many)
    raise_violations([])


def test_the_row_buffer_grows_and_keeps_absent_absent() -> None:
    rows = RowBuffer(columns=2, capacity=2)
    for value in range(5):
        rows.append([value, ABSENT])
    rows.last()[0] += 10
    assert rows.finish().tolist() == [[0, ABSENT], [1, ABSENT], [2, ABSENT], [3, ABSENT], [14, ABSENT]]
