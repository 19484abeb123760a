"""What `kvsuite sweep` prints: a table of cells, and what became of those that are not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from kvsuite.cli.sizes import format_bytes
from kvsuite.record.schema import NoteLine
from kvsuite.sweep.plan import exact_bytes
from kvsuite.sweep.results import CellFailure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.record.schema import SweepRow
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.plan import SweepPlan
    from kvsuite.sweep.run import Results

NO_DECISION = (
    "No option is chosen here: the decision also needs latency. Give --slo and --calibration for it."
)
NO_CONTENT = (
    "The reference engine ran on the compiled core: the same ledger, but no content was written and read "
    "back. --core step does both."
)
_NUMBERS = (
    "slack",
    "static slack",
    "efficiency",
    "tables",
    "admitted",
    "preempted",
    "refused",
    "fragmentation",
    "occupancy",
    "running",
)


def sweep_table(plan: SweepPlan, cells: Sequence[Cell], results: Results) -> Table:
    """Return the cells that ran, as a table; what all have in common has no column."""
    names = {
        "engine": [cell.engine for cell in cells],
        "pool": [exact_bytes(cell.pool_bytes) for cell in cells],
        "trace": [cell.trace.name for cell in cells],
    }
    several = {
        "engine": len(plan.engines) > 1,
        "pool": len(plan.pools_bytes) > 1,
        "trace": len(plan.traces) > 1,
    }
    shown = [name for name in names if several[name]]
    table = Table("option", *shown, box=None, pad_edge=False)
    for name in _NUMBERS:
        table.add_column(name, justify="right")
    for index, row in enumerate(results.rows):
        if row.refused is None and row.failed is None:
            table.add_row(row.option, *(names[name][index] for name in shown), *_numbers(row))
    return table


def plan_figures(plan: SweepPlan) -> Iterator[Figure]:
    """Yield what is swept."""
    pools = ", ".join(map(format_bytes, plan.pools_bytes))
    yield "pool", f"{pools}, {plan.layout}"
    if len(plan.engines) > 1:
        yield "engines", ", ".join(plan.engines)
    yield "options", ", ".join([*(f"block {size}" for size in plan.sizes), *plan.controls])


def outcome_figures(cells: Sequence[Cell], results: Results) -> Iterator[Figure]:
    """Yield what was not run now, what was run again, and who refused."""
    if results.from_store:
        yield (
            "from an earlier run",
            f"{results.from_store:,} of {len(cells):,} cells (--fresh runs them again)",
        )
    for text in results.damaged:
        yield "run again", text
    for name in results.retried:
        yield "retried", name
    for cell, row in zip(cells, results.rows, strict=True):
        if row.refused is not None:
            yield cell.name, f"refused: {row.refused}"


def failure_lines(cells: Sequence[Cell], results: Results) -> Iterator[str]:
    """Yield broken laws and cells that failed."""
    for cell, outcome in zip(cells, results.outcomes, strict=True):
        if isinstance(outcome, CellFailure):
            times = "once" if outcome.attempts == 1 else f"{outcome.attempts} times"
            yield f"{cell.name}: FAILED, tried {times}: {outcome.error}"
        else:
            for text in outcome.violations:
                yield f"{cell.name}: VIOLATED {text}"


def notes(plan: SweepPlan, *, is_decided: bool = False) -> Iterator[NoteLine]:
    """Yield what a reader of the figures must know."""
    if not is_decided:
        yield NoteLine(text=NO_DECISION)
    if any(cell.is_compiled for cell in plan.cells()):
        yield NoteLine(text=NO_CONTENT)
    if not plan.prefix_cache:
        return
    for trace in plan.traces:
        hashed = trace.open().block_size
        if hashed > min(plan.sizes, default=hashed):
            which = "this trace" if len(plan.traces) == 1 else trace.name
            yield NoteLine(
                text=f"Prefix hashes of {which} stand for {hashed} tokens: "
                "hits at smaller blocks are a lower bound.",
                level="warning",
            )


def _numbers(row: SweepRow) -> Iterator[str]:
    for share in (row.slack_share, row.static_slack_share, row.allocation_efficiency):
        yield "" if share is None else f"{share:.2%}"
    yield "" if row.table_bytes_peak is None else format_bytes(row.table_bytes_peak)
    for count in (row.admitted, row.preempted, row.refused_admissions, row.fragmentation_events):
        yield "" if count is None else f"{count:,}"
    yield "" if row.mean_occupancy is None else f"{row.mean_occupancy:.2%}"
    yield "" if row.mean_running is None else f"{row.mean_running:,.1f}"
