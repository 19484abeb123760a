"""Comparisons of allocation strategies, and sweeps over block sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.errors import RecordError
from kvsuite.report.context import FigureContext, comparison_context, is_control, sweep_context
from kvsuite.report.units import count, percent

if TYPE_CHECKING:
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import ComparisonLine, ComparisonRow, SweepLine, SweepRow

CAVEAT = (
    "Reservation was never built for dynamic lengths: it comes from serving fixed, known shapes. "
    "The gap below measures that mismatch, not a fault of contiguous memory as such."
)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One bar of a comparison."""

    row: ComparisonRow
    is_control: bool

    @property
    def utilisation(self) -> float:
        """Payload over reserved slots."""
        return self.row.payload_tokens / self.row.reserved_tokens


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Contiguous and paged allocation of one workload."""

    anchor: str
    line: ComparisonLine
    context: FigureContext
    strategies: tuple[Strategy, ...]
    sentences: tuple[str, ...]
    """Reduction and multiplier of each paged strategy against the largest reservation."""
    caveats: tuple[str, ...]

    @property
    def mean_tokens(self) -> float:
        """Mean length."""
        return sum(self.line.lengths) / len(self.line.lengths)


@dataclass(frozen=True, slots=True)
class SweepView:
    """Block sizes and controls on one trace."""

    anchor: str
    line: SweepLine
    context: FigureContext
    paged: tuple[SweepRow, ...]
    """Options that ran: engine by engine, by block size."""
    controls: tuple[SweepRow, ...]
    refused: tuple[SweepRow, ...]
    failed: tuple[SweepRow, ...]

    @property
    def engines(self) -> tuple[str, ...]:
        """Paged engines that ran, in the order of their rows."""
        return tuple(dict.fromkeys(row.engine for row in self.paged))

    def of(self, engine: str) -> tuple[SweepRow, ...]:
        """Return the rows of a paged engine, by block size."""
        return tuple(row for row in self.paged if row.engine == engine)


def comparison_view(record: Record, line: ComparisonLine, anchor: str) -> ComparisonView:
    """Return the view of a comparison.

    **Raises:** `RecordError` without trace hash, lengths, a contiguous control or a paged strategy, and
    for a strategy that reserved nothing.
    """
    context = comparison_context(record, line)
    strategies = tuple(Strategy(row, is_control(record, row.engine)) for row in line.rows)
    paged = [strategy for strategy in strategies if not strategy.is_control]
    if not paged:
        raise RecordError(
            f"figure {context.figure!r} has no paged strategy to hold against {context.control}"
        )
    if empty := [row.strategy for row in line.rows if row.reserved_tokens <= 0]:
        raise RecordError(
            f"figure {context.figure!r}: {empty[0]} reserved no slots, so it has no utilisation"
        )
    control = max((s for s in strategies if s.is_control), key=lambda s: s.row.reserved_tokens)
    return ComparisonView(
        anchor=anchor,
        line=line,
        context=context,
        strategies=strategies,
        sentences=tuple(_sentence(strategy.row, control.row) for strategy in paged),
        caveats=(CAVEAT, line.caveat) if line.caveat and line.caveat != CAVEAT else (CAVEAT,),
    )


def sweep_view(record: Record, line: SweepLine, anchor: str) -> SweepView:
    """Return the view of a sweep.

    **Raises:** `RecordError` without trace hash, configuration, window or contiguous control.
    """
    context = sweep_context(record, line)
    ran = [row for row in line.rows if row.refused is None and row.failed is None]
    paged = [row for row in ran if not is_control(record, row.engine)]
    place = {engine: index for index, engine in enumerate(dict.fromkeys(row.engine for row in paged))}
    return SweepView(
        anchor=anchor,
        line=line,
        context=context,
        paged=tuple(sorted(paged, key=lambda row: (place[row.engine], row.block_size))),
        controls=tuple(row for row in ran if is_control(record, row.engine)),
        refused=tuple(row for row in line.rows if row.refused is not None),
        failed=tuple(row for row in line.rows if row.failed is not None),
    )


def _sentence(paged: ComparisonRow, control: ComparisonRow) -> str:
    ratio = paged.reserved_tokens / control.reserved_tokens
    return (
        f"{count(paged.reserved_tokens)} slots ({paged.strategy}) instead of "
        f"{count(control.reserved_tokens)} ({control.strategy}): {percent(1 - ratio)} less memory, "
        f"or {1 / ratio:.1f} times the sequences in the same memory."
    )
