"""The laws of a memory budget: each fires on the budget that breaks it, and on no sound one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.snapshot import Budget, PoolKey, PoolSpec
from kvsuite.ledger import budget as laws

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.ledger.invariants import Violation

BLOCK_BYTES = 4
POOL = PoolSpec(PoolKey(), num_blocks=7, block_size=2, bytes_per_token=2)
TOTAL = Budget(
    observed_bytes=100,
    weights_bytes=40,
    activation_bytes=6,
    graphs_bytes=3,
    other_bytes=2,
    pool_bytes=28,
    slack_bytes=21,
    requested_fraction=0.8,
    effective_fraction=0.8,
    fraction_of="total",
    rank_pool_blocks=(7, 9),
)
"""0.8 of 100 less 51: 29 bytes, 7 blocks of 4."""
FREE = replace(
    TOTAL,
    neighbour_bytes=9,
    pool_bytes=32,
    slack_bytes=8,
    fraction_of="free",
    rank_pool_blocks=(8,),
)
"""0.8 of (100 - 9 - 51) = 32 bytes, 8 blocks."""


def names(found: Iterable[Violation]) -> list[str]:
    return [law.invariant for law in found]


def every(budget: Budget, num_blocks: int = 7, asked: int = 100) -> list[str]:
    return names(
        [
            *laws.budget_closes(budget),
            *laws.request_in_force(budget),
            *laws.smallest_rank(budget, num_blocks),
            *laws.pool_fills_room(budget, BLOCK_BYTES, num_blocks, asked),
        ]
    )


def test_sound_budgets_break_no_law() -> None:
    assert (laws.room_bytes(TOTAL), laws.room_bytes(FREE)) == (29, 32)
    assert every(TOTAL) == []
    assert every(FREE, num_blocks=8) == []
    assert [*laws.pool_as_declared(TOTAL, [POOL])] == []
    assert [*laws.terms_as_measured(TOTAL, {"weights_bytes": 40, "graphs_bytes": 3})] == []


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"slack_bytes": 20}, ["budget-closure"]),
        ({"neighbour_bytes": 1}, ["budget-closure"]),
        ({"slack_bytes": -1, "pool_bytes": 50}, ["budget-closure"]),
        ({"graphs_bytes": 6}, ["budget-closure", "budget-size"]),
        ({"requested_fraction": 0.5}, ["budget-request"]),
        ({"effective_fraction": 0.9}, ["budget-request", "budget-size"]),
        ({"fraction_of": "what is left"}, ["budget-request"]),
        ({"fraction_of": "free"}, ["budget-size"]),
        ({"rank_pool_blocks": (7, 6)}, ["budget-ranks", "budget-size"]),
        ({"rank_pool_blocks": (8, 7)}, ["budget-size"]),
    ],
)
def test_each_law_fires(change: dict[str, int], seen: list[str]) -> None:
    assert every(replace(TOTAL, **change)) == seen  # type: ignore[arg-type]


def test_a_negative_term_is_named_even_where_the_sum_closes() -> None:
    (law,) = laws.budget_closes(replace(TOTAL, slack_bytes=-1, pool_bytes=50))
    assert law.message == "slack_bytes is -1: more was given out than there is"


def test_the_gap_says_on_which_side_it_is() -> None:
    (short,) = laws.budget_closes(replace(TOTAL, other_bytes=0))
    assert short.message.endswith("add up to 98, expected the observed 100: 2 bytes are in no term")
    (over,) = laws.budget_closes(replace(TOTAL, other_bytes=5))
    assert over.message.endswith("add up to 103, expected the observed 100: 3 bytes are in two terms")


def test_the_pool_is_never_more_than_was_asked_for_nor_less() -> None:
    assert every(TOTAL, num_blocks=5, asked=5) == []
    assert every(TOTAL, num_blocks=7, asked=5) == ["budget-size"]
    assert every(TOTAL, num_blocks=6) == ["budget-size"]


def test_declared_pools_and_a_draft() -> None:
    assert names(laws.pool_as_declared(replace(TOTAL, pool_bytes=24), [POOL])) == ["budget-pool"]
    assert names(laws.pool_as_declared(replace(TOTAL, pool_bytes=35), [POOL], draft_block_bytes=1)) == []


def test_a_sum_that_closes_over_a_term_in_another_term() -> None:
    hidden = replace(TOTAL, activation_bytes=9, slack_bytes=18)
    assert [*laws.budget_closes(hidden)] == []
    assert names(laws.terms_as_measured(hidden, {"activation_bytes": 6})) == ["budget-terms"]


def test_ids_beyond_the_smallest_rank() -> None:
    assert [*laws.ids_on_every_rank([0, 6], TOTAL)] == []
    (law,) = laws.ids_on_every_rank([8, 0, 7], TOTAL)
    assert law.message.startswith("block 7 was handed out (2 such), the smallest rank holds 7 blocks")
    assert [*laws.ids_on_every_rank([8], replace(TOTAL, rank_pool_blocks=()))] == []


def test_two_starts() -> None:
    assert [*laws.same_start([POOL], [POOL])] == []
    assert names(laws.same_start([POOL], [replace(POOL, num_blocks=6)])) == ["budget-repeat"]


@pytest.mark.parametrize(
    ("fraction_of", "lost_blocks", "sound"),
    [
        ("total", 0, True),
        ("total", 1, False),
        ("total", -1, False),
        ("free", 10, True),  # 0.5 * 80 bytes = 40
        ("free", 9, False),  # 36 bytes: a whole block less than due
        ("free", 20, False),  # charged twice
        ("free", 0, False),
    ],
)
def test_a_neighbour_is_charged_once_or_not_at_all(fraction_of: str, lost_blocks: int, sound: bool) -> None:
    found = laws.neighbour_effect((0, 50), (80, 50 - lost_blocks), 0.5, fraction_of, BLOCK_BYTES)
    assert names(found) == ([] if sound else ["budget-neighbour"])
