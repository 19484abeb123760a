"""Runs of ids, waste by the rule, and the dashboards that get it wrong; values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.contract import Admission, Refusal, RefusalReason
from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger import contiguity as laws
from kvsuite.ledger.admission import Offer
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.ledger.invariants import Violation

PAGED = PoolSpec(PoolKey(), num_blocks=12, block_size=4, bytes_per_token=10, pad_bytes_per_block=3)
SLOTS = PoolSpec(PoolKey(), num_blocks=12, block_size=1, bytes_per_token=10, contiguous=True)


def ids(*blocks: int) -> Int32Array:
    return np.array(blocks, np.int32)


def shot(
    tables: dict[str, tuple[int, list[int]]],
    free: Sequence[int],
    cached: Sequence[int] = (),
    run: int | None = None,
) -> PoolSnapshot:
    blocks = [table for _, table in tables.values()]
    return PoolSnapshot(
        key=PoolKey(),
        revision=1,
        since=None,
        request_ids=tuple(RequestId(name) for name in tables),
        lengths=np.array([length for length, _ in tables.values()], np.int64),
        table_rows=np.arange(len(tables), dtype=np.int32),
        table_offsets=np.cumsum([0, *map(len, blocks)], dtype=np.int64),
        table_blocks=ids(*(block for table in blocks for block in table)),
        free=ids(*free),
        cached=ids(*cached),
        largest_free_run=run,
    )


def names(found: Iterable[Violation]) -> list[str]:
    return [violation.invariant for violation in found]


@pytest.mark.parametrize(
    ("free", "runs", "largest"),
    [([], [], 0), ([3], [1], 1), ([5, 1, 2, 9, 8], [2, 1, 2], 2), ([0, 1, 2, 3], [4], 4)],
)
def test_runs_of_free_ids(free: list[int], runs: list[int], largest: int) -> None:
    assert laws.free_runs(ids(*free)).tolist() == runs
    assert laws.largest_hole(ids(*free)) == largest


def refusal(spec: PoolSpec, before: PoolSnapshot, needed: int, reason: RefusalReason) -> Offer:
    told = Refusal(needed, len(before.free), len(before.cached), spec.key, reason)
    tokens = needed * spec.block_size
    return Offer(spec, RequestId("new"), tokens, Admission(refusal=told), before, before)


SCATTERED = shot({"t": (16, [1, 3, 5, 7])}, free=[0, 2, 4, 6], cached=[8, 10])


@pytest.mark.parametrize(
    ("needed", "reason", "broken"),
    [
        (6, RefusalReason.NO_CONTIGUOUS_RUN, ["contiguity"]),
        (6, RefusalReason.NO_BLOCKS, ["contiguity"]),
        (7, RefusalReason.NO_BLOCKS, []),
        (6, RefusalReason.WATERMARK, []),
        (6, RefusalReason.PROMISED, []),
        (6, RefusalReason.LOADING, []),
    ],
)
def test_scattered_blocks_are_room(needed: int, reason: RefusalReason, broken: list[str]) -> None:
    assert names(laws.admits_what_fits(refusal(PAGED, SCATTERED, needed, reason))) == broken
    assert names(laws.grows_where_there_is_room(PAGED, SCATTERED, "t", needed)) == (
        ["contiguity"] if needed <= 6 else []
    )


def test_a_contiguous_pool_is_judged_by_its_largest_hole() -> None:
    holes = shot({"t": (4, [3, 4, 5, 6])}, free=[0, 1, 2, 7, 8, 9, 10, 11])
    assert names(laws.admits_what_fits(refusal(SLOTS, holes, 6, RefusalReason.NO_CONTIGUOUS_RUN))) == []
    assert names(laws.admits_what_fits(refusal(SLOTS, holes, 5, RefusalReason.NO_CONTIGUOUS_RUN))) == [
        "contiguity"
    ]
    assert names(laws.grows_where_there_is_room(SLOTS, holes, "t", 1)) == []


def test_waste_is_slack_and_pad_and_what_nobody_in_the_queue_can_use() -> None:
    """7 tokens in blocks 1 and 3, 6 tokens in 1 and 5: block 1 once and full, 3 holds 3, 5 holds 2."""
    pool = shot({"a": (7, [1, 3]), "b": (6, [1, 5])}, free=[0, 2, 4, 6, 7, 8, 9, 10, 11])
    slack_and_pad = (1 + 2) * 10 + 12 * 3
    assert laws.wasted_bytes(PAGED, pool, []) == slack_and_pad
    assert laws.wasted_bytes(PAGED, pool, [36, 400]) == slack_and_pad  # 9 blocks, wherever they lie
    assert laws.wasted_bytes(PAGED, pool, [37]) == slack_and_pad + 9 * 4 * 10  # 10 blocks: no use for 9


def test_reserved_slots_and_short_holes_are_the_waste_of_a_contiguous_pool() -> None:
    """A run of 4 slots with 3 filled; holes of 3 and 5 and a queue of 4: the hole of 3 is of no use."""
    pool = shot({"t": (3, [3, 4, 5, 6])}, free=[0, 1, 2, 7, 8, 9, 10, 11])
    assert laws.wasted_bytes(SLOTS, pool, []) == 10
    assert laws.wasted_bytes(SLOTS, pool, [4, 9]) == (1 + 3) * 10
    assert laws.wasted_bytes(SLOTS, pool, [6]) == (1 + 8) * 10


def test_null_entries_of_a_window_are_not_waste() -> None:
    """9 tokens, of which a window let go the first 4: block 2 is full, block 3 holds 1."""
    pool = replace(shot({"w": (9, [0, 2, 3])}, free=[4]), null_ids=ids(0))
    assert laws.wasted_bytes(PAGED, pool, []) == 3 * 10 + 12 * 3


def test_a_dashboard_of_holes_is_refuted_on_a_checkerboard() -> None:
    board = shot({"t": (24, [1, 3, 5, 7, 9, 11])}, free=[0, 2, 4, 6, 8, 10])
    due, told = laws.wasted_bytes(PAGED, board, [24]), laws.hole_waste_bytes(PAGED, board, [24])
    assert (due, told) == (36, 36 + 5 * 4 * 10)
    assert names(laws.waste_told(PAGED, board, [24], due, "the ledger")) == []
    (found,) = laws.waste_told(PAGED, board, [24], told, "a dashboard")
    assert found.message.startswith("a dashboard calls 236 bytes wasted with 6 blocks free in 6 runs")
    whole = shot({}, free=range(12))
    assert laws.hole_waste_bytes(PAGED, whole, [24]) == laws.wasted_bytes(PAGED, whole, [24])


def test_a_longest_run_is_claimed_by_contiguous_pools_only_and_rightly() -> None:
    holes = {"t": (4, [3, 4, 5, 6])}
    free = [0, 1, 2, 7, 8, 9, 10, 11]
    assert names(laws.run_claimed(SLOTS, shot(holes, free, run=5))) == []
    assert names(laws.run_claimed(SLOTS, shot(holes, free, run=8))) == ["contiguity"]
    assert names(laws.run_claimed(PAGED, shot(holes, free))) == []
    assert names(laws.run_claimed(PAGED, shot(holes, free, run=5))) == ["waste"]


def test_pages_that_idle_blocks_pin() -> None:
    spread, packed = np.arange(0, 800, 8, dtype=np.int32), np.arange(100, dtype=np.int32)
    assert (laws.pages_of(spread, 8), laws.pages_of(packed, 8)) == (100, 13)
    assert names(laws.pinned_pages(PAGED, packed, 8)) == []
    assert names(laws.pinned_pages(PAGED, spread, 8)) == ["pinned"]
    assert names(laws.pinned_pages(PAGED, spread, 8, layers=87)) == []
    assert names(laws.pinned_pages(PAGED, ids(), 8, layers=0)) == []
    assert names(laws.pinned_pages(PAGED, ids(3), 8, layers=0, cap_blocks=0)) == ["pinned"]


@pytest.mark.parametrize(
    ("page", "block", "pages", "inside"),
    [
        (2048, 1536, 3, (0, 3)),
        (4, 3, 3, (0, 3)),
        (4, 2, 3, (0, 1, 2, 3, 4, 5)),
        (4, 8, 4, ()),
        (3, 2, 2, (0, 2)),
    ],
)
def test_blocks_that_lie_inside_one_page(page: int, block: int, pages: int, inside: tuple[int, ...]) -> None:
    assert laws.blocks_inside_pages(page, block, pages) == inside
    assert names(laws.capacity_in_pages(len(inside), page, block, pages, "p")) == []
    assert names(laws.capacity_in_pages(len(inside) + 1, page, block, pages, "p")) == ["capacity"]
