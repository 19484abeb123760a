"""The work behind `kvsuite sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from kvsuite.cli.output import (
    RunFolder,
    cells_bar,
    engine_slug,
    print_figures,
    print_line,
    print_table,
    short_name,
)
from kvsuite.cli.setup import engine_in_full
from kvsuite.cli.sizes import format_bytes
from kvsuite.cli.sweep_figures import failure_lines, notes, outcome_figures, plan_figures, sweep_table
from kvsuite.cli.trace_figures import trace_figures
from kvsuite.engine import environments
from kvsuite.engine.registry import ADAPTERS, check_known, home_of
from kvsuite.errors import ConfigError
from kvsuite.record.build import trace_line
from kvsuite.record.provenance import utc_now
from kvsuite.record.schema import CaseLine, NoteLine
from kvsuite.sweep.cells import Core
from kvsuite.sweep.executors import executor_maker
from kvsuite.sweep.plan import SweepPlan
from kvsuite.sweep.results import CellFailure
from kvsuite.sweep.run import run_cells
from kvsuite.sweep.store import CellStore
from kvsuite.sweep.traces import TraceRef

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.setup import CacheOptions, TraceOptions
    from kvsuite.cli.sizes import PoolSize
    from kvsuite.cli.sweep_decide import DecisionOrder, SweepDecision
    from kvsuite.record.schema import AnyLine, SweepLine
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.run import Results

CELLS_FOLDER = "cells"
"""Where a run's folder keeps the results of single cells."""
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrder:
    """Everything `kvsuite sweep` was asked for."""

    traces: tuple[str, ...]
    trace_options: TraceOptions
    cache: CacheOptions
    scheduler: SchedulerConfig
    engines: tuple[str, ...]
    sizes: tuple[int, ...]
    controls: tuple[str, ...]
    pools: tuple[PoolSize, ...]
    core: str
    workers: str | None
    fresh: bool
    out: Path | None
    decision: DecisionOrder | None = None

    @property
    def folder(self) -> Path:
        """Where record and page go, and what is kept of each cell."""
        words = [*map(short_name, self.traces), *map(engine_slug, self.engines)]
        name = f"sweep-{'-'.join(words)}"[:_LONGEST_NAME]
        return Path("reports") / name if self.out is None else self.out

    def plan(self) -> SweepPlan:
        """Return the sweep, its traces opened and the environments of its engines built.

        **Raises:** `ConfigError` for a pool that is not in bytes, a sweep without a control, and what
        `SweepPlan` refuses; `EnvironmentUnavailable`.
        """
        odd = [pool for pool in self.pools if pool.unit != "bytes"]
        if odd:
            raise ConfigError(
                f"a pool of {odd[0]} is another pool at each block size: give it in bytes, such as 20GiB"
            )
        if not self.controls:
            raise ConfigError("no contiguous control: figures of block sizes need one to be held against")
        cores = {core: core for core in get_args(Core)}
        if self.core not in cores:
            raise ConfigError(f"unknown core {self.core!r}: expected one of {', '.join(cores)}")
        names = [short_name(trace) for trace in self.traces]
        refs = (
            TraceRef.read(trace, self.trace_options, name=name if names.count(name) == 1 else trace)
            for trace, name in zip(self.traces, names, strict=True)
        )
        return SweepPlan(
            traces=tuple(refs),
            layout=self.cache.layout(),
            pools_bytes=tuple(pool.count for pool in self.pools),
            engines=tuple(_ready(engine) for engine in self.engines),
            sizes=self.sizes,
            controls=self.controls,
            scheduler=self.scheduler,
            prefix_cache=self.cache.prefix_cache,
            watermark_blocks=self.cache.watermark_blocks,
            max_model_tokens=self.cache.max_model_tokens,
            engine_options=self.cache.options,
            core=cores[self.core],
        )


def run(order: SweepOrder) -> int:
    """Sweep, print, write.

    Return 1 where a cell broke a law, else the exit code of failed cells, else that of the decision, or 0.
    """
    folder = RunFolder(order.folder, utc_now())
    folder.check()
    stored = None if order.decision is None else order.decision.stored_decision(folder.path)
    plan = order.plan()
    costs = None
    if order.decision is not None:
        order.decision.check(plan)
        costs = order.decision.costs(plan, order.cache.model, folder.path, fresh=order.fresh)
    cells = plan.cells()
    make_executor = executor_maker(order.workers, cells)
    store = CellStore(folder.path / CELLS_FOLDER)
    if order.fresh:
        store.clear()
    for text, trace in zip(order.traces, plan.traces, strict=True):
        print_figures(trace_figures(text, trace.open(), order.trace_options.limit))
    print_figures(plan_figures(plan))
    with cells_bar("cells") as progress:
        results = run_cells(cells, make_executor, store=store, progress=progress)
    print_table(sweep_table(plan, cells, results))
    print_figures(outcome_figures(cells, results))
    decision = None
    if order.decision is not None and costs is not None:
        decision = order.decision.decide(plan, costs, stored)
    if decision is not None:
        decision.show()
    for note in notes(plan, is_decided=decision is not None):
        print_line(note.text)
    for text in failure_lines(cells, results):
        print_line(text, "red")
    exit_code = _exit_code(results) or (0 if decision is None else decision.exit_code)
    folder.write(_record_lines(plan, cells, results, decision), exit_code)
    if decision is not None:
        decision.write(folder.path)
    return exit_code


def _ready(engine: str) -> str:
    """Return an engine's name with its version in full; its environment is built before cells ask for it."""
    engine = engine_in_full(engine)
    check_known(engine)
    name, _, version = engine.partition("@")
    if version and name in ADAPTERS:
        home, loader = home_of(name)
        environments.ensure(home, version, loader=loader)
    return engine


def _exit_code(results: Results) -> int:
    if any(not isinstance(outcome, CellFailure) and outcome.violations for outcome in results.outcomes):
        return 1
    return max((failure.exit_code for failure in results.failures), default=0)


def _record_lines(
    plan: SweepPlan, cells: Sequence[Cell], results: Results, decision: SweepDecision | None
) -> Iterator[AnyLine]:
    for ref in plan.traces:
        yield trace_line(ref.open(), ref=ref.name, content_hash=ref.content_hash)
    for cell, outcome in zip(cells, results.outcomes, strict=True):
        trace, case = cell.trace.name, f"sweep/{cell.trace.name}/{cell.name}"
        engine = cell.name if cell.name.split()[0] == cell.engine else f"{cell.engine} {cell.name}"
        if isinstance(outcome, CellFailure):
            yield CaseLine(
                case=case, engine=engine, outcome="error", duration_s=0.0, device="cpu", message=outcome.error
            )
        else:
            yield from outcome.record_lines(case=case, engine=engine, trace=trace)
    for line in plan.lines(results.rows):
        yield line if any(row.steps for row in line.rows) else _nothing_ran(line)
    if decision is not None:
        yield decision.line
    yield from notes(plan, is_decided=decision is not None)


def _nothing_ran(line: SweepLine) -> NoteLine:
    """Return what stands in place of a table without figures."""
    reasons = "; ".join(f"{row.option}: {row.refused or row.failed}" for row in line.rows)
    where = f"{line.trace}, {format_bytes(line.pool_bytes)}"
    return NoteLine(text=f"no option ran to its end in the sweep over {where}: {reasons}", level="warning")
