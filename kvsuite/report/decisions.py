"""Decisions: which option ships under an SLO, and what became of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.report.context import FigureContext, decision_context
from kvsuite.report.units import count, plural

if TYPE_CHECKING:
    from kvsuite.record.decision_rows import DecisionRow, PercentileRow, PhaseRow
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import DecisionLine

BLOCK_SIZE = "block size"


@dataclass(frozen=True, slots=True)
class DecisionView:
    """One decision."""

    anchor: str
    line: DecisionLine
    context: FigureContext
    ran: tuple[DecisionRow, ...]
    """Options with figures, controls apart, by block size."""

    @property
    def is_over_sizes(self) -> bool:
        """Whether options differ in block size, and so can be drawn over it."""
        return self.line.factor == BLOCK_SIZE

    @property
    def recipe(self) -> tuple[tuple[str, str], ...]:
        """What the decision depends on, by name."""
        return tuple(
            (name, count(value) if type(value) is int else str(value))
            for name, value in self.line.recipe.items()
        )

    def is_tied(self, row: DecisionRow) -> bool:
        """Whether an option is within the noise of the best."""
        return row.option in self.line.tied


def decision_view(record: Record, line: DecisionLine, anchor: str) -> DecisionView:
    """Return the view of a decision.

    **Raises:** `RecordError` without trace hash, configuration or options to hold each other against.
    """
    ran = [row for row in line.rows if row.phases and not row.control]
    return DecisionView(
        anchor=anchor,
        line=line,
        context=decision_context(record, line),
        ran=tuple(sorted(ran, key=lambda row: row.block_size)),
    )


def trial_texts(view: DecisionView) -> tuple[str, ...]:
    """Return how each option that was to ship bore its lifecycle and its burst, in words."""
    return tuple(_trial_text(view.line, row) for row in view.line.rows if row.lifecycle is not None)


def _trial_text(line: DecisionLine, row: DecisionRow) -> str:
    life, burst = row.lifecycle, row.burst
    assert life is not None
    ended = (
        f"no law was broken, the pool drained, and {plural(life.tokens_read, 'token')} read back were right"
        if life.broken is None
        else f"it did not survive: {life.broken}"
    )
    text = (
        f"{row.option} was taken through the life of {plural(life.requests, 'request')} around its fullest "
        f"step ({count(life.forked)} forked, {count(life.denied)} denied, {count(life.left_at_once)} left at "
        f"once, {count(life.preempted)} preempted): {ended}."
    )
    if burst is None:
        return text
    declared = f"; {count(line.declared_burst)} are declared" if line.declared_burst else ""
    return (
        f"{text} At the fullest step it bore a divergence burst of {plural(burst.largest, 'sample')} "
        f"({count(burst.spare_blocks)} spare blocks, {plural(burst.running, 'sequence')} running, bound by "
        f"{burst.bound}; {plural(burst.copied_tokens, 'token')} copied){declared}."
    )


def steady(row: DecisionRow) -> PhaseRow:
    """Return the phase that decides."""
    return next(phase for phase in row.phases if phase.phase == "steady")


def mean_qualified(phase: PhaseRow) -> float:
    """Return the mean qualified tokens over the repeats."""
    return sum(phase.qualified_tokens) / len(phase.qualified_tokens)


def percentile_text(percentiles: list[PercentileRow], percent: int) -> str | None:
    """Return a percentile with its interval in milliseconds; ``None`` where there is none."""
    found = next((p for p in percentiles if p.percent == percent), None)
    if found is None:
        return None
    value, low, high = (f"{us / 1000:,.4g}" for us in (found.value_us, found.low_us, found.high_us))
    return f"{value} ms ({low} to {high})"


def depth_text(line: DecisionLine) -> str:
    """Return how step time goes with table depth, in words."""
    load = f"{plural(line.load_sequences, 'sequence')} of {count(line.load_context_tokens)} tokens"
    if line.step_slope_us is None:
        return f"A decode step of {load}; one depth alone has no slope."
    rho = "not defined, all steps take the same" if line.step_rho is None else f"{line.step_rho:.2f}"
    return (
        f"A decode step of {load}: {line.step_slope_us:+,.3g} us for each entry that tables are deeper, "
        f"Spearman's rho {rho}."
    )
