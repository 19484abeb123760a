"""Rows of a decision: what was measured of an option, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsuite.record.decision_rows import DecisionRow, PercentileRow, PhaseRow
from kvsuite.sweep.slo import RESAMPLES, SEED, interval_places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.sweep.knee import Ruling
    from kvsuite.sweep.measure import Measured, Measurement
    from kvsuite.sweep.slo import Percentile, Served


def decision_row(measured: Measured, ruling: Ruling, measurement: Measurement) -> DecisionRow:
    """Return the row of an option; one without figures has its reason."""
    cell, summary = measured.cell, measured.summary
    if summary is None:
        return DecisionRow(
            option=measured.name,
            engine=cell.engine,
            block_size=cell.block_size,
            control=cell.is_control,
            verdict=ruling.verdict,
            cause=ruling.cause,
            signal=f"refused: {measured.refused}" if measured.refused else f"not judged: {measured.unjudged}",
            refused=measured.refused,
            unjudged=measured.unjudged,
        )
    option, ratio = ruling.option, ruling.ratio
    return DecisionRow(
        option=measured.name,
        engine=cell.engine,
        block_size=cell.block_size,
        control=cell.is_control,
        verdict=ruling.verdict,
        cause=ruling.cause,
        signal=signal(measured, ruling),
        unfit=measured.unfit,
        ratio=None if ratio is None else ratio.value,
        ratio_low=None if ratio is None else ratio.low,
        ratio_high=None if ratio is None else ratio.high,
        pool_blocks=measured.pool_blocks,
        table_bytes=measured.table_bytes,
        table_share=option.table_share,
        slack_share=option.slack_share,
        admitted=summary.total("admitted"),
        preempted=summary.total("preempted"),
        lost_requests=option.lost_requests,
        mean_occupancy=measured.mean("live_blocks") / summary.spec.num_blocks,
        mean_running=measured.mean("running"),
        running_variation=measured.running_variation,
        table_depth=measurement.load.table_depth(cell),
        step_us=measured.step_us[0],
        spare_blocks=measured.spare_blocks,
        burst=None if measured.trial is None else measured.trial.burst,
        lifecycle=None if measured.trial is None else measured.trial.lifecycle,
        phases=[phase_row("cold", measured.cold), phase_row("steady", measured.steady)],
    )


def phase_row(phase: Literal["cold", "steady"], repeats: Sequence[Served]) -> PhaseRow:
    """Return the figures of one phase: qualified tokens of every repeat, the others of the first."""
    first = repeats[0]
    tokens = [figures.qualified_tokens for figures in repeats]
    low, high = mean_interval(tokens)
    return PhaseRow(
        phase=phase,
        requests=first.requests,
        met=first.met,
        missed_ttft=first.missed_ttft,
        missed_itl=first.missed_itl,
        refused=first.refused,
        cancelled=first.cancelled,
        unanswered=first.unanswered,
        completed_tokens=first.completed_tokens,
        qualified_tokens=tokens,
        qualified_low=low,
        qualified_high=high,
        goodput=first.goodput,
        safe_concurrency=first.safe_concurrency,
        ttft=[_percentile(percentile) for percentile in first.ttft],
        itl=[_percentile(percentile) for percentile in first.itl],
    )


def signal(measured: Measured, ruling: Ruling) -> str:
    """Return what was observed of an option that ran, in one line."""
    option = ruling.option
    tokens = sum(option.qualified_tokens) / len(option.qualified_tokens)
    words = [f"{tokens:,.0f} qualified tokens"]
    if ruling.ratio is not None and np.isfinite(ruling.ratio.value):
        ratio = ruling.ratio
        words[0] += f" ({ratio.value:.1%} of the most, {ratio.low:.1%} to {ratio.high:.1%})"
    words += [
        f"slack {option.slack_share:.2%} of the pool",
        f"tables {option.table_share:.2%}",
        f"step {measured.step_us[0] / 1000:,.2f} ms",
    ]
    if option.lost_requests:
        words.append(f"{option.lost_requests:,} requests refused for good")
    if measured.unfit:
        words.append(f"unfit: {measured.unfit}")
    return "; ".join(words)


def mean_interval(values: Sequence[int]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of a mean."""
    array = np.asarray(values, np.float64)
    places = np.random.default_rng(SEED).integers(0, len(array), (RESAMPLES, len(array)))
    means = np.sort(array[places].mean(axis=1))
    low, high = interval_places(RESAMPLES)
    return float(means[low]), float(means[high])


def _percentile(percentile: Percentile) -> PercentileRow:
    return PercentileRow(
        percent=percentile.percent,
        value_us=percentile.value_us,
        low_us=percentile.low_us,
        high_us=percentile.high_us,
    )
