"""What every chart is made of: a figure, a legend, and a table that says the same without it.

Text, grid and reference lines take their colour from the page, so that they follow its theme; series
colours are chosen to stand on light and dark alike, and waste is hatched besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.report.units import NOT_OBSERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsuite.report.ledgers import FloatArray

Figure = dict[str, Any]
"""A plotly figure: ``data`` and ``layout``; arrays are NumPy."""

COLOURS = {
    "payload": "#1d64e0",
    "slack": "#ef6711",
    "over_reserved": "#bd68c7",
    "cached": "#26a58b",
    "quarantined": "#ad4c1c",
    "free": "#98a2b3",
    "never_allocatable": "#5d667d",
    "pad": "#7b6149",
}
"""Chosen apart for normal sight and the three colour-vision deficiencies (CIE76 distance over 20)."""
HATCHES = {"slack": "/", "over_reserved": "x", "quarantined": "."}
BLUE, ORANGE, PURPLE, TEAL = (COLOURS[name] for name in ("payload", "slack", "over_reserved", "cached"))
FAINT = 0.28
MAX_TABLE_ROWS = 24
_DENSE_POINTS = 300
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class LegendItem:
    """One entry of a legend; ``traces`` are what it switches on and off."""

    label: str
    colour: str
    mark: str
    """``area``, ``hatch``, ``faint``, ``solid``, ``dash`` or ``dot``."""
    traces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DataTable:
    """What a chart shows, as text."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of the page. ``group`` names charts that share a time axis."""

    key: str
    title: str
    text: str
    figure: Figure
    legend: tuple[LegendItem, ...]
    table: DataTable
    group: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line or area over time: float64[rows], NaN where not observed."""

    label: str
    colour: str
    values: FloatArray
    mark: str = "solid"


def layout(x_title: str, y_title: str, **more: object) -> Figure:
    """Return the layout that all charts share."""
    axis: Figure = {
        "automargin": True,
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": "rgba(0,0,0,0)",
        "gridwidth": 1,
        "zeroline": False,
        "fixedrange": False,
    }
    base: Figure = {
        "font": {"family": _FONT, "size": 12},
        "margin": {"l": 8, "r": 12, "t": 14, "b": 8},
        "height": 280,
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {"font": {"family": _FONT, "size": 12}, "namelength": -1},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {**axis, "title": {"text": x_title, "standoff": 8}, "showgrid": False},
        "yaxis": {**axis, "title": {"text": y_title, "standoff": 8}, "rangemode": "tozero"},
    }
    return _merged(base, more)


def line_trace(x: FloatArray, series: Series, hover: str) -> Figure:
    """Return a line; ``hover`` is a d3 template such as ``%{y:.1%}``."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": series.label,
        "x": x,
        "y": series.values,
        "line": {
            "color": series.colour,
            "width": 2 if len(x) <= _DENSE_POINTS else 1.5,
            "dash": series.mark,
            "shape": "hv",
        },
        "hovertemplate": f"{hover}<extra></extra>",
        "meta": series.label,
    }


def area_trace(x: FloatArray, series: Series, hover: str) -> Figure:
    """Return a line filled down, or up, to zero."""
    line = line_trace(x, series, hover)
    return line | {
        "line": {"color": series.colour, "width": 1, "shape": "hvh"},
        "fill": "tozeroy",
        "fillcolor": translucent(series.colour, 0.55),
    }


def legend_of(series: Sequence[Series]) -> tuple[LegendItem, ...]:
    """Return the legend of series that are traces 0, 1, 2, ... of a figure."""
    return tuple(LegendItem(s.label, s.colour, s.mark, (k,)) for k, s in enumerate(series))


def data_table(
    caption: str,
    first: tuple[str, Sequence[str]],
    series: Sequence[Series],
    text: Callable[[float], str],
    keep: Sequence[int] = (),
) -> DataTable:
    """Return series as a table of at most about `MAX_TABLE_ROWS` rows, evenly spaced, ``keep`` among them."""
    title, labels = first
    total = len(labels)
    even = np.linspace(0, total - 1, min(total, MAX_TABLE_ROWS)).round().astype(int).tolist()
    chosen = sorted({*even, *keep}) if total else []
    said = f"{caption} ({len(chosen)} of {total:,} points)" if len(chosen) < total else caption
    rows = tuple((labels[k], *(_cell(s.values[k], text) for s in series)) for k in chosen)
    return DataTable(said, (title, *(s.label for s in series)), rows)


def level_line(value: float, text: str) -> tuple[Figure, Figure]:
    """Return a dashed line across the plot at ``y`` and its label, both in the page's own ink."""
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
    label = {"text": text, "showarrow": False, "xref": "paper", "x": 1, "y": value}
    label |= {"xanchor": "right", "yanchor": "bottom"}
    return shape | {"line": {"width": 1.5, "dash": "dash"}}, label


def upright_line(value: float, text: str, *, dash: str, label_left: bool) -> tuple[Figure, Figure]:
    """Return a line up the plot at ``x`` and its label on one side of it."""
    shape = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": value, "x1": value}
    label = {"text": text, "showarrow": False, "yref": "paper", "y": 1, "x": value, "yanchor": "top"}
    label |= {"xanchor": "right", "xshift": -5} if label_left else {"xanchor": "left", "xshift": 5}
    return shape | {"line": {"width": 1.5, "dash": dash}}, label


def translucent(colour: str, alpha: float) -> str:
    """Return ``#rrggbb`` with an opacity.

    >>> translucent("#1d64e0", 0.5)
    'rgba(29,100,224,0.5)'
    """
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _merged(base: Figure, more: dict[str, object]) -> Figure:
    merged = dict(base)
    for name, value in more.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _cell(value: float, text: Callable[[float], str]) -> str:
    return NOT_OBSERVED if np.isnan(value) else text(float(value))
