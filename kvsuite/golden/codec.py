"""From a timeline to a golden and back.

At most `MAX_STEPS` rows and `MAX_LEDGER_BYTES` of ledger a file; a longer replay is written in buckets of
rows, and the buckets grow until the text fits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import GoldenError
from kvsuite.golden.document import (
    REMEDY,
    Bucket,
    Changes,
    Checkpoint,
    Document,
    Entry,
    Facts,
    PoolGolden,
    Suite,
    TraceName,
    line_of,
    parse,
    render_pools,
)
from kvsuite.ledger.row import ABSENT, COLUMNS, INDEX, SCHEMA_VERSION, Kind
from kvsuite.replay.scheduler import SEMANTICS_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.golden.key import Question, Scalar
    from kvsuite.ledger.timeline import PoolTimeline, Timeline

MAX_STEPS = 2000
MAX_FILE_BYTES = 128 * 1024
MAX_LEDGER_BYTES = MAX_FILE_BYTES - 8 * 1024
"""What the ledgers may take of a file; the rest is for the question, provenance and the seal."""
FIRST_BUCKETS = 256
CHECKPOINTS = 32

FOOTPRINT = ("distinct_touched", "id_order")
"""Columns that say *which* blocks were used rather than how many; kept apart from the rows."""
LEVELS = tuple(c.name for c in COLUMNS if c.kind is Kind.LEVEL and c.name not in FOOTPRINT)
EVENTS = tuple(c.name for c in COLUMNS if c.kind is Kind.EVENT)
COUNTED = tuple(c.name for c in COLUMNS if c.name in {*LEVELS, *EVENTS})
_POSITIONS = [INDEX[name] for name in COUNTED]
_IS_LEVEL = np.array([name in LEVELS for name in COUNTED])


@dataclass(frozen=True)
class Observed:
    """A ledger that may be judged by a golden or become one.

    ``engine`` is the engine as it opens by default: its hash names the folder. ``ran`` is the engine as
    this replay opened it, whose effective values stand in the golden.
    """

    engine: EngineSpec
    ran: EngineSpec
    question: Question
    timeline: Timeline
    provenance: Mapping[str, str] = field(default_factory=dict)

    def document(self, rows_per_line: int | None = None) -> Document:
        """Return the golden this ledger makes; by default in the finest form that fits a file."""
        size = self._finest() if rows_per_line is None else rows_per_line
        return Document(
            suite=Suite(ledger_schema=SCHEMA_VERSION, replay_semantics=SEMANTICS_VERSION),
            case=self.question.case,
            label=self.question.label,
            trace=TraceName(name=self.question.trace_name, content_hash=self.question.trace_hash),
            layout=self.question.layout,
            dtype=self.question.dtype,
            recipe=dict(self.question.recipe),
            effective=effective_values(self.ran),
            rows_per_line=size,
            pools=self._pools(size),
            blessed=None,
            provenance={name: self.provenance[name] for name in sorted(self.provenance)},
        )

    def _pools(self, rows_per_line: int) -> list[PoolGolden]:
        steps = self.timeline.steps
        return [encode_pool(pool, steps, rows_per_line) for pool in self.timeline.pools]

    def _finest(self) -> int:
        total = len(self.timeline)
        size = 1 if total <= MAX_STEPS else -(-total // FIRST_BUCKETS)
        while size < total and len(render_pools(self._pools(size)).encode()) > MAX_LEDGER_BYTES:
            size = max(2 * size, -(-total // FIRST_BUCKETS))
        return size


def effective_values(spec: EngineSpec) -> dict[str, Scalar]:
    """Return every value an engine really ran with, its layout and dtype among them, by name."""
    values = {**spec.effective, "layout": spec.layout, "dtype": spec.dtype}
    return {name: values[name] for name in sorted(values)}


def pool_facts(spec: PoolSpec) -> Facts:
    """Return the fixed facts of a pool as a golden writes them."""
    return {
        "key": str(spec.key),
        "num_blocks": spec.num_blocks,
        "block_size": spec.block_size,
        "bytes_per_token": spec.bytes_per_token,
        "pad_bytes_per_block": spec.pad_bytes_per_block,
        "never_allocatable_blocks": spec.never_allocatable_blocks,
        "table_entry_bytes": spec.table_entry_bytes,
        "contiguous": spec.contiguous,
    }


def encode_pool(pool: PoolTimeline, steps: Int64Array, rows_per_line: int = 1) -> PoolGolden:
    """Return the ledger of one pool with ``rows_per_line`` rows a line."""
    rows = pool.rows[:, _POSITIONS]
    unseen = (rows == ABSENT).all(axis=0) & bool(len(rows))
    absent = [COUNTED[column] for column in np.flatnonzero(unseen).tolist()]
    shown = np.array([name not in absent for name in COUNTED])
    ends = np.append(np.arange(rows_per_line - 1, len(rows) - 1, rows_per_line), len(rows) - 1)[: len(rows)]
    values = _line_values(rows, ends)
    changes = [_changes(line, shown & listed) for line, listed in zip(*values, strict=True)]
    at = steps[ends].tolist()
    totals, peaks = _totals(rows), _peaks(rows)
    common = {"facts": pool_facts(pool.spec), "absent": absent, "totals": totals, "peaks": peaks}
    footprint = _footprint(pool.rows, steps)
    if rows_per_line == 1:
        entries = [Entry(*pair) for pair in zip(at, changes, strict=True)]
        return PoolGolden(**common, footprint=footprint, rows=entries)  # type: ignore[arg-type]
    starts = np.concatenate([[0], ends[:-1] + 1])
    spans = [rows[start : end + 1] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    digests = [rows_digest(span) for span in spans]
    buckets = [
        Bucket(*line) for line in zip(at, (len(span) for span in spans), digests, changes, strict=True)
    ]
    return PoolGolden(**common, footprint=footprint, buckets=buckets)  # type: ignore[arg-type]


def rows_digest(rows: Int64Array) -> str:
    """Return a digest of counted columns over consecutive rows: 16 hex digits of SHA-256."""
    return hashlib.sha256(np.ascontiguousarray(rows, "<i8").tobytes()).hexdigest()[:16]


def decode_rows(entries: Sequence[Entry | Bucket]) -> Int64Array:
    """Return the counted columns at the end of each line, int64[lines, len(COUNTED)].

    Levels are rebuilt from their changes; `ABSENT` where a line says null.
    """
    rows = np.zeros((len(entries), len(COUNTED)), np.int64)
    held = np.zeros(len(COUNTED), np.int64)
    place = {name: i for i, name in enumerate(COUNTED)}
    for index, entry in enumerate(entries):
        held[~_IS_LEVEL] = 0
        for name, value in entry.changes.items():
            column = place.get(name)
            if column is None:
                continue
            before = 0 if held[column] == ABSENT else held[column]
            held[column] = ABSENT if value is None else before + value
        rows[index] = held
    return rows


def read(text: str, where: str) -> Document:
    """Return the golden that ``text`` holds, its totals and peaks rebuilt and checked.

    **Raises:** `GoldenError` naming the line, for a golden that is cut, edited, or adds up to something
    else than it says.
    """
    document = parse(text, where)
    if document.suite.ledger_schema != SCHEMA_VERSION:
        return document
    for index, pool in enumerate(document.pools):
        for field_name, problem in _contradictions(pool):
            line = line_of(text, field_name, index)
            raise GoldenError(f"{where}, line {line}: {problem}: {REMEDY}")
    return document


def _contradictions(pool: PoolGolden) -> list[tuple[str, str]]:
    unknown = sorted({name for line in pool.lines for name in line.changes} - set(COUNTED))
    if unknown:
        return [("rows" if pool.rows else "buckets", f"unknown column {unknown[0]!r} in a row")]
    rows = decode_rows(pool.lines)
    for name in pool.absent:
        rows[:, COUNTED.index(name)] = ABSENT
    found = []
    for name, rebuilt in _totals(rows).items():
        if pool.totals.get(name) != rebuilt:
            found.append(
                ("totals", f"total of {name} is {pool.totals.get(name)}, the rows add up to {rebuilt}")
            )
    for name, rebuilt in _peaks(rows).items():
        said = pool.peaks.get(name)
        hidden = bool(pool.buckets) and (rebuilt is None or (said is not None and said >= rebuilt))
        if said != rebuilt and not hidden:
            found.append(("peaks", f"peak of {name} is {said}, the rows rise to {rebuilt}"))
    return found


def _line_values(rows: Int64Array, ends: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return what each line holds (change or sum, `ABSENT` for null) and which columns it lists."""
    at_end = rows[ends]
    before = np.vstack([np.zeros((1, rows.shape[1]), np.int64), at_end[:-1]])[: len(at_end)]
    change = np.where(at_end == ABSENT, ABSENT, at_end - np.where(before == ABSENT, 0, before))
    listed = at_end != before
    starts = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
    if len(ends):
        gone = np.logical_or.reduceat(rows == ABSENT, starts, axis=0)
        sums = np.add.reduceat(np.where(rows == ABSENT, 0, rows), starts, axis=0)
        events = np.where(gone, ABSENT, sums)
        change = np.where(_IS_LEVEL, change, events)
        listed = np.where(_IS_LEVEL, listed, events != 0)
    return change, listed


