"""The pictures of one ledger: bytes, events, utilisation, requests and lengths over trace time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.record.thin import coarser
from kvsuite.report.charts import (
    BLUE,
    COLOURS,
    FAINT,
    HATCHES,
    ORANGE,
    PURPLE,
    TEAL,
    Chart,
    DataTable,
    Figure,
    LegendItem,
    Series,
    area_trace,
    data_table,
    layout,
    legend_of,
    level_line,
    line_trace,
    translucent,
    upright_line,
)
from kvsuite.report.ledgers import LABELS, LedgerView
from kvsuite.report.units import byte_unit, count, human_bytes, percent, plural

if TYPE_CHECKING:
    from kvsuite.record.schema import LedgerLine
    from kvsuite.report.ledgers import FloatArray

STACK = ("payload", "slack", "over_reserved", "cached", "quarantined", "never_allocatable", "pad", "free")
"""Categories from the bottom of the stack to its top."""
HISTOGRAM_BINS = 40
MAX_EVENT_ROWS = 240
_FEW_STEPS = 400
_FEW_SEQUENCES = 8


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Trace time over the rows of a ledger, or its steps where there are few."""

    values: FloatArray
    title: str
    labels: tuple[str, ...]


def ledger_charts(view: LedgerView) -> tuple[Chart, ...]:
    """Return the charts of a ledger that has a context and at least one row."""
    axis = time_axis(view.line)
    charts = (
        _stack(view, axis),
        _events(view),
        _utilisation(view, axis),
        _lengths(view, axis),
        _requests(view, axis),
    )
    return (*charts, final_lengths(view)) if view.line.final_lengths else charts


def time_axis(line: LedgerLine, last_step: int | None = None) -> TimeAxis:
    """Return where the rows of a ledger stand in time, in the unit that suits it up to ``last_step``."""
    steps = np.array(line.steps, np.float64)
    labels = tuple(f"{step:,}" for step in line.steps)
    last = line.last_step if last_step is None else last_step
    if last <= _FEW_STEPS or not line.step_us:
        return TimeAxis(steps, "step", labels)
    last_s = last * line.step_us / 1e6
    scale, unit = (3600, "h") if last_s > 3 * 3600 else (60, "min") if last_s > 180 else (1, "s")
    return TimeAxis(steps * line.step_us / 1e6 / scale, f"trace time ({unit})", labels)


def _peak_index(view: LedgerView) -> tuple[int, ...]:
    values = view.series("live_blocks")
    return () if np.isnan(values).all() else (int(np.nanargmax(values)),)


def _stack(view: LedgerView, axis: TimeAxis) -> Chart:
    pool = view.line.pool.pool_bytes
    scale, unit = byte_unit(pool)
    seen = [name for name in STACK if LABELS[name] not in view.unobserved]
    series = [
        Series(LABELS[name], COLOURS[name], view.category_bytes(name), _stack_mark(name)) for name in seen
    ]
    traces = [_stack_trace(axis.values, name, s, scale, unit) for name, s in zip(seen, series, strict=True)]
    line, label = level_line(pool / scale, f"pool {human_bytes(pool)}")
    figure: Figure = {
        "data": traces,
        "layout": layout(
            axis.title,
            unit,
            height=380,
            shapes=[line],
            annotations=[label],
            yaxis={"range": [0, pool / scale * 1.09]},
        ),
    }
    left_out = f" {', '.join(view.unobserved)} was not observed and is not drawn." if view.unobserved else ""
    return Chart(
        key=f"{view.anchor}-stack",
        title="The pool, byte by byte",
        text=f"Every byte of the pool by category, stacked up to the pool line.{left_out}",
        figure=figure,
        legend=legend_of(series),
        table=data_table(
            "Bytes of each category", ("Step", axis.labels), series, human_bytes, keep=_peak_index(view)
        ),
        group=view.anchor,
        wide=True,
    )


