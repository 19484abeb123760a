"""Turns what a replay holds into lines of a record."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.row import ABSENT, CATEGORIES, COLUMN_NAMES, COLUMNS, Kind
from kvsuite.record.schema import ContentLine, EngineLine, LedgerLine, MemoryLine, PoolFacts, TraceLine
from kvsuite.record.thin import bucket_ends, rows_per_bucket, thinned, with_nulls
from kvsuite.replay.batch import scheduler_recipe
from kvsuite.trace.model import ABSENT as NOT_GIVEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.ledger.summary import LedgerSummary
    from kvsuite.ledger.timeline import DeviceLine, PoolTimeline
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Fill, Trace

MAX_ROWS = 1500
MAX_FINAL_LENGTHS = 50_000
"""Lengths kept of a replay whose rows are not kept either."""
_LEVELS = tuple(column.name for column in COLUMNS if column.kind is Kind.LEVEL)
_EVENTS = tuple(column.name for column in COLUMNS if column.kind is Kind.EVENT)


def pool_facts(spec: PoolSpec) -> PoolFacts:
    """Return the fixed facts of one pool."""
    return PoolFacts(
        key=str(spec.key),
        num_blocks=spec.num_blocks,
        block_size=spec.block_size,
        bytes_per_token=spec.bytes_per_token,
        block_bytes=spec.block_bytes,
        pad_bytes_per_block=spec.pad_bytes_per_block,
        never_allocatable_blocks=spec.never_allocatable_blocks,
        pool_bytes=spec.pool_bytes,
        contiguous=spec.contiguous,
    )


def engine_line(spec: EngineSpec, *, ref: str, engine_hash: str) -> EngineLine:
    """Return the line of an engine, with the values it really ran with."""
    return EngineLine(
        ref=ref,
        name=spec.name,
        version=spec.version,
        adapter_version=spec.adapter_version,
        engine_hash=engine_hash,
        capabilities=sorted(capability.name for capability in spec.capabilities),
        effective=dict(spec.effective),
        layout=spec.layout,
        dtype=spec.dtype,
        pools=[pool_facts(pool) for pool in spec.pools],
        provenance=dict(spec.provenance),
    )


def trace_line(trace: Trace, *, ref: str, content_hash: str) -> TraceLine:
    """Return the line of a trace: rows read = requests + dropped by reason."""
    cancelled = (trace.cancel_after != NOT_GIVEN) | (trace.cancel_at_us != NOT_GIVEN)
    return TraceLine(
        ref=ref,
        content_hash=content_hash,
        format=trace.source.format,
        requests=len(trace),
        rows_read=trace.rows_read,
        dropped=dict(trace.dropped),
        filled=[_fill_text(fill) for fill in trace.filled],
        prompt_tokens=int(trace.prompt_tokens.sum()),
        output_tokens=int(trace.output_tokens.sum()),
        forks=int((trace.parent != NOT_GIVEN).sum()),
        cancels=int(cancelled.sum()),
        license=trace.source.license,
    )


def ledger_lines(
    replay: Replay, *, case: str, engine: str, trace: str, max_rows: int = MAX_ROWS
) -> list[LedgerLine]:
    """Return one ledger a pool, thinned to at most ``max_rows`` rows.

    Totals, peaks, means and the closing gap are taken over every step, before thinning. The first
    maxima of ``payload`` and of ``live_blocks`` each end a bucket. ``max_rows`` is at least 3.
    """
    return [
        _ledger_line(replay, pool, case=case, engine=engine, trace=trace, max_rows=max_rows)
        for pool in replay.timeline.pools
    ]


def ledger_of_summary(
    summary: LedgerSummary,
    scheduler: SchedulerConfig,
    final_lengths: Int64Array,
    *,
    closing_gap_bytes: int | None,
    case: str,
    engine: str,
    trace: str,
    max_rows: int = MAX_ROWS,
) -> LedgerLine:
    """Return the ledger of a pool whose rows were not kept, from what its summary kept.

    Equal to that of `ledger_lines` where the summary holds one bucket a row. Where a bucket holds more, the
    rows show levels at its end, and a peak inside it stands in ``peaks`` alone. More than
    `MAX_FINAL_LENGTHS` lengths are left out.
    """
    buckets = summary.buckets
    is_event = np.array([column.kind is Kind.EVENT for column in COLUMNS])
    rows = np.where(is_event, buckets.total, buckets.last)
    ends = bucket_ends(rows, COLUMN_NAMES, max_rows)
    sums, peaks = _seen(summary.sums), _seen(summary.maxima)
    return LedgerLine(
        ref=ledger_ref(case=case, engine=engine, trace=trace, pool=str(summary.spec.key)),
        case=case,
        engine=engine,
        trace=trace,
        pool=pool_facts(summary.spec),
        recipe=_recipe(scheduler_recipe(scheduler)),
        steps_total=summary.num_steps,
        first_step=summary.first_step or 0,
        last_step=summary.last_step or 0,
        step_us=scheduler.step_us if scheduler.costs is None else 0,
        steps_per_row=rows_per_bucket(len(rows), max_rows) * buckets.rows_per_bucket,
        columns=list(COLUMN_NAMES),
        steps=buckets.steps[ends].tolist(),
        rows=with_nulls(thinned(rows, COLUMN_NAMES, ends)),
        totals={name: sums[name] for name in _EVENTS},
        peaks={name: peaks[name] if summary.num_steps else None for name in _LEVELS},
        means={name: _mean(sums[name], summary.num_steps) for name in _LEVELS},
        closing_gap_bytes=None if any(sums[name] is None for name in CATEGORIES) else closing_gap_bytes,
        final_lengths=final_lengths.tolist() if len(final_lengths) <= MAX_FINAL_LENGTHS else [],
    )


def ledger_ref(*, case: str, engine: str, trace: str, pool: str) -> str:
    """Return what other lines call the ledger of one pool over one replay."""
    return f"{case}::{engine}::{trace}::{pool}"


def content_line(replay: Replay, *, ledger: str) -> ContentLine:
    """Return what was written and read back in a replay; ``ledger`` is the ref of its first pool."""
    tally = replay.content
    return ContentLine(
        ledger=ledger,
        mode=tally.mode,
        tokens_written=tally.tokens_written,
        tokens_read=tally.tokens_read,
        mismatches=tally.mismatches,
        first_mismatch=tally.first_mismatch,
    )


def memory_lines(readings: tuple[DeviceLine, ...], *, case: str) -> list[MemoryLine]:
    """Return the device readings of a case (`Timeline.device`)."""
    return [MemoryLine(case=case, **asdict(reading)) for reading in readings]


def _ledger_line(
    replay: Replay, pool: PoolTimeline, *, case: str, engine: str, trace: str, max_rows: int
) -> LedgerLine:
    steps = replay.timeline.steps
    ends = bucket_ends(pool.rows, COLUMN_NAMES, max_rows)
    return LedgerLine(
        ref=ledger_ref(case=case, engine=engine, trace=trace, pool=str(pool.spec.key)),
        case=case,
        engine=engine,
        trace=trace,
        pool=pool_facts(pool.spec),
        recipe=_recipe(scheduler_recipe(replay.scheduler)),
        steps_total=len(steps),
        first_step=int(steps[0]) if len(steps) else 0,
        last_step=int(steps[-1]) if len(steps) else 0,
        step_us=replay.scheduler.step_us if replay.scheduler.costs is None else 0,
        steps_per_row=rows_per_bucket(len(steps), max_rows),
        columns=list(COLUMN_NAMES),
        steps=steps[ends].tolist(),
        rows=with_nulls(thinned(pool.rows, COLUMN_NAMES, ends)),
        totals={name: column_total(pool.column(name)) for name in _EVENTS},
        peaks={name: column_peak(pool.column(name)) for name in _LEVELS},
        means={name: column_mean(pool.column(name)) for name in _LEVELS},
        closing_gap_bytes=_closing_gap(pool),
        final_lengths=replay.final_lengths.tolist(),
    )


def column_total(column: Int64Array) -> int | None:
    """Return the sum of an event column; ``None`` where a step of it was not seen."""
    return None if (column == ABSENT).any() else int(column.sum())


def column_peak(column: Int64Array) -> int | None:
    """Return the largest value of a level column that was seen."""
    seen = column[column != ABSENT]
    return int(seen.max()) if len(seen) else None


def column_mean(column: Int64Array) -> float | None:
    """Return the mean of a level column over the steps at which it was seen."""
    seen = column[column != ABSENT]
    return float(seen.mean()) if len(seen) else None


def _seen(values: Int64Array) -> dict[str, int | None]:
    return {
        name: None if value == ABSENT else value
        for name, value in zip(COLUMN_NAMES, values.tolist(), strict=True)
    }


def _mean(total: int | None, steps: int) -> float | None:
    return None if total is None or steps == 0 else total / steps


def _closing_gap(pool: PoolTimeline) -> int | None:
    if any((pool.column(name) == ABSENT).any() for name in CATEGORIES):
        return None
    return int(np.abs(pool.closing_gap_bytes()).max(initial=0))


def _recipe(fields: Mapping[str, object]) -> dict[str, int | str | bool]:
    return {name: value if isinstance(value, int | bool) else str(value) for name, value in fields.items()}


def _fill_text(fill: Fill) -> str:
    return f"{fill.name}: {fill.rule} (seed {fill.seed})"
