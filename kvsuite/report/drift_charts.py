"""The picture of a drift: the level that moved most, before and now, over trace time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.row import COLUMNS
from kvsuite.record.thin import coarser
from kvsuite.report.charts import BLUE, ORANGE, Chart, Series, data_table, layout, legend_of, line_trace
from kvsuite.report.ledger_charts import time_axis
from kvsuite.report.ledgers import LABELS, column_of
from kvsuite.report.units import count

if TYPE_CHECKING:
    from kvsuite.record.schema import LedgerLine
    from kvsuite.report.drift import PairView, PoolView

MAX_ROWS = 600
_COLUMNS = {column.name: column for column in COLUMNS}


def drift_charts(pair: PairView, view: PoolView) -> tuple[Chart, ...]:
    """Return the chart of the level that moved most; nothing where none did, or its ledgers are not there."""
    name = view.pool.drawn
    if name is None or view.old is None or view.new is None:
        return ()
    column = _COLUMNS[name]
    ledgers = coarser(view.old, MAX_ROWS), coarser(view.new, MAX_ROWS)
    last = max(line.last_step for line in ledgers)
    axes = [time_axis(line, last) for line in ledgers]
    series = [
        Series(label, colour, column_of(line, name), mark)
        for label, colour, line, mark in (
            (str(pair.row.against), ORANGE, ledgers[0], "dash"),
            (pair.row.engine, BLUE, ledgers[1], "solid"),
        )
    ]
    title = LABELS.get(name, name.replace("_", " ").capitalize())
    traces = [line_trace(axis.values, s, "%{y:,}") for axis, s in zip(axes, series, strict=True)]
    chart = Chart(
        key=view.anchor,
        title=title,
        text=f"The level that moved most as a share of the pool: {column.text}.",
        figure={"data": traces, "layout": layout(axes[0].title, column.unit)},
        legend=legend_of(series),
        table=data_table(
            f"{title} in {column.unit}, at steps that both have", *_at_common_steps(series, ledgers), _whole
        ),
        wide=True,
    )
    return (chart,)


def _at_common_steps(
    series: list[Series], ledgers: tuple[LedgerLine, LedgerLine]
) -> tuple[tuple[str, list[str]], list[Series]]:
    common, *places = np.intersect1d(ledgers[0].steps, ledgers[1].steps, return_indices=True)
    kept = [
        Series(s.label, s.colour, s.values[place], s.mark) for s, place in zip(series, places, strict=True)
    ]
    return ("Step", [f"{step:,}" for step in common.tolist()]), kept


def _whole(value: float) -> str:
    return count(int(value))
