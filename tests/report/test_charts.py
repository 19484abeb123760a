from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest

from kvsuite.record.schema import SweepRow
from kvsuite.report.charts import COLOURS, MAX_TABLE_ROWS
from kvsuite.report.html import encode_charts
from kvsuite.report.ledger_charts import HISTOGRAM_BINS, MAX_EVENT_ROWS, STACK, ledger_charts
from kvsuite.report.ledgers import LABELS
from kvsuite.report.study_charts import comparison_charts, sweep_charts
from kvsuite.report.view import build_view

if TYPE_CHECKING:
    from kvsuite.report.charts import Chart

ROWS: dict[str, list[int | None]] = {
    "payload": [3, 9, 6],
    "slack": [1, 3, 2],
    "cached": [0, 8, 0],
    "free": [24, 8, 20],
    "live_blocks": [1, 3, 2],
    "allocated": [1, 2, 0],
    "freed": [0, 0, 1],
    "running": [1, 2, 2],
    "length_p50": [None, 4, 3],
}


def charts_of(build: Any, rows: dict[str, list[int | None]] = ROWS, **more: Any) -> dict[str, Chart]:
    lines = [build.engine(), build.trace(), build.ledger(rows, **more), build.content()]
    (view,) = build_view(build.record(*lines)).ledgers
    return {chart.title: chart for chart in ledger_charts(view)}


def trace_of(chart: Chart, name: str) -> dict[str, Any]:
    (found,) = [trace for trace in chart.figure["data"] if trace["name"] == name]
    return found  # type: ignore[no-any-return]


def test_plotly_accepts_every_figure(build: Any) -> None:
    view = build_view(build.record(build.trace(), build.comparison(), build.sweep()))
    drawn = [
        *charts_of(build).values(),
        *comparison_charts(view.comparisons[0]),
        *sweep_charts(view.sweeps[0]),
    ]
    assert len(drawn) == 10
    for chart in drawn:
        go.Figure(chart.figure)


def test_the_stack_reaches_the_pool_line_at_every_step(build: Any) -> None:
    chart = charts_of(build)["The pool, byte by byte"]
    data, drawn = chart.figure["data"], chart.figure["layout"]

    assert [trace["name"] for trace in data] == [LABELS[name] for name in STACK]
    assert {trace["stackgroup"] for trace in data} == {"pool"}
    np.testing.assert_allclose(sum(trace["y"] for trace in data), [336, 336, 336])
    assert (drawn["shapes"][0]["y0"], drawn["shapes"][0]["y1"]) == (336, 336)
    assert drawn["annotations"][0]["text"] == "pool 336 B"
    assert drawn["yaxis"]["range"][1] > 336


def test_a_category_keeps_its_colour_and_waste_is_hatched(build: Any) -> None:
    chart = charts_of(build)["The pool, byte by byte"]
    colours = {item.label: item.colour for item in chart.legend}
    assert colours == {LABELS[name]: COLOURS[name] for name in STACK}
    hatched = [trace["name"] for trace in chart.figure["data"] if "fillpattern" in trace]
    assert hatched == ["Tail slack", "Over-reserved", "Quarantined"]


def test_what_was_not_observed_is_not_drawn_and_said(build: Any) -> None:
    chart = charts_of(build, ROWS | {"cached": [None] * 3})["The pool, byte by byte"]
    assert "Cached" not in [trace["name"] for trace in chart.figure["data"]]
    assert "Cached was not observed" in chart.text


def test_events_are_drawn_both_ways(build: Any) -> None:
    chart = charts_of(build)["Blocks taken and given back"]
    np.testing.assert_array_equal(trace_of(chart, "Allocated")["y"], [1, 2, 0])
    np.testing.assert_array_equal(trace_of(chart, "Freed")["y"], [0, 0, -1])
    assert np.isnan(trace_of(chart, "Evicted")["y"]).all()
    assert chart.table.columns == ("Up to step", "Allocated", "Reactivated", "Freed", "Evicted")
    assert chart.table.rows[2] == ("2", "0", "not observed", "1", "not observed")


