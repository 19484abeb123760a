"""The work behind `kvsuite sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from kvsuite.cli.figures import violation_lines
from kvsuite.cli.lines import replay_lines
from kvsuite.cli.output import (
    RunFolder,
    engine_slug,
    print_figures,
    print_line,
    print_table,
    progress_bar,
    short_name,
)
from kvsuite.cli.setup import open_trace
from kvsuite.cli.sizes import format_bytes
from kvsuite.cli.trace_figures import trace_figures
from kvsuite.errors import ConfigError
from kvsuite.record.build import trace_line
from kvsuite.record.provenance import utc_now
from kvsuite.record.schema import NoteLine
from kvsuite.sweep.plan import CONTROLS, SweepPlan, run_option, sweep_line, sweep_options
from kvsuite.trace.identity import content_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.setup import CacheOptions, TraceOptions
    from kvsuite.cli.sizes import PoolSize
    from kvsuite.cli.trace_figures import Figure
    from kvsuite.record.schema import AnyLine, SweepRow
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.sweep.plan import OptionResult

LEDGER_ROWS = 256
"""Rows kept of each option's ledger: enough to draw, small enough for a dozen of them."""
NO_DECISION = (
    "No option is chosen here: the decision also needs latency, which this command does not measure."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrder:
    """Everything `kvsuite sweep` was asked for."""

    trace: str
    trace_options: TraceOptions
    cache: CacheOptions
    scheduler: SchedulerConfig
    engine: str
    sizes: tuple[int, ...]
    controls: tuple[str, ...]
    pool: PoolSize
    out: Path | None

    @property
    def folder(self) -> Path:
        """Where record and page go."""
        name = f"sweep-{short_name(self.trace)}-{engine_slug(self.engine)}"
        return Path("reports") / name if self.out is None else self.out

    def plan(self) -> SweepPlan:
        """Return the sweep, its trace opened.

        **Raises:** `ConfigError` for a pool that is not in bytes, or a sweep without a control.
        """
        if self.pool.unit != "bytes":
            raise ConfigError(
                f"a pool of {self.pool} is another pool at each block size: give it in bytes, such as 20GiB"
            )
        if not self.controls:
            raise ConfigError("no contiguous control: figures of block sizes need one to be held against")
        return SweepPlan(
            options=sweep_options(self.engine, self.sizes, self.controls),
            trace=open_trace(self.trace, self.trace_options),
            layout=self.cache.layout(),
            pool_bytes=self.pool.count,
            scheduler=self.scheduler,
            prefix_cache=self.cache.prefix_cache,
            watermark_blocks=self.cache.watermark_blocks,
            max_model_tokens=self.cache.max_model_tokens,
            engine_options=self.cache.options,
        )


def run(order: SweepOrder) -> int:
    """Sweep, print, write; return the exit code: 1 when a law was broken in any option, else 0."""
    folder = RunFolder(order.folder, utc_now())
    folder.check()
    plan = order.plan()
    print_figures([*trace_figures(order.trace, plan.trace, order.trace_options.limit), *_plan_figures(plan)])
    results = []
    for option in plan.options:
        with progress_bar(option.name) as progress:
            results.append(run_option(plan, option, progress))
    print_table(sweep_table([result.row for result in results]))
    print_figures(_refusal_figures(results))
    for note in notes(plan):
        print_line(note.text)
    exit_code = 1 if any(result.replay and result.replay.violations for result in results) else 0
    folder.write(_record_lines(order, plan, results), exit_code)
    for result in results:
        for text in violation_lines(result.replay) if result.replay else ():
            print_line(f"{result.option.name}: {text}", "red")
    return exit_code


def sweep_table(rows: Sequence[SweepRow]) -> Table:
    """Return the options that ran, as a table."""
    table = Table("option", box=None, pad_edge=False)
    for name in ("slack", "static slack", "efficiency", "tables", "admitted", "preempted", "refused"):
        table.add_column(name, justify="right")
    for name in ("fragmentation", "occupancy", "running"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.refused is None:
            table.add_row(row.option, *_cells(row))
    return table


def notes(plan: SweepPlan) -> Iterator[NoteLine]:
    """Yield what a reader of the figures must know."""
    yield NoteLine(text=NO_DECISION)
    paged = [option.block_size for option in plan.options if option.engine not in CONTROLS]
    if plan.prefix_cache and plan.trace.block_size > min(paged, default=plan.trace.block_size):
        yield NoteLine(
            text=f"Prefix hashes of this trace stand for {plan.trace.block_size} tokens: "
            "hits at smaller blocks are a lower bound.",
            level="warning",
        )


def _cells(row: SweepRow) -> Iterator[str]:
    for share in (row.slack_share, row.static_slack_share, row.allocation_efficiency):
        yield "" if share is None else f"{share:.2%}"
    yield format_bytes(row.table_bytes_peak or 0)
    for count in (row.admitted, row.preempted, row.refused_admissions, row.fragmentation_events):
        yield f"{count:,}"
    yield "" if row.mean_occupancy is None else f"{row.mean_occupancy:.2%}"
    yield "" if row.mean_running is None else f"{row.mean_running:,.1f}"


def _plan_figures(plan: SweepPlan) -> Iterator[Figure]:
    yield "pool", f"{format_bytes(plan.pool_bytes)}, {plan.layout}"
    yield "options", ", ".join(option.name for option in plan.options)


def _refusal_figures(results: Sequence[OptionResult]) -> Iterator[Figure]:
    for result in results:
        if result.row.refused is not None:
            yield result.option.name, f"refused: {result.row.refused}"


def _record_lines(order: SweepOrder, plan: SweepPlan, results: Sequence[OptionResult]) -> Iterator[AnyLine]:
    trace = short_name(order.trace)
    yield trace_line(plan.trace, ref=trace, content_hash=content_hash(plan.trace))
    for result in results:
        if result.replay is not None:
            name, engine = result.option.name, result.option.engine
            yield from replay_lines(
                result.replay,
                case=f"sweep/{trace}/{name}",
                engine=engine if engine == name else f"{engine} {name}",
                trace=trace,
                duration_s=result.duration_s,
                max_rows=LEDGER_ROWS,
            )
    yield sweep_line(plan, [result.row for result in results], trace=trace)
    yield from notes(plan)
