"""Engines, or versions of one, each held against the one before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.record.build import ledger_ref
from kvsuite.report.context import FigureContext, drift_context
from kvsuite.report.units import count, percent, plural

if TYPE_CHECKING:
    from kvsuite.record.drift_rows import DriftColumn, DriftPool, DriftRow
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import DriftLine, LedgerLine

NOTHING = "none"


@dataclass(frozen=True, slots=True)
class ColumnView:
    """One column that changed; ``change`` and ``share`` are ``None`` where a side could not be seen."""

    column: DriftColumn

    @property
    def measure(self) -> str:
        """What is compared: the sum of an event, the mean of a level."""
        return "total" if self.column.kind == "event" else "mean"

    def amount(self, value: float | None) -> float | int | None:
        """Return a total as a whole number, a mean as it is."""
        return int(value) if value is not None and self.column.kind == "event" else value

    @property
    def change(self) -> float | None:
        """Now minus before."""
        old, new = self.column.old, self.column.new
        return None if old is None or new is None else new - old

    @property
    def change_text(self) -> str:
        """The change with its sign, and its share of what was before where there was something."""
        change = self.amount(self.change)
        if change is None:
            return count(None)
        sign = "+" if change > 0 else "-" if change < 0 else "±"
        old = self.column.old
        return f"{sign}{count(abs(change))}" + (f" ({sign}{percent(abs(change) / old)})" if old else "")


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of a pair, with the ledgers its chart is drawn from."""

    anchor: str
    pool: DriftPool
    columns: tuple[ColumnView, ...]
    parted: tuple[tuple[str, int | None, int | None], ...]
    """What differs at the first step where the counts part: column, value before, value now."""
    old: LedgerLine | None
    new: LedgerLine | None


@dataclass(frozen=True, slots=True)
class PairView:
    """One engine held against the one before it."""

    anchor: str
    row: DriftRow
    context: FigureContext
    pools: tuple[PoolView, ...]
    broken: tuple[tuple[str, str, str], ...]
    """Laws that either broke: law, how often before, how often now."""


@dataclass(frozen=True, slots=True)
class DriftView:
    """One chain on one trace. ``pairs`` are the rows that have something to show."""

    anchor: str
    line: DriftLine
    pairs: tuple[PairView, ...]
    sentence: str

    def pair(self, row: DriftRow) -> PairView | None:
        """Return the details of a row, where there are any."""
        return next((pair for pair in self.pairs if pair.row is row), None)


def drift_view(record: Record, line: DriftLine, anchor: str) -> DriftView:
    """Return the view of a chain.

    **Raises:** `RecordError` without trace hash, configuration, window, or the engine held against.
    """
    compared = [row for row in line.rows if row.verdict is not None]
    pairs = tuple(
        _pair(record, line, row, f"{anchor}-{number}")
        for number, row in enumerate(compared, 1)
        if row.verdict != "equal" or row.changed_values or len(compared) == 1
    )
    return DriftView(anchor, line, pairs, _sentence(compared, len(line.rows)))


def _pair(record: Record, line: DriftLine, row: DriftRow, anchor: str) -> PairView:
    before = next(other for other in line.rows if other.engine == row.against)
    laws = sorted(before.violations.keys() | row.violations.keys())
    return PairView(
        anchor=anchor,
        row=row,
        context=drift_context(record, line, row),
        pools=tuple(
            _pool(record, line, row, pool, f"{anchor}-{number}") for number, pool in enumerate(row.pools, 1)
        ),
        broken=tuple((law, _times(before, law), _times(row, law)) for law in laws),
    )


def _pool(record: Record, line: DriftLine, row: DriftRow, pool: DriftPool, anchor: str) -> PoolView:
    def ledger(engine: str) -> LedgerLine | None:
        ref = ledger_ref(case=f"{line.case}/{engine}", engine=engine, trace=line.trace, pool=pool.key)
        return next((found for found in record.ledgers if found.ref == ref), None)

    names = pool.old_row or pool.new_row
    values = ((name, pool.old_row.get(name), pool.new_row.get(name)) for name in names)
    return PoolView(
        anchor=anchor,
        pool=pool,
        columns=tuple(ColumnView(column) for column in pool.changed),
        parted=tuple(value for value in values if value[1] != value[2]),
        old=ledger(str(row.against)),
        new=ledger(row.engine),
    )


def _times(row: DriftRow, law: str) -> str:
    number = row.violations.get(law, 0)
    return plural(number, "time") if number else NOTHING


def _sentence(compared: list[DriftRow], engines: int) -> str:
    drifted = sum(row.verdict == "drift" for row in compared)
    moved = sum(row.verdict == "footprint" for row in compared)
    said = (
        f"{plural(len(compared), 'comparison')}: counts differ in {drifted}, the blocks used alone in {moved}"
    )
    refused = engines - len(compared) - 1
    return f"{said}; {plural(refused, 'engine')} did not run" if refused > 0 else said
