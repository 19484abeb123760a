"""The pictures of comparisons and sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.report.charts import (
    BLUE,
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
from kvsuite.report.ledger_charts import histogram
from kvsuite.report.units import byte_unit, count, human_bytes, percent, plural

if TYPE_CHECKING:
    from kvsuite.report.ledgers import FloatArray
    from kvsuite.report.studies import ComparisonView, SweepView

COMPARISON_BINS = 30


def comparison_charts(view: ComparisonView) -> tuple[Chart, Chart]:
    """Return the histogram of lengths and the bars of utilisation."""
    return _length_histogram(view), _utilisation_bars(view)


def sweep_charts(view: SweepView) -> tuple[Chart, ...]:
    """Return slack and table bytes against block size; nothing where no paged option ran."""
    return (_slack(view), _tables(view)) if view.paged else ()


def _length_histogram(view: ComparisonView) -> Chart:
    lengths = np.array(view.line.lengths, np.float64)
    lines = {"mean": (view.mean_tokens, "solid"), "maximum": (float(view.line.max_tokens), "dash")}
    figure, table = histogram(lengths, COMPARISON_BINS, lines)
    figure["layout"]["xaxis"]["range"] = [0, max(view.line.max_tokens, lengths.max()) * 1.06]
    return Chart(
        key=f"{view.anchor}-lengths",
        title="Actual sequence lengths",
        text=f"{plural(len(lengths), 'sequence')}: min {lengths.min():,.0f}, max {lengths.max():,.0f}, mean "
        f"{view.mean_tokens:,.0f} tokens; {count(view.line.max_tokens)} is what reservation holds for each.",
        figure=figure,
        legend=(LegendItem("Sequences", BLUE, "area", (0,)),),
        table=table,
    )


def _utilisation_bars(view: ComparisonView) -> Chart:
    shares = [strategy.utilisation for strategy in view.strategies]
    bars: Figure = {
        "type": "bar",
        "orientation": "h",
        "y": [strategy.row.strategy for strategy in view.strategies],
        "x": np.array(shares),
        "text": [percent(share) for share in shares],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": [ORANGE if strategy.is_control else BLUE for strategy in view.strategies]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
        "width": 0.56,
    }
    rows = tuple(
        (s.row.strategy, count(s.row.reserved_tokens), count(s.row.payload_tokens), percent(s.utilisation))
        for s in view.strategies
    )
    return Chart(
        key=f"{view.anchor}-utilisation",
        title="Utilisation of what is reserved",
        text="Tokens of data over token slots reserved.",
        figure={
            "data": [bars],
            "layout": layout(
                "",
                "",
                hovermode="closest",
                xaxis={
                    "range": [0, 1.22],
                    "tickformat": ".0%",
                    "tickvals": [0, 0.5, 1],
                    "tickangle": 0,
                    "showgrid": True,
                },
                yaxis={"autorange": "reversed", "showgrid": False},
            ),
        },
        legend=(
            LegendItem("Contiguous control", ORANGE, "area", ()),
            LegendItem("Paged", BLUE, "area", ()),
        ),
        table=DataTable("Utilisation", ("Strategy", "Reserved slots", "Tokens of data", "Utilisation"), rows),
    )


def _slack(view: SweepView) -> Chart:
    mean = _by_engine(view, "Mean over steps", "slack_share", (BLUE, PURPLE, TEAL))
    final = Series(
        "Every request at its final length", ORANGE, _any_engine(view, "static_slack_share"), "dash"
    )
    series = [*mean, final]
    return Chart(
        key=f"{view.anchor}-slack",
        title="Slack against block size",
        text="Share of allocated slots that are empty tail slack.",
        figure={
            "data": [_size_trace(view, s, "%{y:.2%}") for s in series],
            "layout": layout("tokens a block", "", xaxis=_size_axis(view), yaxis={"tickformat": ".1~%"}),
        },
        legend=legend_of(series),
        table=data_table("Slack share", ("Block size", _size_labels(view)), series, "{:.2%}".format),
    )


def _tables(view: SweepView) -> Chart:
    series = _by_engine(view, "Block tables at their largest", "table_bytes_peak", (PURPLE, BLUE, TEAL))
    scale, unit = byte_unit(max(float(np.nanmax(s.values, initial=0)) for s in series))
    scaled = [Series(s.label, s.colour, s.values / scale, s.mark) for s in series]
    return Chart(
        key=f"{view.anchor}-tables",
        title="Block tables against block size",
        text="Bytes of all block tables at their largest: small blocks need long tables.",
        figure={
            "data": [_size_trace(view, s, f"%{{y:.3~f}} {unit}") for s in scaled],
            "layout": layout("tokens a block", unit, xaxis=_size_axis(view)),
        },
        legend=legend_of(series),
        table=data_table("Block-table bytes", ("Block size", _size_labels(view)), series, human_bytes),
    )


def _by_engine(view: SweepView, label: str, name: str, colours: tuple[str, ...]) -> list[Series]:
    """Return a line an engine; where colours come round again, they are dotted, then dashed."""
    engines, marks = view.engines, ("solid", "dot", "dash")
    return [
        Series(
            label if len(engines) == 1 else f"{label}, {engine}",
            colours[k % len(colours)],
            _at_sizes(view, engine, name),
            marks[k // len(colours) % len(marks)],
        )
        for k, engine in enumerate(engines)
    ]


def _any_engine(view: SweepView, name: str) -> FloatArray:
    """Return a figure that is every engine's, at each size that any of them has."""
    columns = np.array([_at_sizes(view, engine, name) for engine in view.engines])
    return np.asarray(np.fmax.reduce(columns, axis=0), np.float64)


def _at_sizes(view: SweepView, engine: str, name: str) -> FloatArray:
    found = {row.block_size: getattr(row, name) for row in view.of(engine)}
    return np.array([found.get(size) for size in _sizes(view)], np.float64)


def _size_trace(view: SweepView, series: Series, hover: str) -> Figure:
    line = {"color": series.colour, "width": 2, "dash": series.mark}
    sizes = np.array(_sizes(view), np.float64)
    return line_trace(sizes, series, hover) | {"mode": "lines+markers", "line": line, "marker": {"size": 8}}


def _size_axis(view: SweepView) -> Figure:
    """Return a logarithmic axis with a tick at each block size, so that powers of two stand evenly."""
    sizes = _sizes(view)
    low, high = float(np.log10(sizes[0])), float(np.log10(sizes[-1]))
    return {
        "type": "log",
        "tickvals": sizes,
        "ticktext": [str(size) for size in sizes],
        "range": [low - 0.1, high + 0.1],
    }


def _size_labels(view: SweepView) -> list[str]:
    return [str(size) for size in _sizes(view)]


def _sizes(view: SweepView) -> list[int]:
    return sorted({row.block_size for row in view.paged})
