"""The pictures of a decision: the knee, what memory it costs, what depth costs, occupancy, and headroom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.report.charts import (
    BLUE,
    COLOURS,
    ORANGE,
    PURPLE,
    TEAL,
    Chart,
    DataTable,
    Figure,
    LegendItem,
    Series,
    data_table,
    layout,
    legend_of,
    line_trace,
)
from kvsuite.report.decisions import depth_text, mean_qualified, steady
from kvsuite.report.units import count, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.record.decision_rows import DecisionRow
    from kvsuite.report.decisions import DecisionView
    from kvsuite.report.ledgers import FloatArray

_INK = {"ship": BLUE, "inspect": TEAL, "reject": ORANGE, None: COLOURS["free"]}
_SYMBOLS = {"ship": "star", "inspect": "circle-open", "reject": "x", None: "circle"}
_CLOSE = {"rangemode": "normal"}
"""An axis that shows differences: options lie close together, and their tables say how close."""
_WORDS = {
    "ship": "Ships",
    "inspect": "Inspect: wins memory, loses latency",
    "reject": "Reject: loses to memory",
    None: "No verdict",
}


def decision_charts(view: DecisionView) -> tuple[Chart, ...]:
    """Return the pictures over block size; nothing where something else was varied or no size ran."""
    if not view.is_over_sizes or not view.ran:
        return ()
    charts = (_knee(view), _memory(view), _depth(view), _occupancy(view))
    is_told = all(row.spare_blocks is not None for row in view.ran)  # a record before 1.5 does not
    return (*charts, _headroom(view)) if is_told else charts


def _knee(view: DecisionView) -> Chart:
    phases = [steady(row) for row in view.ran]
    means = np.array([mean_qualified(phase) for phase in phases])
    low = np.array([phase.qualified_low for phase in phases])
    high = np.array([phase.qualified_high for phase in phases])
    sizes = _sizes(view)
    line = line_trace(sizes, Series("Qualified tokens", COLOURS["free"], means), "%{y:,.0f}")
    line |= {"line": {"color": COLOURS["free"], "width": 1.5, "dash": "dot"}}
    line |= {"hoverinfo": "skip", "hovertemplate": None}
    marks = []
    for verdict, places in _by_verdict(view.ran):
        marks.append(
            _points(sizes[places], means[places], verdict)
            | {
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": high[places] - means[places],
                    "arrayminus": means[places] - low[places],
                    "color": _INK[verdict],
                    "thickness": 1.5,
                    "width": 5,
                },
                "hovertemplate": "%{y:,.0f} qualified tokens<extra></extra>",
            }
        )
    rows = tuple(
        (row.option, count(round(mean)), f"{count(round(a))} to {count(round(b))}", row.verdict or "none")
        for row, mean, a, b in zip(view.ran, means, low, high, strict=True)
    )
    return Chart(
        key=f"{view.anchor}-knee",
        title="The knee",
        text="Qualified tokens of the steady phase against block size, mean of the repeats, 95 % interval.",
        figure={
            "data": [line, *marks],
            "layout": layout("tokens a block", "tokens", xaxis=_size_axis(view), yaxis=_CLOSE),
        },
        legend=_legend(view, first=1),
        table=DataTable(
            "Qualified tokens by block size", ("Option", "Qualified tokens", "95 % interval", "Verdict"), rows
        ),
    )


def _memory(view: DecisionView) -> Chart:
    series = [
        Series("Slack", COLOURS["slack"], np.array([row.slack_share for row in view.ran], np.float64)),
        Series("Block tables", PURPLE, np.array([row.table_share for row in view.ran], np.float64)),
    ]
    sizes = _sizes(view)
    return Chart(
        key=f"{view.anchor}-memory",
        title="What a block size costs in memory",
        text="Share of the pool that is empty tail slack, mean over steps, and that pays for block tables.",
        figure={
            "data": [
                line_trace(sizes, s, "%{y:.2%}")
                | {
                    "mode": "lines+markers",
                    "line": {"color": s.colour, "width": 2, "dash": s.mark},
                    "marker": {"size": 8},
                }
                for s in series
            ],
            "layout": layout(
                "tokens a block", "share of the pool", xaxis=_size_axis(view), yaxis={"tickformat": ".1~%"}
            ),
        },
        legend=legend_of(series),
        table=data_table(
            "Shares of the pool", ("Block size", [row.option for row in view.ran]), series, "{:.2%}".format
        ),
    )


def _depth(view: DecisionView) -> Chart:
    depths = np.array([row.table_depth for row in view.ran], np.float64)
    step_ms = np.array([row.step_us for row in view.ran], np.float64) / 1000
    marks = [
        _points(depths[places], step_ms[places], verdict)
        | {"hovertemplate": "%{x:,} entries: %{y:,.3~f} ms<extra></extra>"}
        for verdict, places in _by_verdict(view.ran)
    ]
    rows = tuple(
        (row.option, count(row.table_depth), f"{step:,.3f} ms")
        for row, step in zip(view.ran, step_ms, strict=True)
    )
    return Chart(
        key=f"{view.anchor}-depth",
        title="Step time against table depth",
        text=depth_text(view.line),
        figure={
            "data": marks,
            "layout": layout(
                "entries a table",
                "ms",
                hovermode="closest",
                xaxis={"type": "log", "tickvals": depths, "ticktext": [count(int(d)) for d in depths]},
                yaxis=_CLOSE,
            ),
        },
        legend=_legend(view, first=0),
        table=DataTable("Step time at one load", ("Option", "Entries a table", "Decode step"), rows),
    )


def _occupancy(view: DecisionView) -> Chart:
    occupancy = np.array([row.mean_occupancy for row in view.ran], np.float64)
    means = np.array([mean_qualified(steady(row)) for row in view.ran])
    marks = [
        _points(occupancy[places], means[places], verdict)
        | {
            "mode": "markers+text",
            "text": [str(view.ran[k].block_size) for k in places],
            "hovertext": [view.ran[k].option for k in places],
            "textposition": "top center",
            "hovertemplate": "%{hovertext}: %{x:.1%} of the pool, %{y:,.0f} tokens<extra></extra>",
        }
        for verdict, places in _by_verdict(view.ran)
    ]
    rows = tuple(
        (row.option, percent(row.mean_occupancy), count(round(mean)))
        for row, mean in zip(view.ran, means, strict=True)
    )
    return Chart(
        key=f"{view.anchor}-occupancy",
        title="Occupancy against qualified tokens",
        text="Live blocks over the pool, mean over steps: a fuller pool is not a better one.",
        figure={
            "data": marks,
            "layout": layout(
                "occupancy", "tokens", hovermode="closest", xaxis={"tickformat": ".1%"}, yaxis=_CLOSE
            ),
        },
        legend=_legend(view, first=0),
        table=DataTable("Occupancy and tokens", ("Option", "Occupancy, mean", "Qualified tokens"), rows),
    )


def _headroom(view: DecisionView) -> Chart:
    sizes = _sizes(view)
    spare = np.array([row.spare_blocks for row in view.ran], np.float64)
    marks = [
        _points(sizes[places], spare[places], verdict)
        | {"hovertemplate": "%{y:,} spare blocks<extra></extra>"}
        for verdict, places in _by_verdict(view.ran)
    ]
    rows = tuple(
        (
            row.option,
            count(int(blocks)),
            "" if row.burst is None else count(row.burst.largest),
            "" if row.burst is None else row.burst.bound,
        )
        for row, blocks in zip(view.ran, spare, strict=True)
    )
    return Chart(
        key=f"{view.anchor}-headroom",
        title="Divergence-burst headroom",
        text="Blocks free or reclaimable when the pool was fullest: a sample that diverges takes one.",
        figure={
            "data": marks,
            "layout": layout(
                "tokens a block", "blocks", xaxis=_size_axis(view), yaxis={"rangemode": "tozero"}
            ),
        },
        legend=_legend(view, first=0),
        table=DataTable(
            "Headroom by block size", ("Option", "Spare blocks", "Largest burst borne", "Bound by"), rows
        ),
    )


def _by_verdict(rows: Sequence[DecisionRow]) -> list[tuple[str | None, list[int]]]:
    """Return the places of the rows of each verdict, in the order of `_WORDS`."""
    found = [(verdict, [k for k, row in enumerate(rows) if row.verdict == verdict]) for verdict in _WORDS]
    return [(verdict, places) for verdict, places in found if places]


def _points(x: FloatArray, y: FloatArray, verdict: str | None) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _WORDS[verdict],
        "x": x,
        "y": y,
        "marker": {"color": _INK[verdict], "symbol": _SYMBOLS[verdict], "size": 11, "line": {"width": 2}},
        "meta": _WORDS[verdict],
    }


def _legend(view: DecisionView, *, first: int) -> tuple[LegendItem, ...]:
    return tuple(
        LegendItem(_WORDS[verdict], _INK[verdict], "area", (first + k,))
        for k, (verdict, _) in enumerate(_by_verdict(view.ran))
    )


def _size_axis(view: DecisionView) -> Figure:
    """Return a logarithmic axis with a tick at each block size."""
    sizes = [row.block_size for row in view.ran]
    low, high = float(np.log10(sizes[0])), float(np.log10(sizes[-1]))
    return {
        "type": "log",
        "tickvals": sizes,
        "ticktext": [str(size) for size in sizes],
        "range": [low - 0.1, high + 0.1],
    }


def _sizes(view: DecisionView) -> FloatArray:
    return np.array([row.block_size for row in view.ran], np.float64)
