from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.ledger.row import ABSENT, CATEGORIES, COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import DeviceLine, PoolTimeline, Timeline
from kvsuite.record.build import (
    content_line,
    engine_line,
    ledger_lines,
    memory_lines,
    trace_line,
)
from kvsuite.replay.step_costs import StepCosts
from kvsuite.trace.model import ABSENT as NOT_GIVEN
from kvsuite.trace.model import Fill, RequestId, Trace, TraceSource

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.record.schema import LedgerLine
    from kvsuite.replay.driver import Replay

SPEC = PoolSpec(PoolKey(), num_blocks=8, block_size=4, bytes_per_token=10, pad_bytes_per_block=2)


@dataclass(frozen=True)
class FakeScheduler:
    max_sequences: int = 4
    max_step_tokens: int = 64
    step_us: int = 50_000
    costs: StepCosts | None = None


@dataclass(frozen=True)
class FakeContent:
    mode: str = "probe"
    tokens_written: int = 21
    tokens_read: int = 34
    mismatches: int = 1
    first_mismatch: str | None = "token 3 of r1"


@dataclass(frozen=True)
class FakeReplay:
    timeline: Timeline
    scheduler: FakeScheduler = FakeScheduler()
    content: FakeContent = FakeContent()
    final_lengths: Int64Array = field(default_factory=lambda: np.array([5, 7]))


def replay_of(steps: list[int], **columns: list[int]) -> Replay:
    rows = np.full((len(steps), len(COLUMN_NAMES)), ABSENT, np.int64)
    for name, values in columns.items():
        rows[:, INDEX[name]] = values
    timeline = Timeline(np.array(steps, np.int64), (PoolTimeline(SPEC, rows),))
    return cast("Replay", FakeReplay(timeline))


def ledger(replay: Replay, max_rows: int = 1500) -> LedgerLine:
    (line,) = ledger_lines(replay, case="c", engine="e", trace="t", max_rows=max_rows)
    return line


def shown(line: LedgerLine, name: str) -> list[int | None]:
    return [row[line.columns.index(name)] for row in line.rows]


def closed(payload: list[int]) -> dict[str, list[int]]:
    """Columns in which payload and free alone fill the 32 slots of the pool."""
    zero = [0] * len(payload)
    return dict.fromkeys(CATEGORIES, zero) | {"payload": payload, "free": [32 - p for p in payload]}


def test_a_short_ledger_keeps_every_row() -> None:
    line = ledger(replay_of([3, 4, 9], **closed([1, 5, 2]), allocated=[1, 1, 0], freed=[0, 0, 2]))

    assert (line.steps, line.steps_per_row) == ([3, 4, 9], 1)
    assert (line.steps_total, line.first_step, line.last_step) == (3, 3, 9)
    assert shown(line, "payload") == [1, 5, 2]
    assert shown(line, "allocated") == [1, 1, 0]
    assert line.totals["allocated"] == 2
    assert line.totals["freed"] == 2
    assert line.peaks["payload"] == 5
    assert line.means["payload"] == pytest.approx(8 / 3)
    assert line.closing_gap_bytes == 0
    assert line.recipe == {"max_sequences": 4, "max_step_tokens": 64, "step_us": 50_000}
    assert line.final_lengths == [5, 7]


def test_a_clocked_ledger_names_its_costs_and_no_length_of_a_step() -> None:
    costs = StepCosts(base_us=3)
    done = replace(cast("FakeReplay", replay_of([0], **closed([1]))), scheduler=FakeScheduler(costs=costs))
    line = ledger(cast("Replay", done))
    assert line.step_us == 0
    assert line.recipe["costs"] == str(costs)


def test_thinning_sums_events_and_keeps_the_last_level_of_each_bucket() -> None:
    """Ten steps in at most six rows: buckets of ceil(10 / (6 - 2)) = 3, cut again at both peaks.

    payload peaks at row 4 and live_blocks at row 6, so buckets end at rows 2, 4, 5, 6, 8 and 9.
    """
    payload = [1, 2, 3, 4, 9, 5, 4, 3, 2, 1]
    live = [1, 1, 1, 2, 3, 3, 7, 2, 1, 1]
    allocated = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    line = ledger(replay_of(list(range(10, 20)), **closed(payload), live_blocks=live, allocated=allocated), 6)

    assert line.steps_per_row == 3
    assert line.steps == [12, 14, 15, 16, 18, 19]
    assert shown(line, "payload") == [3, 9, 5, 4, 2, 1]
    assert shown(line, "live_blocks") == [1, 3, 3, 7, 1, 1]
    assert shown(line, "allocated") == [1 + 2 + 4, 8 + 16, 32, 64, 128 + 256, 512]
    assert line.totals["allocated"] == 1023
    assert line.peaks["live_blocks"] == 7
    assert line.means["payload"] == pytest.approx(3.4)


def test_absent_is_null_and_never_zero() -> None:
    line = ledger(
        replay_of(
            [0, 1, 2, 3, 4, 5, 6],
            payload=[1] * 7,
            evicted=[1, 1, ABSENT, 1, 1, 1, 1],
            length_max=[ABSENT, 5] + [3] * 5,
        ),
        5,
    )

    # Rows end at 0 (first peak of payload), 2, 5 and 6: the bucket 1..2 holds the step that was not seen.
    assert line.steps == [0, 2, 5, 6]
    assert shown(line, "evicted") == [1, None, 3, 1]
    assert shown(line, "freed") == [None] * 4
    assert line.totals["evicted"] is None
    assert line.totals["freed"] is None
    assert shown(line, "length_max") == [None, 3, 3, 3]
    assert line.peaks["length_max"] == 5
    assert line.means["length_max"] == pytest.approx(20 / 6)
    assert line.peaks["live_blocks"] is None
    assert line.means["live_blocks"] is None
    assert line.closing_gap_bytes is None


