"""What one cell came to, small enough to travel and to be kept: a row, a digest, lines of a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kvsuite.engine.contract import RefusalReason
from kvsuite.ledger.row import ABSENT
from kvsuite.record.build import ledger_ref
from kvsuite.record.schema import CaseLine, ContentLine, EngineLine, LedgerLine, SweepRow
from kvsuite.sweep.lengths import static_slack_share
from kvsuite.sweep.lines import ReplayLine  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsuite.ledger.summary import LedgerSummary
    from kvsuite.sweep.cells import Cell
    from kvsuite.trace.model import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell that ran or was refused. Equal wherever it ran: times are no part of equality."""

    row: SweepRow
    digest: str | None = None
    """Of every row of the ledger; ``None`` where the engine refused."""
    violations: tuple[str, ...] = ()
    """The first violation of each broken law, with how many more there are."""
    lines: tuple[ReplayLine, ...] = ()
    """Lines of a record, without names: see `record_lines`."""
    wall_s: float = field(default=0.0, compare=False)
    cpu_s: float = field(default=0.0, compare=False)
    """Of the thread that ran it; an engine in a process of its own is not counted."""

    def record_lines(self, *, case: str, engine: str, trace: str) -> Iterator[ReplayLine]:
        """Yield the lines of the replay under the names that a sweep has for case, engine and trace."""
        names = {"case": case, "engine": engine, "trace": trace}
        refs: list[str] = []
        for line in self.lines:
            match line:
                case EngineLine():
                    yield replace(line, ref=engine)
                case LedgerLine():
                    refs.append(ledger_ref(**names, pool=line.pool.key))
                    yield replace(line, ref=refs[-1], **names)
                case ContentLine():
                    yield replace(line, ledger=refs[0])
                case CaseLine():
                    yield replace(line, case=case, engine=engine, duration_s=self.wall_s)
                case _:
                    yield replace(line, case=case)


@dataclass(frozen=True, slots=True)
class CellFailure:
    """A cell that came to nothing, however often it was tried."""

    row: SweepRow
    error: str
    exit_code: int
    """What the command line returns for an error of its kind."""
    attempts: int


def sweep_row(
    cell: Cell, summary: LedgerSummary, refusals: Mapping[RefusalReason, int], trace: Trace
) -> SweepRow:
    """Return the figures of one replay; shares are of sums over its steps, idle ones apart.

    What an engine does not let us see is ``None``.
    """
    sums = {name: _seen(summary.total(name)) for name in ("payload", "slack", "over_reserved")}
    held = None if None in sums.values() else sum(value or 0 for value in sums.values())
    steps, table_entries = summary.num_steps, _seen(summary.peak("table_entries"))
    return SweepRow(
        option=cell.option,
        engine=cell.engine,
        block_size=cell.block_size,
        slack_share=_share(sums["slack"], held),
        allocation_efficiency=_share(sums["payload"], held),
        static_slack_share=static_slack_share(trace.prompt_tokens + trace.output_tokens, cell.block_size),
        table_bytes_peak=None if table_entries is None else table_entries * summary.spec.table_entry_bytes,
        admitted=_seen(summary.total("admitted")),
        finished=_seen(summary.total("finished")),
        preempted=_seen(summary.total("preempted")),
        refused_admissions=_seen(summary.total("refused_admissions")),
        fragmentation_events=refusals.get(RefusalReason.NO_CONTIGUOUS_RUN, 0),
        peak_payload_tokens=_seen(summary.peak("payload")),
        mean_occupancy=_share(_seen(summary.total("live_blocks")), steps * summary.spec.num_blocks),
        mean_running=_share(_seen(summary.total("running")), steps),
        hit_tokens=_seen(summary.total("hit")),
        steps=steps,
    )


def refused_row(cell: Cell, reason: str) -> SweepRow:
    """Return the row of a cell whose engine refused it."""
    return SweepRow(option=cell.option, engine=cell.engine, block_size=cell.block_size, refused=reason)


def failed_row(cell: Cell, error: str) -> SweepRow:
    """Return the row of a cell that came to nothing."""
    return SweepRow(option=cell.option, engine=cell.engine, block_size=cell.block_size, failed=error)


def _seen(value: int) -> int | None:
    return None if value == ABSENT else value


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
