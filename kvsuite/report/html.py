"""Writes the page: one file, no request, whole or not at all."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from kvsuite.errors import RecordError, TraceError
from kvsuite.report import units
from kvsuite.report.charts import COLOURS, HATCHES
from kvsuite.report.decision_charts import decision_charts
from kvsuite.report.decisions import mean_qualified, percentile_text, trial_texts
from kvsuite.report.drift_charts import drift_charts
from kvsuite.report.ledger_charts import STACK, ledger_charts
from kvsuite.report.ledgers import DEFINITIONS, LABELS
from kvsuite.report.matrix import survived
from kvsuite.report.memory import closes
from kvsuite.report.study_charts import comparison_charts, sweep_charts
from kvsuite.report.view import build_view
from kvsuite.trace.atomic import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.record.reader import Record
    from kvsuite.report.charts import Chart
    from kvsuite.report.drift import PairView, PoolView
    from kvsuite.report.view import View

_ARRAY = "$array"


def render(record: Record, path: Path) -> None:
    """Write ``record`` as one self-contained page at ``path``.

    **Raises:** `RecordError` when a figure lacks what it rests on, or the file cannot be written.
    """
    page = page_text(build_view(record))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    except (OSError, TraceError) as error:
        raise RecordError(
            f"{path}: the report could not be written and nothing was put in its place: {error}"
        ) from error


def page_text(view: View) -> str:
    """Return the page of ``view``."""
    ledgers = {ledger.anchor: ledger_charts(ledger) for ledger in view.drawn}
    comparisons = {comparison.anchor: comparison_charts(comparison) for comparison in view.comparisons}
    sweeps = {sweep.anchor: sweep_charts(sweep) for sweep in view.sweeps}
    decisions = {decision.anchor: decision_charts(decision) for decision in view.decisions}
    drifts = {pool.anchor: drift_charts(pair, pool) for pair, pool in _drift_pools(view)}
    charts: dict[str, tuple[Chart, ...]] = {**ledgers, **comparisons, **sweeps, **decisions, **drifts}
    drawn = [chart for group in charts.values() for chart in group]
    environment = _environment()
    return environment.get_template("report.html.j2").render(
        view=view,
        charts=charts,
        payload=encode_charts(drawn),
        plotlyjs=Markup(get_plotlyjs()) if drawn else "",
        style=_asset(environment, "style.css"),
        script=_asset(environment, "report.js"),
    )


def _drift_pools(view: View) -> list[tuple[PairView, PoolView]]:
    return [(pair, pool) for drift in view.drifts for pair in drift.pairs for pool in pair.pools]


def breakable(name: str) -> Markup:
    """Return a name that a narrow column breaks where its parts begin.

    >>> breakable("a/b_c[<8>]")
    Markup('a/<wbr>b_<wbr>c<wbr>[&lt;8&gt;]')
    """
    return Markup(re.sub(r"([/_])|(?=\[)", r"\1<wbr>", str(escape(name))))


def encode_charts(charts: list[Chart]) -> dict[str, Any]:
    """Return figures as JSON values; each distinct array stands once, in base64, and is referred to.

    Numbers become float32, or int32 where they are whole: a chart needs no more.
    """
    arrays: dict[tuple[str, bytes], int] = {}

    def plain(value: object) -> object:
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "fiu":
            return {_ARRAY: arrays.setdefault(_packed(value), len(arrays))}
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    figures = {chart.key: {"figure": plain(chart.figure), "group": chart.group} for chart in charts}
    return {
        "figures": figures,
        "arrays": [{"dtype": kind, "bdata": base64.b64encode(data).decode()} for kind, data in arrays],
    }


def _packed(values: np.ndarray[Any, Any]) -> tuple[str, bytes]:
    whole = np.isfinite(values).all() and (values == np.trunc(values)).all()
    if whole and (np.abs(values) < 2**31).all():
        return "i4", values.astype("<i4").tobytes()
    return "f4", values.astype("<f4").tobytes()


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvsuite.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": units.human_bytes,
        "exact": units.exact_bytes,
        "count": units.count,
        "percent": units.percent,
        "seconds": units.seconds,
        "breakable": breakable,
    }
    environment.globals |= {
        "plural": units.plural,
        "closes": closes,
        "survived": survived,
        "mean_qualified": mean_qualified,
        "percentile_text": percentile_text,
        "trial_texts": trial_texts,
        "LABELS": LABELS,
        "DEFINITIONS": DEFINITIONS,
        "STACK": STACK,
        "COLOURS": COLOURS,
        "HATCHES": HATCHES,
        "NOT_OBSERVED": units.NOT_OBSERVED,
    }
    return environment


def _asset(environment: jinja2.Environment, name: str) -> Markup:
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])