def _stack_mark(name: str) -> str:
    return "hatch" if name in HATCHES else "faint" if name == "free" else "area"


def _stack_trace(x: FloatArray, name: str, series: Series, scale: int, unit: str) -> Figure:
    colour = translucent(series.colour, FAINT) if name == "free" else series.colour
    trace = line_trace(x, Series(series.label, colour, series.values / scale), f"%{{y:.3~f}} {unit}")
    trace |= {"line": {"width": 0, "shape": "hv"}, "stackgroup": "pool", "fillcolor": colour}
    if name in HATCHES:
        trace["fillpattern"] = {
            "shape": HATCHES[name],
            "size": 6,
            "solidity": 0.3,
            "fgcolor": "rgba(255,255,255,0.75)",
            "bgcolor": colour,
            "fillmode": "replace",
        }
    return trace


def _events(view: LedgerView) -> Chart:
    view = replace(view, line=coarser(view.line, MAX_EVENT_ROWS))
    axis = time_axis(view.line)
    up = [("Allocated", BLUE, "allocated"), ("Reactivated", TEAL, "reactivated")]
    down = [("Freed", ORANGE, "freed"), ("Evicted", PURPLE, "evicted")]
    series = [Series(label, colour, view.series(name), "area") for label, colour, name in up + down]
    signed = [s.values if k < len(up) else -s.values for k, s in enumerate(series)]
    traces = [
        area_trace(axis.values, Series(s.label, s.colour, values), "%{y:,}")
        for s, values in zip(series, signed, strict=True)
    ]
    steps = view.line.steps_per_row
    each = "a step" if steps == 1 else f"a point (up to {plural(steps, 'step')})"
    return Chart(
        key=f"{view.anchor}-events",
        title="Blocks taken and given back",
        text=f"Blocks {each}: taken above the line, given back below it.",
        figure={
            "data": traces,
            "layout": layout(axis.title, "blocks", yaxis={"zeroline": True, "rangemode": "normal"}),
        },
        legend=legend_of(series),
        table=data_table(f"Blocks {each}", ("Up to step", axis.labels), series, _whole),
        group=view.anchor,
    )


def _utilisation(view: LedgerView, axis: TimeAxis) -> Chart:
    payload, allocated = view.series("payload"), view.allocated_tokens()
    in_pool = view.line.pool.pool_bytes / view.line.pool.bytes_per_token
    series = [
        Series("Payload / pool", BLUE, payload / in_pool),
        Series("Payload / allocated", TEAL, _ratio(payload, allocated), "dash"),
        Series("Slack / allocated", ORANGE, _ratio(view.series("slack"), allocated), "dot"),
    ]
    return Chart(
        key=f"{view.anchor}-utilisation",
        title="Utilisation",
        text="How full the pool is with tokens, and how much of what sequences hold is tokens or tail slack.",
        figure={
            "data": [line_trace(axis.values, s, "%{y:.1%}") for s in series],
            "layout": layout(axis.title, "", yaxis={"tickformat": ".0%", "range": [0, 1.04]}),
        },
        legend=legend_of(series),
        table=data_table("Utilisation", ("Step", axis.labels), series, percent, keep=_peak_index(view)),
        group=view.anchor,
    )


def _lengths(view: LedgerView, axis: TimeAxis) -> Chart:
    series = [
        Series("Shortest", BLUE, view.series("length_min")),
        Series("Longest", BLUE, view.series("length_max")),
        Series("90th percentile", ORANGE, view.series("length_p90"), "dot"),
        Series("Median", BLUE, view.series("length_p50")),
    ]
    traces = [line_trace(axis.values, s, "%{y:,}") for s in series]
    for edge in traces[:2]:
        edge["line"] |= {"width": 0}
    traces[1] |= {"fill": "tonexty", "fillcolor": translucent(BLUE, FAINT)}
    return Chart(
        key=f"{view.anchor}-lengths",
        title="Lengths of live sequences",
        text="How many tokens the sequences in the cache hold.",
        figure={"data": traces, "layout": layout(axis.title, "tokens")},
        legend=(
            LegendItem("Shortest to longest", BLUE, "faint", (0, 1)),
            LegendItem(series[2].label, ORANGE, "dot", (2,)),
            LegendItem(series[3].label, BLUE, "solid", (3,)),
        ),
        table=data_table("Live sequence lengths in tokens", ("Step", axis.labels), series, _whole),
        group=view.anchor,
    )