def test_many_rows_are_grouped_without_losing_an_event(build: Any) -> None:
    """600 rows in buckets of ceil(600 / (240 - 2)) = 3, the first cut by the peak of payload in row 0."""
    allocated: list[int | None] = list(range(600))
    rows: dict[str, list[int | None]] = {"payload": [1] * 600, "allocated": allocated}
    drawn = trace_of(charts_of(build, rows)["Blocks taken and given back"], "Allocated")
    assert len(drawn["y"]) == len(drawn["x"]) == 201 <= MAX_EVENT_ROWS
    assert drawn["y"][:3].tolist() == [0, 1 + 2, 3 + 4 + 5]
    assert drawn["y"].sum() == sum(range(600))


def test_utilisation_is_of_bytes_and_of_slots(build: Any) -> None:
    chart = charts_of(build)["Utilisation"]
    np.testing.assert_allclose(trace_of(chart, "Payload / pool")["y"], np.array([30, 90, 60]) / 336)
    np.testing.assert_allclose(trace_of(chart, "Payload / allocated")["y"], [3 / 4, 9 / 12, 6 / 8])
    np.testing.assert_allclose(trace_of(chart, "Slack / allocated")["y"], [1 / 4, 3 / 12, 2 / 8])


def test_nothing_allocated_has_no_ratio(build: Any) -> None:
    chart = charts_of(build, {"payload": [0, 4], "slack": [0, 0], "free": [28, 24]})["Utilisation"]
    np.testing.assert_array_equal(trace_of(chart, "Payload / allocated")["y"], [np.nan, 1])


def test_time_is_in_steps_when_few_and_in_trace_time_when_many(build: Any) -> None:
    few = charts_of(build)["Requests"].figure
    assert few["layout"]["xaxis"]["title"]["text"] == "step"
    long = charts_of(build, steps=[0, 6_000, 12_000], last_step=12_000)["Requests"].figure
    assert long["layout"]["xaxis"]["title"]["text"] == "trace time (min)"
    np.testing.assert_allclose(long["data"][0]["x"], [0, 5, 10])


def test_the_table_beside_a_chart_is_short_and_holds_the_peak(build: Any) -> None:
    live: list[int | None] = [1] * 500
    live[123] = 7
    rows: dict[str, list[int | None]] = {"payload": [1] * 500, "live_blocks": live}
    table = charts_of(build, rows)["The pool, byte by byte"].table
    assert "123" in [row[0] for row in table.rows]
    assert len(table.rows) <= MAX_TABLE_ROWS + 1
    assert "(25 of 500 points)" in table.caption


def test_the_final_lengths_are_all_in_the_histogram(build: Any) -> None:
    lengths = list(range(1, 1001))
    chart = charts_of(build, final_lengths=lengths)["Final lengths"]
    bars = chart.figure["data"][0]
    assert len(bars["y"]) == HISTOGRAM_BINS
    assert bars["y"].sum() == 1000
    assert chart.figure["layout"]["annotations"][0]["text"] == "mean 500"


def test_the_comparison_shows_thirty_bins_and_both_lines(build: Any) -> None:
    (view,) = build_view(build.record(build.trace(), build.comparison())).comparisons
    histogram, bars = comparison_charts(view)

    counts = histogram.figure["data"][0]["y"]
    assert len(counts) == 30
    assert (counts[0], counts[15], counts[29], counts.sum()) == (1, 1, 1, 3)
    shapes = histogram.figure["layout"]["shapes"]
    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [(100, 100), (200, 200)]
    assert [label["text"] for label in histogram.figure["layout"]["annotations"]] == [
        "mean 100",
        "maximum 200",
    ]
    assert bars.figure["data"][0]["y"] == ["reserve all", "pages"]
    assert bars.figure["data"][0]["text"] == ["50.0 %", "89.3 %"]
    assert bars.table.rows[0] == ("reserve all", "600", "300", "50.0 %")