def test_the_closing_gap_is_the_largest_over_all_steps_even_where_thinning_hides_it() -> None:
    """32 slots of 10 bytes: three slots too few at row 1, one too many at row 5."""
    columns = closed([9, 8, 7, 6, 5, 4, 3, 2])
    columns["free"][1] -= 3
    columns["free"][5] += 1
    line = ledger(replay_of(list(range(8)), **columns), 4)

    assert 1 not in line.steps
    assert line.closing_gap_bytes == 30


def test_an_empty_replay_has_an_empty_ledger() -> None:
    line = ledger(replay_of([]))
    assert (line.steps, line.rows, line.steps_total) == ([], [], 0)
    assert line.totals["allocated"] == 0
    assert line.peaks["payload"] is None
    assert line.closing_gap_bytes == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(3, 20),
)
def test_thinning_loses_no_event_and_shows_both_peaks(
    rows: list[tuple[int, int, int]], max_rows: int
) -> None:
    payload, live, freed = (list(column) for column in zip(*rows, strict=True))
    line = ledger(replay_of(list(range(len(rows))), payload=payload, live_blocks=live, freed=freed), max_rows)

    assert len(line.rows) <= max_rows
    assert sum(value or 0 for value in shown(line, "freed")) == sum(freed) == line.totals["freed"]
    assert max(value or 0 for value in shown(line, "payload")) == max(payload) == line.peaks["payload"]
    assert max(value or 0 for value in shown(line, "live_blocks")) == max(live) == line.peaks["live_blocks"]
    assert line.steps[-1] == len(rows) - 1


def test_each_pool_gets_a_ledger_with_a_ref_of_its_own() -> None:
    one = PoolTimeline(SPEC, np.zeros((1, len(COLUMN_NAMES)), np.int64))
    two = PoolTimeline(PoolSpec(PoolKey(group=1), 2, 4, 10), np.zeros((1, len(COLUMN_NAMES)), np.int64))
    replay = cast("Replay", FakeReplay(Timeline(np.array([0]), (one, two))))

    lines = ledger_lines(replay, case="c", engine="e", trace="t")

    assert [line.ref for line in lines] == ["c::e::t::device/g0/r0", "c::e::t::device/g1/r0"]
    assert [line.pool.pool_bytes for line in lines] == [8 * (4 * 10 + 2), 2 * 4 * 10]


def test_an_engine_line_says_what_really_ran() -> None:
    spec = EngineSpec(
        name="reference",
        version="0.1.0",
        adapter_version=2,
        pools=(SPEC,),
        capabilities=frozenset({Capability.PREFIX_CACHE, Capability.PAGED}),
        effective={"block_size": 4},
        layout="tiny",
        dtype="bfloat16",
        provenance={"loader": "built in"},
    )
    line = engine_line(spec, ref="reference@16", engine_hash="0123abcd")

    assert line.capabilities == ["PAGED", "PREFIX_CACHE"]
    assert line.effective == {"block_size": 4}
    assert line.pools[0].block_bytes == 42
    assert line.provenance == {"loader": "built in"}
    assert (line.ref, line.engine_hash, line.adapter_version) == ("reference@16", "0123abcd", 2)


def test_a_trace_line_accounts_for_every_row_read() -> None:
    none = np.full(3, NOT_GIVEN, np.int64)
    trace = Trace(
        request_ids=(RequestId("a"), RequestId("b"), RequestId("c")),
        arrival_us=np.array([0, 1, 2]),
        prompt_tokens=np.array([10, 10, 30]),
        output_tokens=np.array([5, 6, 7]),
        block_size=0,
        node_offsets=np.zeros(4, np.int64),
        nodes=np.zeros(0, np.int64),
        hashed_tokens=none,
        max_output_tokens=none,
        parent=np.array([NOT_GIVEN, 0, NOT_GIVEN]),
        fork_kind=np.array([NOT_GIVEN, 1, NOT_GIVEN]),
        fork_at=np.array([NOT_GIVEN, 10, NOT_GIVEN]),
        cancel_after=np.array([NOT_GIVEN, 2, NOT_GIVEN]),
        cancel_at_us=np.array([9, NOT_GIVEN, NOT_GIVEN]),
        session=none,
        turn=none,
        priority=np.zeros(3, np.int64),
        source=TraceSource("azure", "conv.csv", license="CC-BY"),
        rows_read=5,
        dropped={"zero prompt": 2},
        filled=(Fill("cancels", "2.7 % uniform", 7),),
    )
    line = trace_line(trace, ref="conv", content_hash="kvt1-aa")

    assert line.rows_read == line.requests + sum(line.dropped.values()) == 5
    assert (line.prompt_tokens, line.output_tokens) == (50, 18)
    assert (line.forks, line.cancels) == (1, 2)
    assert line.filled == ["cancels: 2.7 % uniform (seed 7)"]
    assert (line.format, line.license) == ("azure", "CC-BY")


def test_content_and_memory_lines_carry_every_field() -> None:
    content = content_line(replay_of([0]), ledger="L")
    assert (content.mode, content.tokens_written, content.tokens_read) == ("probe", 21, 34)
    assert (content.mismatches, content.first_mismatch) == (1, "token 3 of r1")

    (line,) = memory_lines((DeviceLine(4, "suite", "smaps", observed_bytes=100, mapped_bytes=128),), case="c")
    assert (line.case, line.step, line.owner, line.observer) == ("c", 4, "suite", "smaps")
    assert (line.observed_bytes, line.mapped_bytes) == (100, 128)
    assert line.committed_bytes is None
    assert line.unattributed_bound_bytes == 0
