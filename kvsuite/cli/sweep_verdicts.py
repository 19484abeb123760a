"""What `kvsuite sweep --slo` prints: figures by phase, then one verdict and one cause an option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.record.decision_rows import DecisionRow, PercentileRow, PhaseRow
    from kvsuite.record.schema import DecisionLine

_PHASE_NUMBERS = (
    "qualified",
    "95 %",
    "tokens/s",
    "TTFT p50",
    "TTFT p99",
    "ITL p50",
    "ITL p99",
    "safe at",
    "met",
    "late first",
    "late gaps",
    "refused",
    "cancelled",
)


def decision_figures(line: DecisionLine) -> Iterator[Figure]:
    """Yield what the decision rests on."""
    yield "SLO", f"TTFT {_ms(line.slo_ttft_us)}, ITL p99 {_ms(line.slo_itl_us)}"
    yield "step costs", f"{line.kernel} on {line.device}" + (" (projected)" if line.projected else "")
    shipped = next((row for row in line.rows if row.option == line.shipped), None)
    if shipped is not None:
        yield from _trial_figures(line, shipped)
    yield "cold until", f"{line.cold_until_us / 1e6:,.1f} s; {line.repeats} repeats"
    if line.step_slope_us is not None:
        rho = "not defined" if line.step_rho is None else f"{line.step_rho:.2f}"
        yield (
            "step against depth",
            f"{line.step_slope_us:+,.3f} us an entry, Spearman's rho {rho} (at {line.load_sequences:,} "
            f"sequences of {line.load_context_tokens:,} tokens)",
        )


def _trial_figures(line: DecisionLine, row: DecisionRow) -> Iterator[Figure]:
    life, burst = row.lifecycle, row.burst
    if life is not None:
        yield (
            "lifecycle",
            f"survived: {life.requests:,} requests, {life.forked:,} forked, {life.denied:,} denied, "
            f"{life.left_at_once:,} left at once, {life.preempted:,} preempted, "
            f"{life.tokens_read:,} tokens read back",
        )
    if burst is not None:
        declared = f"; {line.declared_burst:,} declared" if line.declared_burst else ""
        yield (
            "divergence burst",
            f"{burst.largest:,} samples at the fullest step, bound by {burst.bound} "
            f"({burst.spare_blocks:,} spare blocks, {burst.running:,} running){declared}",
        )


def phase_table(line: DecisionLine) -> Table:
    """Return cold and steady figures of each option that ran, in rows of their own."""
    table = Table("option", "phase", box=None, pad_edge=False)
    for name in _PHASE_NUMBERS:
        table.add_column(name, justify="right")
    for row in line.rows:
        for phase in row.phases:
            table.add_row(row.option, phase.phase, *_numbers(phase))
    return table


def verdict_table(line: DecisionLine) -> Table:
    """Return option, observed signal, verdict and cause."""
    table = Table("option", "verdict", "cause", "observed", box=None, pad_edge=False)
    for row in line.rows:
        tied = " (tied)" if row.option in line.tied and row.verdict != "ship" else ""
        table.add_row(row.option, f"{row.verdict or 'none'}{tied}", row.cause or "", row.signal)
    return table


def _numbers(phase: PhaseRow) -> Iterator[str]:
    yield f"{sum(phase.qualified_tokens) / len(phase.qualified_tokens):,.0f}"
    yield f"{phase.qualified_low:,.0f}..{phase.qualified_high:,.0f}"
    yield f"{phase.goodput:,.1f}"
    for percentiles in (phase.ttft, phase.itl):
        for percent in (50, 99):
            yield _percentile(percentiles, percent)
    counts = (phase.met, phase.missed_ttft, phase.missed_itl, phase.refused, phase.cancelled)
    for count in (phase.safe_concurrency, *counts):
        yield f"{count:,}"


def _percentile(percentiles: Sequence[PercentileRow], percent: int) -> str:
    return next((_ms(found.value_us) for found in percentiles if found.percent == percent), "")


def _ms(value_us: float) -> str:
    return f"{value_us / 1000:,.4g} ms" if value_us < 1e6 else f"{value_us / 1e6:,.4g} s"
