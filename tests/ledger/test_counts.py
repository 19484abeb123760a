"""Block counts at the edges: right values by hand, and each law broken once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsuite.engine.contract import Admission, Refusal, RefusalReason
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSnapshot, PoolSpec
from kvsuite.errors import InvariantViolation
from kvsuite.ledger.counts import (
    empty_pool_verdict,
    entries_due,
    fits_empty_pool,
    judge_counts,
    longest_sequence,
    monotone_in_lookahead,
    table_counts,
    tails,
    window_blocks,
    window_blocks_bound,
)
from kvsuite.trace.model import RequestId

POOL = PoolSpec(PoolKey(), 8, 4, 1, never_allocatable_blocks=1)
WINDOW = replace(POOL, kind=PoolKind.WINDOW, window_tokens=6)
STATE = replace(POOL, kind=PoolKind.STATE)
A = RequestId("a")


def shot_of(length: int, *table: int) -> PoolSnapshot:
    none = np.zeros(0, np.int32)
    return PoolSnapshot(
        key=POOL.key,
        revision=1,
        since=None,
        request_ids=(A,),
        lengths=np.array([length], np.int64),
        table_rows=np.array([0], np.int32),
        table_offsets=np.array([0, len(table)], np.int64),
        table_blocks=np.array(table, np.int32),
        free=none,
        cached=none,
        never_allocatable=np.array([0], np.int32),
        null_ids=np.array([0], np.int32),
    )


@pytest.mark.parametrize(
    ("tokens", "ahead", "longest", "due"),
    [
        (1, 0, None, 1),
        (4, 0, None, 1),
        (5, 0, None, 2),
        (4, 1, None, 2),
        (3, 5, None, 2),
        (3, 6, None, 3),
        (10, 3, 12, 3),
        (12, 3, 12, 3),
        (13, 3, 12, 4),
    ],
)
def test_entries_due(tokens: int, ahead: int, longest: int | None, due: int) -> None:
    assert entries_due(POOL, tokens, lookahead_tokens=ahead, max_tokens=longest) == due
    assert entries_due(STATE, tokens, lookahead_tokens=ahead, max_tokens=longest) == 1


def test_a_table_too_long_or_too_short_is_named() -> None:
    assert not list(table_counts(POOL, shot_of(8, 1, 2)))
    (long,) = table_counts(POOL, shot_of(8, 1, 2, 3), step=5)
    assert str(long) == (
        "count at step 5 in pool device/g0/r0: a holds 3 blocks for 8 tokens and 0 ahead, "
        "expected 2 of 4 tokens"
    )
    assert not list(table_counts(POOL, shot_of(8, 1, 2, 3), lookahead={A: 1}))
    (short,) = table_counts(POOL, shot_of(9, 1, 2), lookahead={A: 3}, max_tokens=10)
    assert "9 tokens and 3 ahead, expected 3 of 4 tokens within 10" in short.message


@pytest.mark.parametrize(("length", "blocks", "last"), [(32, 3, 0), (33, 2, 17), (16, 2, 0)])
def test_a_last_block_holds_one_to_b_tokens(length: int, blocks: int, last: int) -> None:
    pool = replace(POOL, block_size=16)
    (found,) = tails(pool, shot_of(length, *range(1, blocks + 1)))
    assert f"would hold {last}, expected 1 to 16" in found.message
    assert not list(tails(pool, shot_of(length, *range(1, -(-length // 16) + 1))))


def test_less_for_more_look_ahead_is_named() -> None:
    assert not list(monotone_in_lookahead(POOL, {0: 1, 4: 2, 1: 2, 5: 3}))
    (found,) = monotone_in_lookahead(POOL, {0: 1, 3: 2, 4: 1})
    assert found.message == "a look-ahead of 4 tokens took 1 blocks, one of 3 took 2"


def test_what_fits_an_empty_pool() -> None:
    """Seven usable blocks of 4: 28 tokens; a window may let 29 in."""
    assert fits_empty_pool([POOL], 28) is True
    assert fits_empty_pool([POOL], 29) is False
    assert fits_empty_pool([POOL], 27, lookahead_tokens=2) is False
    assert fits_empty_pool([POOL], 27, lookahead_tokens=2, max_tokens=28) is True
    assert fits_empty_pool([WINDOW], 29) is None
    assert fits_empty_pool([WINDOW, POOL], 29) is False
    assert fits_empty_pool([replace(POOL, key=PoolKey(tier="host")), STATE], 500) is True


def refused(reason: RefusalReason) -> Admission:
    return Admission(refusal=Refusal(8, 7, 0, POOL.key, reason))


@pytest.mark.parametrize(
    ("tokens", "answer", "said"),
    [
        (28, Admission(scheduled_tokens=28), None),
        (29, refused(RefusalReason.NEVER_FITS), None),
        (29, Admission(scheduled_tokens=29), "were admitted and can never fit"),
        (28, refused(RefusalReason.NEVER_FITS), r"fit and were refused \(never_fits: needs 8 blocks, 7 free"),
        (29, refused(RefusalReason.NO_BLOCKS), "refused as no_blocks, expected never_fits"),
    ],
)
def test_the_verdict_on_an_empty_pool(tokens: int, answer: Admission, said: str | None) -> None:
    found = list(empty_pool_verdict([POOL], tokens, answer))
    assert [violation.invariant for violation in found] == ([] if said is None else ["progress"])
    if said is not None:
        with pytest.raises(InvariantViolation, match=said):
            raise InvariantViolation(str(found[0]))


def test_the_longest_sequence_is_the_one_declared() -> None:
    assert not list(longest_sequence("p", 20, 20))
    (found,) = longest_sequence("p", 17, 20)
    assert found.message == "a sequence alone came to 17 tokens, expected the 20 declared"


def test_a_window_touches_one_block_more_at_most() -> None:
    """W = 6, b = 4: three blocks; W = 4,096, b = 32: 129."""
    assert (window_blocks_bound(6, 4), window_blocks_bound(4_096, 32)) == (3, 129)
    assert not list(window_blocks(WINDOW, shot_of(16, 0, 1, 2, 3)))
    (found,) = window_blocks(WINDOW, shot_of(16, 1, 2, 3, 4))
    assert "holds 4 blocks of 4 tokens, a window of 6 touches at most 3" in found.message


def test_all_device_pools_are_judged_at_once() -> None:
    pools = [POOL, STATE, replace(POOL, key=PoolKey(tier="host"))]
    good, state = shot_of(8, 1, 2), shot_of(4, 3)
    judge_counts(pools, [good, state, shot_of(8, 1)])
    with pytest.raises(InvariantViolation, match=r"(?s)count.*expected 1 of 4 tokens"):
        judge_counts(pools, [good, good, good])
    with pytest.raises(InvariantViolation, match=r"(?s)count.*tail"):
        judge_counts(pools, [shot_of(8, 1, 2, 3), state, good])