def _requests(view: LedgerView, axis: TimeAxis) -> Chart:
    series = [
        Series("Running", BLUE, view.series("running")),
        Series("Waiting", ORANGE, view.series("waiting"), "dash"),
        Series("Preempted", PURPLE, view.series("preempted"), "area"),
    ]
    traces = [line_trace(axis.values, s, "%{y:,}") for s in series[:2]]
    traces.append(area_trace(axis.values, series[2], "%{y:,}"))
    return Chart(
        key=f"{view.anchor}-requests",
        title="Requests",
        text="Sequences that run, requests that wait, and sequences that had to give way.",
        figure={"data": traces, "layout": layout(axis.title, "requests")},
        legend=legend_of(series),
        table=data_table("Requests", ("Step", axis.labels), series, _whole),
        group=view.anchor,
    )


def final_lengths(view: LedgerView) -> Chart:
    """Return the histogram of the lengths at which sequences ended."""
    lengths = np.array(view.line.final_lengths, np.float64)
    mean = float(lengths.mean())
    bins = min(HISTOGRAM_BINS, max(8, round(2 * len(lengths) ** 0.5)))
    figure, table = histogram(lengths, bins, {"mean": (mean, "solid")})
    return Chart(
        key=f"{view.anchor}-final",
        title="Final lengths",
        text=f"Tokens of each sequence when it ended: {plural(len(lengths), 'sequence')}, mean {mean:,.0f}, "
        f"longest {lengths.max():,.0f}.",
        figure=figure,
        legend=(LegendItem("Sequences", BLUE, "area", (0,)),),
        table=table,
    )


def histogram(
    lengths: FloatArray, bins: int, lines: dict[str, tuple[float, str]]
) -> tuple[Figure, DataTable]:
    """Return a histogram of lengths with labelled vertical lines (value, dash), and its table."""
    counts, edges = np.histogram(lengths, bins=bins)
    middle = max(edges[-1], *(value for value, _ in lines.values())) / 2
    marks = [
        upright_line(value, f"{name} {value:,.0f}", dash=dash, label_left=value > middle)
        for name, (value, dash) in lines.items()
    ]
    bars: Figure = {
        "type": "bar",
        "x": (edges[:-1] + edges[1:]) / 2,
        "y": counts.astype(np.float64),
        "width": np.diff(edges),
        "customdata": np.stack([edges[:-1], edges[1:]], axis=1),
        "marker": {"color": BLUE, "line": {"width": 1, "color": "rgba(255,255,255,0.6)"}},
        "hovertemplate": "%{customdata[0]:,.0f} to %{customdata[1]:,.0f} tokens: %{y:,}<extra></extra>",
        "name": "Sequences",
    }
    rows = tuple(
        (f"{low:,.0f} to {high:,.0f}", count(int(number)))
        for low, high, number in zip(edges[:-1], edges[1:], counts, strict=True)
    )
    drawn = layout(
        "tokens",
        "sequences",
        hovermode="closest",
        bargap=0,
        yaxis={"dtick": 1} if counts.max() < _FEW_SEQUENCES else {},
        shapes=[shape for shape, _ in marks],
        annotations=[label for _, label in marks],
    )
    return {"data": [bars], "layout": drawn}, DataTable("Sequences by length", ("Tokens", "Sequences"), rows)


def _ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    ratio: FloatArray = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return ratio


def _whole(value: float) -> str:
    return f"{value:,.0f}"
