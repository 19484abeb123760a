"""What changed between two engines on one trace: worked out by hand, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError, KvsuiteError, UnknownEngine
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import PoolTimeline
from kvsuite.record.drift_rows import DriftColumn, DriftFootprint
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.drift import DriftChain, DriftPlan, drift_line
from kvsuite.sweep.drift_pools import compare_pool
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.record.drift_rows import DriftPool, DriftRow
    from kvsuite.trace.model import Trace

GROWING = [Row(timestamp=0, input_length=3, output_length=3, hash_ids=[])]
"""Lengths 3, 4, 5 and 6 at steps 0 to 3."""
TWO_IN_TURN = [Row(timestamp=t, input_length=3, output_length=0, hash_ids=[]) for t in (0, 50)]
THREE_AND_THE_FIRST_AGAIN = [
    Row(timestamp=50 * step, input_length=5, output_length=0, hash_ids=[head, 10 + step])
    for step, head in enumerate((0, 1, 2, 0))
]
"""Each fills a block of 4 that stays cached, and one token of another that does not."""


def traced(rows: list[Row]) -> Trace:
    return trace_of(rows, TraceSource("by hand", "drift"), block_size=4)


def plan(rows: list[Row], num_blocks: int, **options: int) -> DriftPlan:
    config = EngineConfig(model_layout("tiny"), 4, num_blocks, max_model_tokens=16, options=options)
    return DriftPlan(trace=traced(rows), config=config, scheduler=SchedulerConfig(4, 64, 50_000))


def pair(rows: list[Row], num_blocks: int, *engines: str) -> DriftRow:
    chain = DriftChain(plan(rows, num_blocks))
    return [chain.run(engine).row for engine in engines][-1]


def changed(pool: DriftPool) -> dict[str, DriftColumn]:
    return {column.name: column for column in pool.changed}


def test_an_engine_does_not_drift_from_itself() -> None:
    row = pair(THREE_AND_THE_FIRST_AGAIN, 3, "reference", "reference")

    assert (row.verdict, row.sentence, row.changed_values) == ("equal", "", [])
    (pool,) = row.pools
    assert (pool.changed, pool.first_step, pool.drawn) == ([], None, None)
    assert pool.footprint == DriftFootprint(old_blocks=3, new_blocks=3, same_order=True, steps_differ=0)
    assert {"payload", "hit", "live_blocks"} <= set(pool.equal)
    assert set(pool.equal).isdisjoint({"distinct_touched", "id_order"})


def test_the_first_of_a_chain_is_held_against_nothing() -> None:
    link = DriftChain(plan(GROWING, 8)).run("reference")

    assert link.replay is not None
    assert (link.row.against, link.row.verdict, link.row.steps) == (None, None, 4)


def test_a_surplus_block_is_found_where_a_length_fills_its_last_block() -> None:
    row = pair(GROWING, 8, "reference", "mutant:surplus-at-boundary")

    # Blocks of 4: lengths 3, 4, 5, 6 take 1, 1, 2, 2 blocks; the surplus comes at 4, one step early.
    (pool,) = row.pools
    assert row.verdict == "drift"
    assert row.sentence == "step 1, over_reserved: 0 -> 4"
    assert changed(pool)["live_blocks"] == DriftColumn(
        name="live_blocks",
        kind="level",
        unit="blocks",
        old=1.5,
        new=1.75,
        old_peak=2,
        new_peak=2,
        steps_differ=1,
        first_step=1,
        first_old=1,
        first_new=2,
    )
    # One block is taken at step 1 instead of step 2: as many in all.
    assert changed(pool)["allocated"] == DriftColumn(
        name="allocated",
        kind="event",
        unit="blocks",
        old=2,
        new=2,
        steps_differ=2,
        first_step=1,
        first_old=0,
        first_new=1,
    )
    assert (pool.first_step, pool.old_row["over_reserved"], pool.new_row["over_reserved"]) == (1, 0, 4)
    assert (pool.old_row["payload"], pool.new_row["payload"]) == (4, 4)
    assert {"payload", "slack", "written", "freed", "running"} <= set(pool.equal)
    assert row.violations == {"slack": 1}


def test_a_law_that_only_one_breaks_is_drift_where_no_count_moves() -> None:
    # The second request shares a block with the first at steps 1 to 3; the mutant says it has one holder.
    sharing = [
        Row(timestamp=50 * step, input_length=5, output_length=3 - step, hash_ids=[0, 1 + step])
        for step in (0, 1)
    ]
    row = pair(sharing, 8, "reference", "mutant:ref-counts-of-one")

    assert (row.verdict, row.pools[0].changed) == ("drift", [])
    assert row.sentence == "laws broken, recount: (not given) -> 3"
    assert row.violations == {"recount": 3}


def test_another_order_of_the_free_list_is_footprint_alone() -> None:
    row = pair(TWO_IN_TURN, 8, "reference", "mutant:free-list-fifo")

    # One block each, one after the other: the last one freed is taken again, or the next one.
    (pool,) = row.pools
    assert row.verdict == "footprint"
    assert row.sentence == "from step 1, 1 -> 2 different blocks touched"
    assert (pool.changed, pool.first_step) == ([], None)
    assert pool.footprint == DriftFootprint(
        old_blocks=1, new_blocks=2, same_order=False, steps_differ=1, first_step=1
    )
    assert pool.drawn == "distinct_touched"


def test_another_eviction_moves_hits_and_no_level() -> None:
    row = pair(THREE_AND_THE_FIRST_AGAIN, 3, "reference", "mutant:evicts-newest")

    # The third request evicts the first one's block, or the second one's, which no row has seen cached yet.
    # Then the fourth evicts one more, or finds the first one's.
    (pool,) = row.pools
    assert row.verdict == "drift"
    assert row.sentence == "step 2, evicted: 1 -> 0"
    totals = {name: (column.old, column.new, column.first_step) for name, column in changed(pool).items()}
    assert totals == {
        "allocated": (8, 7, 3),
        "reactivated": (0, 1, 3),
        "evicted": (2, 0, 2),
        "written": (20, 16, 3),
        "hit": (0, 4, 3),
    }
    assert row.violations == {}
    assert (pool.footprint.old_blocks, pool.footprint.new_blocks, pool.footprint.same_order) == (3, 3, False)
    assert pool.drawn is None, "no level moved, and as many blocks were touched at each step"


def test_what_explains_it_is_listed() -> None:
    forks = [
        Row(request_id="p", timestamp=0, input_length=5, output_length=4, hash_ids=[]),
        Row(
            request_id="c", timestamp=0, input_length=5, output_length=4, parent="p", fork="sample", fork_at=5
        ),
    ]
    row = pair(forks, 8, "reference", "reference-eager")

    assert row.changed_values == ["cow: lazy -> at_fork"]


def test_pools_that_differ_are_drift() -> None:
    row = pair(GROWING, 8, "reference", "reference-groups")

    assert row.verdict == "drift"
    assert any(
        change.startswith("pool device/g1/r0 num_blocks: (not given)") for change in row.changed_values
    )


def test_an_engine_that_cannot_run_stops_a_chain_or_becomes_a_row() -> None:
    with pytest.raises(UnknownEngine):
        DriftChain(plan(GROWING, 8)).run("refrence")
    chain = DriftChain(plan(GROWING, 8), go_on=True)
    rows = [chain.run(engine).row for engine in ("reference", "refrence", "mutant:surplus-at-boundary")]

    assert rows[1].refused is not None
    assert "unknown engine 'refrence'" in rows[1].refused
    assert (rows[1].verdict, rows[2].against) == (None, "reference")
    assert [type(error) for error in chain.errors] == [UnknownEngine]
    assert issubclass(UnknownEngine, KvsuiteError)


def test_a_line_says_what_was_asked() -> None:
    asked = plan(GROWING, 8, null_blocks=1)
    row = DriftChain(asked).run("reference").row
    line = drift_line(asked, [row], case="drift/x", trace="x")

    assert line.layout == str(asked.config.layout)
    assert line.recipe == {
        "block_size": 4,
        "num_blocks": 8,
        "prefix_cache": True,
        "watermark_blocks": 0,
        "max_model_tokens": 16,
        "option.null_blocks": 1,
        "max_sequences": 4,
        "max_step_tokens": 64,
        "step_us": 50_000,
    }


Rows = list[dict[str, int | None]]


def ledger(rows: Rows) -> PoolTimeline:
    table = np.zeros((len(rows), len(COLUMN_NAMES)), np.int64)
    for index, row in enumerate(rows):
        for name, value in row.items():
            table[index, INDEX[name]] = ABSENT if value is None else value
    return PoolTimeline(PoolSpec(PoolKey(), num_blocks=8, block_size=4, bytes_per_token=64), table)


def compared(old: Rows, new: Rows, old_steps: list[int], new_steps: list[int]) -> DriftPool:
    steps = np.array(old_steps, np.int64), np.array(new_steps, np.int64)
    return compare_pool(ledger(old), ledger(new), *steps)


def test_a_step_that_one_side_does_not_have() -> None:
    old: Rows = [{"payload": 3, "written": 3}, {"payload": 4, "written": 1}, {"payload": 5, "written": 1}]
    new: Rows = [{"payload": 3, "written": 3}, {"payload": 5, "written": 2}]
    pool = compared(old, new, [0, 1, 2], [0, 2])

    # A level has no value where there is no row; an event that has no row did not happen.
    assert [(c.name, c.old, c.new, c.steps_differ, c.first_step) for c in pool.changed] == [
        ("written", 5, 5, 2, 1)
    ]
    assert (pool.changed[0].first_old, pool.changed[0].first_new) == (1, None)
    assert (pool.first_step, pool.old_row["payload"], pool.new_row) == (1, 4, {})
    assert "payload" in pool.equal


def test_a_row_more_is_where_they_part_even_if_nothing_happens_in_it() -> None:
    pool = compared([{"payload": 3}], [{"payload": 3}, {"payload": 3}], [4], [4, 6])

    assert (pool.changed, pool.first_step, pool.old_row) == ([], 6, {})


def test_what_one_side_cannot_see_is_a_change_and_what_neither_sees_is_not_equal() -> None:
    pool = compared([{"cached": 0, "free": None}], [{"cached": None, "free": None}], [0], [0])

    assert [(c.name, c.old, c.new, c.first_old, c.first_new) for c in pool.changed] == [
        ("cached", 0, None, 0, None)
    ]
    assert pool.unseen == ["free"]
    assert "free" not in pool.equal


def test_the_level_that_moved_most_is_told_by_its_share_of_the_pool() -> None:
    # 8 tokens are a quarter of the 32 slots, 3 blocks are three eighths of the 8.
    pool = compared([{"free": 8, "live_blocks": 1}], [{"free": 16, "live_blocks": 4}], [0], [0])

    assert pool.drawn == "live_blocks"


def test_a_pool_too_small_stops_a_chain() -> None:
    with pytest.raises(ConfigError):
        DriftChain(plan(GROWING, 1, null_blocks=1)).run("reference")