def test_a_sweep_is_drawn_over_powers_of_two(build: Any) -> None:
    (view,) = build_view(build.record(build.trace(), build.sweep())).sweeps
    slack, tables = sweep_charts(view)

    axis = slack.figure["layout"]["xaxis"]
    assert (axis["type"], axis["tickvals"]) == ("log", [2, 8])
    np.testing.assert_array_equal(slack.figure["data"][0]["y"], [0.05, 0.25])
    assert np.isnan(slack.figure["data"][1]["y"]).all()
    np.testing.assert_array_equal(tables.figure["data"][0]["y"], [8, 2])
    assert tables.table.rows == (("2", "8.00 KiB"), ("8", "2.00 KiB"))


def test_a_sweep_of_two_engines_draws_a_line_for_each(build: Any) -> None:
    """The toy has blocks of 2 and 8; the acme has blocks of 8 and 32, and more slack."""
    acme = [
        SweepRow(
            option=f"block {size}",
            engine="acme",
            block_size=size,
            steps=9,
            slack_share=slack,
            static_slack_share=slack - 0.1,
            table_bytes_peak=32768 // size,
        )
        for size, slack in ((32, 0.5), (8, 0.3))
    ]
    line = build.sweep(rows=[*build.sweep().rows, *acme])
    (view,) = build_view(build.record(build.trace(), line)).sweeps
    assert [(row.engine, row.block_size) for row in view.paged] == [
        ("toy", 2),
        ("toy", 8),
        ("acme", 8),
        ("acme", 32),
    ]
    slack, tables = sweep_charts(view)
    nan = np.nan
    assert slack.figure["layout"]["xaxis"]["tickvals"] == [2, 8, 32]
    assert [item.label for item in slack.legend] == [
        "Mean over steps, toy",
        "Mean over steps, acme",
        "Every request at its final length",
    ]
    for drawn, expected in zip(
        slack.figure["data"], ([0.05, 0.25, nan], [nan, 0.3, 0.5], [nan, 0.2, 0.4]), strict=True
    ):
        np.testing.assert_allclose(drawn["y"], expected)
    assert tables.table.rows[1] == ("8", "2.00 KiB", "4.00 KiB")
    assert len({item.colour for item in slack.legend}) == 3


def test_a_sweep_of_controls_alone_has_no_charts(build: Any) -> None:
    line = build.sweep(rows=build.sweep().rows[3:])
    (view,) = build_view(build.record(build.trace(), line)).sweeps
    assert sweep_charts(view) == ()


def test_arrays_travel_once_and_come_back(build: Any) -> None:
    charts = list(charts_of(build).values())
    payload = encode_charts(charts)
    arrays = [
        np.frombuffer(base64.b64decode(array["bdata"]), {"i4": "<i4", "f4": "<f4"}[array["dtype"]])
        for array in payload["arrays"]
    ]

    for chart in charts:
        encoded = payload["figures"][chart.key]["figure"]["data"]
        for trace, original in zip(encoded, chart.figure["data"], strict=True):
            np.testing.assert_allclose(arrays[trace["y"]["$array"]], original["y"], rtol=1e-6)
    packed = [(array["dtype"], array["bdata"]) for array in payload["arrays"]]
    assert len(packed) == len(set(packed))
    assert len(packed) < sum(2 * len(chart.figure["data"]) for chart in charts)


@pytest.mark.parametrize(("value", "kind"), [(2**31 - 1, "i4"), (2**31, "f4"), (0.5, "f4"), (np.nan, "f4")])
def test_whole_numbers_that_fit_stay_exact(build: Any, value: float, kind: str) -> None:
    (chart, *_) = charts_of(build).values()
    chart.figure["data"] = [{"y": np.array([value])}]
    (array,) = encode_charts([chart])["arrays"][-1:]
    assert array["dtype"] == kind
