"""What a figure rests on. Without it, no figure is printed.

Every figure names its input (trace and hash), the configuration that ran, the window it looks at and the
control it was held against.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kvsuite.errors import RecordError
from kvsuite.report.units import count, human_bytes, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.record.reader import Record
    from kvsuite.record.schema import (
        ComparisonLine,
        ContentLine,
        DecisionLine,
        DriftLine,
        DriftRow,
        LedgerLine,
        SweepLine,
        SweepRow,
    )

_CONTROL_PREFIX = "contiguous"
_SHORT_HASH = len("kvt1-") + 12


@dataclass(frozen=True, slots=True)
class FigureContext:
    """Input (trace and hash), configuration, window and control of one figure, for a person to read.

    **Raises:** `RecordError` when one of them is blank.
    """

    figure: str
    trace: str
    trace_hash: str
    configuration: str
    window: str
    control: str

    @property
    def input(self) -> str:
        """Trace and content hash."""
        return f"{self.trace}, {self.trace_hash}"

    @property
    def short_input(self) -> str:
        """Trace and the first digits of its content hash."""
        return f"{self.trace}, {self.trace_hash[:_SHORT_HASH]}…"

    def __post_init__(self) -> None:
        missing = [field.name.replace("_", " ") for field in fields(self) if not getattr(self, field.name)]
        if missing:
            raise RecordError(
                f"figure {self.figure!r} has no {' and no '.join(missing)}: it is not printed without; "
                "write the trace, engine, content and control lines of the run to its record"
            )


def ledger_context(record: Record, ledger: LedgerLine) -> FigureContext:
    """Return what the pictures of one ledger rest on; its control is the content read back."""
    engine = record.engine(ledger.engine)
    pool = ledger.pool
    configuration = ""
    if engine is not None and ledger.recipe:
        configuration = (
            f"{engine.name} {engine.version}, {engine.layout or engine.dtype}; "
            f"{count(pool.num_blocks)} blocks of {plural(pool.block_size, 'token')} "
            f"({human_bytes(pool.pool_bytes)}); {settings(ledger.recipe)}"
        )
    return FigureContext(
        figure=f"ledger of {ledger.case}",
        trace=ledger.trace,
        trace_hash=_hash(record, ledger.trace),
        configuration=configuration,
        window=window_text(ledger),
        control=_content_text(content_of(record, ledger)),
    )


def comparison_context(record: Record, line: ComparisonLine) -> FigureContext:
    """Return what a comparison of allocation strategies rests on; its control is contiguous reservation."""
    controls = [row.strategy for row in line.rows if is_control(record, row.engine)]
    lengths = len(line.lengths)
    return FigureContext(
        figure=f"comparison of {line.case}",
        trace=line.trace,
        trace_hash=_hash(record, line.trace),
        configuration=(
            f"blocks of {plural(line.block_size, 'token')}, maximum length {count(line.max_tokens)} tokens"
            if line.rows
            else ""
        ),
        window=f"{plural(lengths, 'sequence')}, each at its final length" if lengths else "",
        control=", ".join(controls),
    )


def sweep_context(record: Record, line: SweepLine) -> FigureContext:
    """Return what a sweep rests on; its control is at least one contiguous option, refused or not."""
    controls = [row.option for row in line.rows if is_control(record, row.engine)]
    return FigureContext(
        figure=f"sweep over {line.trace}",
        trace=line.trace,
        trace_hash=_hash(record, line.trace),
        configuration=f"{line.layout}; pool of {human_bytes(line.pool_bytes)}; {settings(line.recipe)}"
        if line.layout and line.recipe
        else "",
        window=_sweep_window(line.rows),
        control=", ".join(controls),
    )


def decision_context(record: Record, line: DecisionLine) -> FigureContext:
    """Return what a decision rests on; its control is every other option, on the same pool and costs."""
    ran = [row for row in line.rows if row.phases]
    requests = sorted({sum(phase.requests for phase in row.phases) for row in ran})
    others = [row.option for row in line.rows if row.option != line.shipped]
    return FigureContext(
        figure=f"decision over {line.trace}",
        trace=line.trace,
        trace_hash=_hash(record, line.trace),
        configuration=f"{line.layout}; pool of {human_bytes(line.pool_bytes)}, tables paid from it; "
        f"TTFT within {line.slo_ttft_us / 1000:g} ms and ITL p99 within {line.slo_itl_us / 1000:g} ms; "
        f"costs of {line.kernel} on {line.device}{' (projected)' if line.projected else ''}"
        if line.layout and line.recipe
        else "",
        window=f"the whole trace, {plural(requests[-1], 'request')}, {plural(line.repeats, 'repeat')}"
        if requests
        else "no option ran",
        control=", ".join(others),
    )


def drift_context(record: Record, line: DriftLine, row: DriftRow) -> FigureContext:
    """Return what a comparison of two engines rests on; its control is the engine held against."""
    control = None if row.against is None else record.engine(row.against)
    known = record.engine(row.engine) is not None
    return FigureContext(
        figure=f"drift of {row.engine} over {line.trace}",
        trace=line.trace,
        trace_hash=_hash(record, line.trace),
        configuration=f"{line.layout}; {settings(line.recipe)}"
        if line.layout and line.recipe and known
        else "",
        window=f"the whole trace, {plural(row.steps, 'busy step')}" if row.steps else "",
        control=""
        if control is None
        else f"{control.name} {control.version}, asked for alike (engine {control.engine_hash[:8]})",
    )


def content_of(record: Record, ledger: LedgerLine) -> ContentLine | None:
    """Return the content check of the replay that ``ledger`` belongs to."""
    replay = (ledger.case, ledger.engine, ledger.trace)
    refs = {line.ref for line in record.ledgers if (line.case, line.engine, line.trace) == replay}
    return next((content for content in record.contents if content.ledger in refs), None)


def is_control(record: Record, engine: str) -> bool:
    """Return whether ``engine``, a ref or a name, is one of the contiguous controls."""
    line = record.engine(engine)
    if line is not None and line.pools:
        return any(pool.contiguous for pool in line.pools)
    return engine.startswith(_CONTROL_PREFIX)


def settings(values: Mapping[str, int | str | bool]) -> str:
    """Return ``name value`` pairs in one line."""
    return ", ".join(f"{name} {count(v) if type(v) is int else v}" for name, v in values.items())


def _hash(record: Record, ref: str) -> str:
    trace = record.trace(ref)
    return "" if trace is None else trace.content_hash


def window_text(ledger: LedgerLine) -> str:
    """Return the steps a ledger looks at; empty where it has none."""
    if not ledger.steps or not ledger.steps_total:
        return ""
    span_s = (ledger.last_step - ledger.first_step + 1) * ledger.step_us / 1e6
    span = f" in {seconds(span_s)} of trace time" if ledger.step_us else ""
    thinned = (
        "" if ledger.steps_per_row == 1 else f", drawn at {plural(ledger.steps_per_row, 'step')} a point"
    )
    return (
        f"steps {count(ledger.first_step)} to {count(ledger.last_step)} "
        f"({plural(ledger.steps_total, 'busy step')}{span}{thinned})"
    )


def _content_text(content: ContentLine | None) -> str:
    if content is None:
        return ""
    if content.mode == "none":
        return "the pool's own size; content not observed"
    return (
        f"the pool's own size, and content read back ({content.mode} slots: "
        f"{count(content.tokens_read)} tokens, {plural(content.mismatches, 'mismatch', 'mismatches')})"
    )


def _sweep_window(rows: Iterable[SweepRow]) -> str:
    steps = sorted({row.steps for row in rows if row.steps})
    if not steps:
        return ""
    span = count(steps[0]) if len(steps) == 1 else f"{count(steps[0])} to {count(steps[-1])}"
    return f"the whole trace, {span} busy steps an option"