def _changes(line: Int64Array, listed: Int64Array) -> Changes:
    places = np.flatnonzero(listed).tolist()
    return {COUNTED[i]: None if line[i] == ABSENT else int(line[i]) for i in places}


def _totals(rows: Int64Array) -> dict[str, int | None]:
    """Sums of the events; null where a row could not be seen."""
    columns = {name: rows[:, COUNTED.index(name)] for name in EVENTS}
    return {n: None if (column == ABSENT).any() else int(column.sum()) for n, column in columns.items()}


def _peaks(rows: Int64Array) -> dict[str, int | None]:
    """Largest value seen of each level; null where none was, 0 for no rows."""
    found: dict[str, int | None] = {}
    for name in LEVELS:
        column = rows[:, COUNTED.index(name)]
        seen = column[column != ABSENT]
        found[name] = None if len(column) and not len(seen) else int(seen.max(initial=0))
    return found


def _footprint(rows: Int64Array, steps: Int64Array) -> list[Checkpoint]:
    count = min(CHECKPOINTS, len(rows))
    ends = [(k * len(rows)) // count - 1 for k in range(1, count + 1)]
    touched, order = (rows[:, INDEX[name]].tolist() for name in FOOTPRINT)
    return [
        Checkpoint(
            step=int(steps[end]),
            distinct_touched=None if touched[end] == ABSENT else touched[end],
            id_order=None if order[end] == ABSENT else order[end],
        )
        for end in ends
    ]
