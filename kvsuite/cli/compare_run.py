"""The work behind `kvsuite compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from kvsuite.cache.layout import model_layout
from kvsuite.cli.figures import violation_lines
from kvsuite.cli.output import RunFolder, print_figures, print_line, print_table, progress_bar, short_name
from kvsuite.cli.setup import TraceOptions, open_trace
from kvsuite.cli.trace_figures import trace_figures
from kvsuite.record.build import trace_line
from kvsuite.record.provenance import utc_now
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.compare import Comparison, comparison_line, run_strategy, strategies
from kvsuite.sweep.lines import replay_lines
from kvsuite.trace.identity import content_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.record.schema import AnyLine, ComparisonLine, ComparisonRow
    from kvsuite.sweep.compare import StrategyResult


DYNAMIC_LENGTHS = (
    "Reservation was never built for dynamic lengths, but for shapes that are fixed and known: "
    "the figures measure that mismatch on this workload."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOrder:
    """Everything `kvsuite compare` was asked for."""

    workload: str
    churn: str
    engine: str
    block_size: int
    max_tokens: int
    churn_tokens: int
    model: str
    out: Path | None

    @property
    def folder(self) -> Path:
        """Where record and page go."""
        return Path("reports") / f"compare-{short_name(self.workload)}" if self.out is None else self.out

    def comparison(self) -> Comparison:
        """Return the comparison, its traces opened."""
        return Comparison(
            trace=open_trace(self.workload, TraceOptions()),
            churn=open_trace(self.churn, TraceOptions()),
            layout=model_layout(self.model),
            scheduler=SchedulerConfig(),
            paged_engine=self.engine,
            block_size=self.block_size,
            max_tokens=self.max_tokens,
            churn_tokens=self.churn_tokens,
        )


def run(order: CompareOrder) -> int:
    """Compare, print, write; return the exit code: 1 when a law was broken in any replay, else 0."""
    folder = RunFolder(order.folder, utc_now())
    folder.check()
    comparison = order.comparison()
    print_figures([*trace_figures(order.workload, comparison.trace), _length_figure(comparison)])
    results = []
    for engine in strategies(comparison):
        with progress_bar(engine) as progress:
            results.append(run_strategy(comparison, engine, progress))
    rows = [result.row for result in results]
    workload, churn = short_name(order.workload), short_name(order.churn)
    line = comparison_line(comparison, rows, case=f"compare/{workload}", trace=workload, churn=churn)
    print_table(comparison_table(rows))
    print_figures(summary_figures(rows))
    print_line(DYNAMIC_LENGTHS)
    print_line(line.caveat)
    exit_code = 1 if any(result.churn.violations for result in results) else 0
    folder.write(_record_lines(comparison, results, line, churn), exit_code)
    for result in results:
        for text in violation_lines(result.churn):
            print_line(f"{result.row.engine}: {text}", "red")
    return exit_code


def comparison_table(rows: Sequence[ComparisonRow]) -> Table:
    """Return the strategies as a table."""
    table = Table("strategy", box=None, pad_edge=False)
    for name in ("slots reserved", "tokens of data", "utilisation", "fragmentation events", "refused"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.strategy,
            f"{row.reserved_tokens:,}",
            f"{row.payload_tokens:,}",
            f"{row.payload_tokens / row.reserved_tokens:.1%}",
            f"{row.fragmentation_events:,}",
            f"{row.refused_admissions:,}",
        )
    return table


def summary_figures(rows: Sequence[ComparisonRow]) -> Iterator[Figure]:
    """Yield what the last row, paged allocation, saves against the first, plain reservation."""
    reserved, paged = rows[0].reserved_tokens, rows[-1].reserved_tokens
    yield "memory reduction", f"{1 - paged / reserved:.1%}"
    yield "same memory serves", f"{reserved / paged:.1f} times the sequences"
    yield (
        "fragmentation event",
        "an admission refused although enough slots are free, because no unbroken run is long enough; "
        "a waiting request is offered at every step",
    )


def _length_figure(comparison: Comparison) -> Figure:
    lengths = comparison.lengths
    return "lengths", f"min {lengths.min():,}, max {lengths.max():,}, mean {lengths.mean():,.0f} tokens"


def _record_lines(
    comparison: Comparison, results: Sequence[StrategyResult], line: ComparisonLine, churn: str
) -> Iterator[AnyLine]:
    for ref, trace in {line.trace: comparison.trace, churn: comparison.churn}.items():
        yield trace_line(trace, ref=ref, content_hash=content_hash(trace))
    for result in results:
        engine = result.row.engine
        yield from replay_lines(
            result.churn,
            case=f"compare/{churn}/{engine}",
            engine=engine,
            trace=churn,
            duration_s=result.duration_s,
        )
    yield line
