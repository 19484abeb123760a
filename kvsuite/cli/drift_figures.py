"""Rows of a drift comparison as a person reads them in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.record.drift_rows import DriftPool, DriftRow

NOT_SEEN = "not seen"


def chain_table(rows: Sequence[DriftRow]) -> Table:
    """Return one line an engine: whether counts or footprint changed against the one before, and where."""
    table = Table("engine", "counts", "footprint", "first change", box=None, pad_edge=False)
    for row in rows:
        if row.refused is not None:
            (reason, *_) = row.refused.splitlines()
            table.add_row(row.engine, "-", "-", f"did not run: {reason}")
        elif row.verdict is None:
            table.add_row(row.engine, "", "", "")
        else:
            moved = any(not pool.footprint.equal for pool in row.pools)
            counts, footprint = ("changed" if found else "same" for found in (row.verdict == "drift", moved))
            table.add_row(row.engine, counts, footprint, row.sentence)
    return table


def column_table(row: DriftRow, pool: DriftPool) -> Table:
    """Return the columns of one pool that changed: totals of events, means of levels."""
    title = f"pool {pool.key}" if len(row.pools) > 1 else "column"
    table = Table(title, "", box=None, pad_edge=False)
    for name in ("before", "now", "change", "", "steps", "from step", "there"):
        table.add_column(name, justify="right")
    for column in pool.changed:
        change = None if None in (column.old, column.new) else (column.new or 0) - (column.old or 0)
        table.add_row(
            column.name,
            "total" if column.kind == "event" else "mean",
            number(column.old),
            number(column.new),
            NOT_SEEN if change is None else f"{'+' if change >= 0 else ''}{number(change)}",
            "" if change is None or not column.old else f"{change / column.old:+.1%}",
            f"{column.steps_differ:,}",
            f"{column.first_step:,}",
            f"{number(column.first_old)} -> {number(column.first_new)}",
        )
    return table


def footprint_lines(row: DriftRow) -> Iterator[Figure]:
    """Yield which blocks were used, apart from the counts, and the columns that stayed equal."""
    for pool in row.pools:
        where = f" {pool.key}" if len(row.pools) > 1 else ""
        blocks = (
            f"{number(pool.footprint.old_blocks)} -> {number(pool.footprint.new_blocks)} different blocks"
        )
        order = "same order" if pool.footprint.same_order else "another order"
        first = "" if pool.footprint.equal else f", from step {pool.footprint.first_step:,}"
        yield f"footprint{where}", f"{blocks} touched, {order}{first}"
        yield f"equal{where}", ", ".join(pool.equal) or "nothing"


def change_lines(row: DriftRow) -> Iterator[Figure]:
    """Yield busy steps, laws broken, and what is configured otherwise."""
    if row.steps_lost or row.steps_gained:
        yield "busy steps", f"{row.steps_lost:,} gone, {row.steps_gained:,} new, {row.steps:,} in all"
    for law, count in row.violations.items():
        yield "broken now", f"{law}, {count:,} times"
    for change in row.changed_values:
        yield "changed", change


def number(value: float | None) -> str:
    """Return a count, or a mean with two decimals.

    >>> number(4114), number(201.333), number(None)
    ('4,114', '201.33', 'not seen')
    """
    if value is None:
        return NOT_SEEN
    return f"{value:,}" if value == int(value) and isinstance(value, int) else f"{value:,.2f}"
