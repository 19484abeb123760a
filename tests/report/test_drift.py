"""Drift in the page: what moved, by how much, against what; nothing without what it rests on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvsuite.errors import RecordError
from kvsuite.record.drift_rows import DriftColumn, DriftFootprint, DriftPool, DriftRow
from kvsuite.record.schema import DriftLine
from kvsuite.report.drift import ColumnView
from kvsuite.report.drift_charts import drift_charts
from kvsuite.report.html import page_text
from kvsuite.report.view import build_view

SAME = DriftFootprint(old_blocks=3, new_blocks=3, same_order=True, steps_differ=0)
OTHER = DriftFootprint(old_blocks=4096, new_blocks=1481, same_order=False, steps_differ=2, first_step=1)
CACHED = DriftColumn(
    name="cached",
    kind="level",
    unit="tokens",
    old=8.0,
    new=10.5,
    old_peak=12,
    new_peak=16,
    steps_differ=2,
    first_step=1,
    first_old=8,
    first_new=12,
)
HITS = DriftColumn(
    name="hit",
    kind="event",
    unit="tokens",
    old=200,
    new=150,
    steps_differ=1,
    first_step=2,
    first_old=50,
    first_new=0,
)


def row(engine: str, verdict: str, **more: Any) -> DriftRow:
    return DriftRow(engine=engine, against="toy", verdict=verdict, steps=3, **more)  # type: ignore[arg-type]


def pool(footprint: DriftFootprint = SAME, **more: Any) -> DriftPool:
    fields: dict[str, Any] = {"changed": [], "equal": ["payload", "slack"], "unseen": []}
    return DriftPool(key="device/g0/r0", footprint=footprint, **(fields | more))


DRIFTED = row(
    "toy2",
    "drift",
    sentence="step 1, cached: 8 -> 12",
    changed_values=["eviction: <lru> -> flush"],
    violations={"drain": 1},
    pools=[
        pool(
            OTHER,
            changed=[CACHED, HITS],
            unseen=["window_dropped"],
            first_step=1,
            old_row={"cached": 8, "payload": 4, "hit": 0},
            new_row={"cached": 12, "payload": 4, "hit": 0},
            drawn="cached",
        )
    ],
)


def line(*rows: DriftRow, **more: Any) -> DriftLine:
    fields: dict[str, Any] = {
        "case": "drift/churn",
        "trace": "churn",
        "layout": "tiny L2",
        "recipe": {"block_size": 4},
        "rows": [DriftRow(engine="toy", steps=3), *rows],
    }
    return DriftLine(**(fields | more))


def run(build: Any, *lines: Any) -> Any:
    """Two engines on one trace; the cached slots of the second one rise."""
    written = [build.engine(), build.engine("toy2", version="1.3"), build.trace()]
    for engine, cached in (("toy", [8, 8, 8]), ("toy2", [8, 12, 16])):
        ref = f"drift/churn/{engine}::{engine}::churn::device/g0/r0"
        rows = {"payload": [4, 4, 4], "cached": cached, "free": [20 - slots for slots in cached]}
        written.append(build.ledger(rows, case=f"drift/churn/{engine}", ref=ref, engine=engine))
        written.append(msgspec.structs.replace(build.content(), ledger=ref))
    return build.record(*written, *lines)


def test_a_change_is_shown_with_its_sign_and_share() -> None:
    assert ColumnView(CACHED).change_text == "+2.5 (+31.2 %)"
    assert ColumnView(HITS).change_text == "-50 (-25.0 %)"


def test_the_page_says_what_moved_and_what_did_not(build: Any, parse: Any) -> None:
    page = parse(page_text(build_view(run(build, line(DRIFTED)))))
    text = page.text("drift")

    assert "1 comparison: counts differ in 1, the blocks used alone in 0." in text
    assert "toy → toy2 ✕ drift" in text
    assert "cached mean, tokens 8.0 10.5 +2.5 (+31.2 %) 12 16 2 1" in text
    assert "hit total, tokens 200 150 -50 (-25.0 %) 1 2" in text
    assert "Counts part at step 1. cached 8 → 12." in text
    assert "4,096 → 1,481 different blocks touched, in another order, from step 1." in text
    assert "Equal at every step: payload, slack. Seen in neither: window_dropped." in text
    assert "eviction: <lru> -> flush" in text
    assert "drain broken before: none; now: 1 time." in text
    assert "<lru>" not in page.source
    assert ("a", {"href": "#drift"}) in page.tags


def test_a_figure_carries_what_it_rests_on(build: Any) -> None:
    (drift,) = build_view(run(build, line(DRIFTED))).drifts
    context = drift.pairs[0].context

    assert context.trace_hash.startswith("kvt1-")
    assert context.configuration == "tiny L2; block_size 4"
    assert context.window == "the whole trace, 3 busy steps"
    assert context.control == "toy 1.2, asked for alike (engine feedbeef)"


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (line(DRIFTED, trace="gone"), "trace hash"),
        (line(DRIFTED, recipe={}), "configuration"),
        (line(DriftRow(engine="toy2", against="toy", verdict="drift")), "window"),
    ],
)
def test_a_figure_without_it_is_refused(build: Any, given: DriftLine, missing: str) -> None:
    with pytest.raises(RecordError, match=f"figure 'drift of toy2.*has no {missing}"):
        build_view(run(build, given))


def test_an_engine_that_is_not_in_the_record_is_no_control(build: Any) -> None:
    with pytest.raises(RecordError, match="has no control"):
        build_view(build.record(build.engine("toy2"), build.trace(), line(DRIFTED)))


def test_the_chart_draws_both_sides_of_the_level_that_moved_most(build: Any) -> None:
    (drift,) = build_view(run(build, line(DRIFTED))).drifts
    (chart,) = drift_charts(drift.pairs[0], drift.pairs[0].pools[0])

    assert [(t["name"], t["y"].tolist()) for t in chart.figure["data"]] == [
        ("toy", [8, 8, 8]),
        ("toy2", [8, 12, 16]),
    ]
    assert chart.table.columns == ("Step", "toy", "toy2")
    assert chart.table.rows == (("0", "8", "8"), ("1", "8", "12"), ("2", "8", "16"))


def test_nothing_is_drawn_where_no_level_moved(build: Any) -> None:
    (drift,) = build_view(run(build, line(row("toy2", "drift", pools=[pool(changed=[HITS])])))).drifts

    assert drift_charts(drift.pairs[0], drift.pairs[0].pools[0]) == ()


def test_engines_that_drift_or_did_not_run_are_told_first(build: Any, parse: Any) -> None:
    refused = DriftRow(engine="toy3", refused="no such <version>")
    equal = row("toy4", "equal", pools=[pool()])
    view = build_view(run(build, build.engine("toy4"), line(DRIFTED, refused, equal)))
    page = parse(page_text(view))

    assert (view.verdict.status, view.verdict.headline) == ("bad", "1 engine drifted from the one before")
    assert view.drifts[0].sentence == (
        "2 comparisons: counts differ in 1, the blocks used alone in 0; 1 engine did not run"
    )
    assert "did not run no such <version> toy4 ✓ equal" in page.text("drift")
    assert [pair.row.engine for pair in view.drifts[0].pairs] == ["toy2"]


def test_a_run_without_drift_has_no_such_section(build: Any, parse: Any) -> None:
    assert "drift" not in parse(page_text(build_view(build.record()))).ids
