"""The ledger of one pool over one replay, as tables and series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.ledger.row import CATEGORIES, COLUMNS
from kvsuite.record.thin import coarser
from kvsuite.report.context import FigureContext, content_of, ledger_context, window_text

if TYPE_CHECKING:
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import ContentLine, EngineLine, LedgerLine

FloatArray = npt.NDArray[np.float64]

PAD = "pad"
LABELS = {
    "payload": "Payload",
    "slack": "Tail slack",
    "over_reserved": "Over-reserved",
    "cached": "Cached",
    "quarantined": "Quarantined",
    "free": "Free",
    "never_allocatable": "Never allocatable",
    PAD: "Padding",
}
DEFINITIONS = {column.name: column.text for column in COLUMNS} | {
    PAD: "bytes at the ends of blocks that no token can use"
}
_ALLOCATED = ("payload", "slack", "over_reserved")


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes of each category at one moment or on average; ``None``: not observed."""

    title: str
    category_bytes: dict[str, float | None]
    pool_bytes: int

    @property
    def sum_bytes(self) -> float | None:
        """Sum over the categories, or ``None`` where one of them was not observed."""
        seen = [value for value in self.category_bytes.values() if value is not None]
        return sum(seen) if len(seen) == len(self.category_bytes) else None

    @property
    def gap_bytes(self) -> float | None:
        """Pool minus sum: 0 where the ledger closes."""
        return None if self.sum_bytes is None else self.pool_bytes - round(self.sum_bytes)

    def share(self, name: str) -> float | None:
        """Return a category's share of the pool."""
        value = self.category_bytes[name]
        return None if value is None else value / self.pool_bytes

    @property
    def allocated_bytes(self) -> float | None:
        """Bytes of the slots that live sequences hold."""
        parts = [self.category_bytes[name] for name in _ALLOCATED]
        seen = [part for part in parts if part is not None]
        return sum(seen) if len(seen) == len(parts) else None

    @property
    def utilisation(self) -> float | None:
        """Payload over pool."""
        return self.share("payload")

    @property
    def efficiency(self) -> float | None:
        """Payload over allocated."""
        return self._of_allocated("payload")

    @property
    def slack_share(self) -> float | None:
        """Slack over allocated."""
        return self._of_allocated("slack")

    def _of_allocated(self, name: str) -> float | None:
        value, allocated = self.category_bytes[name], self.allocated_bytes
        return None if value is None or not allocated else value / allocated


@dataclass(frozen=True, slots=True)
class LedgerView:
    """One ledger, ready to be shown. ``context`` is ``None`` where there is nothing to draw."""

    anchor: str
    line: LedgerLine
    engine: EngineLine | None
    content: ContentLine | None
    context: FigureContext | None
    peak: Moment | None
    mean: Moment
    unobserved: tuple[str, ...]
    """Categories that could not be seen, by label."""

    @property
    def closes(self) -> bool | None:
        """Whether every step closes; ``None``: could not be judged."""
        gap = self.line.closing_gap_bytes
        return None if gap is None else gap == 0

    @property
    def peak_occupancy(self) -> float | None:
        """Most live blocks at any step over the blocks of the pool."""
        most = self.line.peaks.get("live_blocks")
        return None if most is None else most / self.line.pool.num_blocks

    def most_bytes(self, name: str) -> int | None:
        """Return the most bytes a category, or padding, held at any step."""
        if name == PAD:
            return pad_bytes(self.line)
        most = self.line.peaks.get(name)
        return None if most is None else most * self.line.pool.bytes_per_token

    def drawn_with(self, max_rows: int) -> LedgerView:
        """Return the view with at most ``max_rows`` rows, and a context that says so."""
        line = coarser(self.line, max_rows)
        context = self.context and replace(self.context, window=window_text(line))
        return replace(self, line=line, context=context)

    def series(self, name: str) -> FloatArray:
        """Return one column over the rows, float64[rows], NaN where it was not observed."""
        return column_of(self.line, name)

    def category_bytes(self, name: str) -> FloatArray:
        """Return a category, or padding, in bytes over the rows, float64[rows]."""
        if name == PAD:
            return np.full(len(self.line.steps), float(pad_bytes(self.line)))
        return self.series(name) * self.line.pool.bytes_per_token

    def allocated_tokens(self) -> FloatArray:
        """Return the slots that live sequences hold over the rows, float64[rows]."""
        return self.series("payload") + self.series("slack") + self.series("over_reserved")


def ledger_view(record: Record, line: LedgerLine, anchor: str) -> LedgerView:
    """Return the view of one ledger.

    **Raises:** `RecordError` when its figures lack trace hash, configuration, window or control, unless
    the record was cut short before they could be written.
    """
    drawable = line.steps_total > 0
    if record.cut_short:
        drawable = (
            drawable and record.engine(line.engine) is not None and content_of(record, line) is not None
        )
    peak_row = _peak_row(line)
    unobserved = [name for name in CATEGORIES if _never_seen(line, name)]
    return LedgerView(
        anchor=anchor,
        line=line,
        engine=record.engine(line.engine),
        content=content_of(record, line),
        context=ledger_context(record, line) if drawable else None,
        peak=None if peak_row is None else _moment_of_row(line, peak_row),
        mean=_moment("Mean", line, {name: line.means.get(name) for name in CATEGORIES}),
        unobserved=tuple(LABELS[name] for name in unobserved),
    )


def column_of(line: LedgerLine, name: str) -> FloatArray:
    """Return one column over the rows of a ledger, float64[rows], NaN where it was not observed."""
    if name not in line.columns:
        return np.full(len(line.steps), np.nan)
    at = line.columns.index(name)
    return np.array([row[at] for row in line.rows], np.float64)


def pad_bytes(line: LedgerLine) -> int:
    """Return the padding of the whole pool in bytes."""
    return line.pool.num_blocks * line.pool.pad_bytes_per_block


def _never_seen(line: LedgerLine, name: str) -> bool:
    return name not in line.columns or all(row[line.columns.index(name)] is None for row in line.rows)


def _peak_row(line: LedgerLine) -> int | None:
    """Return the row of the fullest pool: most live blocks, or most payload where blocks were not seen."""
    for name in ("live_blocks", "payload"):
        if not _never_seen(line, name):
            at = line.columns.index(name)
            values = [row[at] for row in line.rows]
            return max(range(len(values)), key=lambda k: -1 if values[k] is None else values[k] or 0)
    return None


def _moment_of_row(line: LedgerLine, row: int) -> Moment:
    tokens = dict(zip(line.columns, line.rows[row], strict=True))
    return _moment(f"Peak, step {line.steps[row]:,}", line, {name: tokens.get(name) for name in CATEGORIES})


def _moment(title: str, line: LedgerLine, tokens: dict[str, float | None] | dict[str, int | None]) -> Moment:
    in_bytes = {name: None if n is None else n * line.pool.bytes_per_token for name, n in tokens.items()}
    return Moment(title, {**in_bytes, PAD: float(pad_bytes(line))}, line.pool.pool_bytes)
