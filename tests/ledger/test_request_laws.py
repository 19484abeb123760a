"""Laws of request-driven engines, on numbers worked out by hand: blocks of 16 tokens in a pool of 64."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.engine.contract import PoolCounts
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.ledger.request_laws import (
    KnownRequest,
    answers_follow,
    counts_absent,
    counts_close,
    fewest_blocks,
    most_blocks,
    shown_lengths,
    used_between,
)
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent

B = 16
POOL = PoolSpec(PoolKey(), 64, B, 4)


def known(
    prompt: int,
    *generated: int,
    name: str = "r",
    keys: tuple[int, ...] = (9,),
    ends: tuple[int, ...] = (),
    sampled: bool = True,
    ended: bool = False,
    holds: bool = True,
) -> KnownRequest:
    return KnownRequest(
        request_id=RequestId(name),
        content=TokenContent(keys, ends),
        prompt_tokens=prompt,
        max_tokens=40,
        num_answers=max(1, len(generated)),
        generated=generated or None,
        sampled=sampled,
        ended=ended,
        holds=holds,
    )


@pytest.mark.parametrize(
    ("prompt", "sampled", "fewest", "most"),
    [
        (15, 1, 1, 1),  # 15 slots, the 16th is the sampled token's
        (16, 1, 1, 2),  # 16 slots, a 17th may be taken ahead
        (16, 2, 2, 2),
        (20, 13, 2, 3),  # 32 and 33
        (1, 1, 1, 1),
    ],
)
def test_one_answer_lies_between_what_was_computed_and_what_was_sampled(
    prompt: int, sampled: int, fewest: int, most: int
) -> None:
    request = [known(prompt, sampled)]
    assert fewest_blocks(request, B, shares=False) == fewest
    assert fewest_blocks(request, B, shares=True) == fewest
    assert most_blocks(request, B) == most


def test_look_ahead_adds_to_the_most_alone() -> None:
    assert most_blocks([known(16, 1)], B, lookahead_tokens=15) == 2
    assert most_blocks([known(16, 1)], B, lookahead_tokens=16) == 3
    assert fewest_blocks([known(16, 1)], B, shares=False) == 1


def test_answers_count_apart_unless_they_may_share() -> None:
    """A prompt of 40 tokens and 3 answers of 9: 3 blocks each; shared, 48 equal tokens need 3 in all."""
    request = [known(40, 9, 9, 9)]
    assert fewest_blocks(request, B, shares=False) == 9
    assert fewest_blocks(request, B, shares=True) == 3
    assert most_blocks(request, B) == 3 * 4


def test_equal_prefixes_count_once_where_they_can_be_shared() -> None:
    """Two prompts of 40 tokens that share 32: 2 blocks once, and a tail each."""
    requests = [
        known(40, 1, name=name, keys=(1, 2, own), ends=(16, 32)) for name, own in (("a", 7), ("b", 8))
    ]
    assert fewest_blocks(requests, B, shares=False) == 6
    assert fewest_blocks(requests, B, shares=True) == 4


@pytest.mark.parametrize(
    "request_",
    [
        known(40, 1, sampled=False),
        known(40, 1, ended=True),
        known(40),
    ],
    ids=["was given no token", "ended", "answers unseen"],
)
def test_who_may_hold_nothing_adds_nothing_to_the_fewest(request_: KnownRequest) -> None:
    assert fewest_blocks([request_], B, shares=False) == 0


def test_who_is_seen_not_to_run_adds_nothing_to_the_most() -> None:
    assert most_blocks([known(40, 1, sampled=False, holds=False), known(16)], B) == 4  # 16 + 40 asked for


@pytest.mark.parametrize(("used", "holds"), [(4, False), (5, True), (6, False)])
def test_use_outside_the_bounds_is_named(used: int, holds: bool) -> None:
    """Prompts of 20 and 33 tokens after one token each: 2 + 3 blocks, and no other number."""
    requests = [known(20, 1, name="a"), known(33, 1, name="b")]
    found = list(used_between(used, requests, POOL, 3, shares=False, lookahead=0))
    assert (found == []) is holds
    assert all(violation.invariant == "used" and "5 to 5" in violation.message for violation in found)


def test_nobody_holds_more_than_the_pool() -> None:
    small = PoolSpec(PoolKey(), 4, B, 4)
    waits = known(100, 1, sampled=False)
    assert list(used_between(4, [waits], small, 0, shares=False, lookahead=0)) == []
    (found,) = used_between(5, [waits], small, 0, shares=False, lookahead=0)
    assert "expected 0 to 4" in found.message


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (PoolCounts(PoolKey(), used_blocks=10, free_blocks=54, total_blocks=64, pool_bytes=4096), ""),
        (PoolCounts(PoolKey(), used_blocks=10, free_blocks=53), "63 of 64"),
        (PoolCounts(PoolKey(), used_blocks=65), "65 blocks are used"),
        (PoolCounts(PoolKey(), used_blocks=-1), "-1 blocks are used"),
        (PoolCounts(PoolKey(), free_blocks=65), "65 blocks are free"),
        (PoolCounts(PoolKey(), total_blocks=63), "63 blocks in all"),
        (PoolCounts(PoolKey(), pool_bytes=8192), "8192 bytes, expected 4096"),
        (PoolCounts(PoolKey()), ""),
    ],
)
def test_numbers_close_against_the_pool(counts: PoolCounts, said: str) -> None:
    """A block has 16 x 4 bytes, the pool 64 x 64 = 4096."""
    found = list(counts_close(counts, POOL, 1))
    assert [violation.invariant for violation in found] == (["closure"] if said else [])
    assert all(said in violation.message for violation in found)


def test_null_blocks_are_apart() -> None:
    pool = PoolSpec(PoolKey(), 64, B, 4, never_allocatable_blocks=1)
    assert list(counts_close(PoolCounts(PoolKey(), used_blocks=10, free_blocks=53), pool, 1)) == []


def test_what_is_left_out_is_not_judged() -> None:
    absent = [law.invariant for law in counts_absent(PoolCounts(PoolKey()), POOL)]
    assert absent == ["used", "closure", "pool bytes"]
    seen = PoolCounts(PoolKey(), used_blocks=0, free_blocks=64, pool_bytes=4096)
    assert list(counts_absent(seen, POOL)) == []


@pytest.mark.parametrize(
    ("names", "lengths", "said"),
    [
        (("r",), [20], ""),
        (("r",), [21], ""),
        (("r",), [19], "expected 20 to 21"),
        (("r",), [22], "expected 20 to 21"),
        (("r", "ghost"), [20, 1], "ghost is shown with 1 tokens"),
        ((), [], "no snapshot shows what it holds"),
    ],
)
def test_shown_lengths_follow_from_what_was_sampled(
    names: tuple[str, ...], lengths: list[int], said: str
) -> None:
    """A prompt of 18 with 3 sampled: 20 computed, the 21st slot may be there."""
    ids = tuple(RequestId(name) for name in names)
    found = list(shown_lengths(ids, np.array(lengths, np.int64), [known(18, 3)], POOL, 2, lookahead=0))
    assert [violation.invariant for violation in found] == (["lengths"] if said else [])
    assert all(said in violation.message for violation in found)


def test_answers_have_names_of_their_own() -> None:
    ids = (RequestId("r"), RequestId("r/1"), RequestId("r/2"))
    lengths = np.array([20, 20, 20], np.int64)
    assert list(shown_lengths(ids, lengths, [known(18, 3, 3, 3)], POOL, 2, lookahead=0)) == []
    (found,) = shown_lengths(ids, lengths, [known(18, 3, 3)], POOL, 2, lookahead=0)
    assert found.message.startswith("r/2 ")


@pytest.mark.parametrize(
    ("before", "now", "broken"),
    [(None, (1,), False), ((3,), (3,), False), ((3,), (2,), True), ((9,), (11,), True), (None, (-1,), True)],
)
def test_answers_grow_to_what_was_asked_for(
    before: tuple[int, ...] | None, now: tuple[int, ...], broken: bool
) -> None:
    found = list(answers_follow(before, now, RequestId("r"), 10, 1, "pool"))
    assert [violation.invariant for violation in found] == (["endings"] if broken else [])
