"""Builds a `Trace` from the parsed rows of any format: checks and orders them, and names prefixes by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.checks import RowError
from kvsuite.trace.clock import TimeRangeError
from kvsuite.trace.lineage import parents_of, scopes_of
from kvsuite.trace.model import ABSENT, Fill, RequestId, Trace, TraceSource
from kvsuite.trace.ragged import constant, first_appearance, offsets_of, ragged_rows, taken
from kvsuite.trace.request_ids import NumberedIds, picked
from kvsuite.trace.trie import numbered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsuite.trace.clock import TimeUnit
    from kvsuite.trace.parsed import ParsedRows
    from kvsuite.trace.rows import Tail
    from kvsuite.trace.tokens import Int64Array

ZERO_PROMPT = "zero_prompt"
"""Why a row without prompt tokens is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRules:
    """How rows become a trace."""

    time_unit: TimeUnit
    block_size: int = 0
    tail: Tail = "ceil"
    drop_zero_prompts: bool = False
    sort: bool = False
    hash_scope: str = "global"
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that were dropped before, by reason."""
    filled: tuple[Fill, ...] = ()
    rows_added: int = 0


def build_trace(rows: ParsedRows, source: TraceSource, rules: BuildRules) -> Trace:
    """Return the trace of ``rows``, which are not to be added to any more.

    **Raises:** `TraceError` that names the line: no rows, a negative length, a time that goes back (unless
    ``rules.sort``), an unknown parent, or whatever `Trace` refuses.
    """
    prompt, output = _lengths(rows, rules)
    kept = None if (prompt > 0).all() else np.flatnonzero(prompt > 0)
    count = len(rows) if kept is None else len(kept)
    if count == 0:
        raise TraceError(
            f"no requests: {len(rows)} rows read, none with a prompt; give a trace with requests"
        )
    arrival_us, cancel_at_us = _times(rows, kept, rules.time_unit)
    order = _order(rows, kept, arrival_us, sort=rules.sort)
    file_rows = _file_rows(kept, order)
    ids = _request_ids(rows, file_rows)
    offsets, nodes, hashed_tokens = _prefixes(rows, file_rows, rules)
    lost = len(rows) - count
    dropped = (
        {**rules.dropped, ZERO_PROMPT: rules.dropped.get(ZERO_PROMPT, 0) + lost} if lost else rules.dropped
    )
    parent = parents_of(rows, file_rows, ids)
    try:
        return Trace(
            request_ids=ids,
            arrival_us=_at(arrival_us, order),
            prompt_tokens=_at(prompt, file_rows),
            output_tokens=_at(output, file_rows),
            block_size=rules.block_size,
            node_offsets=offsets,
            nodes=nodes,
            hashed_tokens=hashed_tokens,
            cancel_at_us=_at(cancel_at_us, order),
            parent=parent,
            fork_kind=rows.fork_kinds.column(file_rows),
            session=_sessions(rows, file_rows),
            priority=rows.priorities.column(file_rows),
            source=source,
            rows_read=count - rules.rows_added + sum(dropped.values()),
            dropped=dropped,
            filled=rules.filled,
            hash_scope=rules.hash_scope,
            rows_added=rules.rows_added,
            scopes=scopes_of(rows, file_rows, parent),
            **{name: values.column(file_rows) for name, values in rows.optional.items()},
        )
    except RowError as error:
        row = error.row if file_rows is None else int(file_rows[error.row])
        raise TraceError(
            f"request {ids[error.row]} @ line {rows.lines[row]}: {error.rule}; correct the row"
        ) from None


def _at(values: Int64Array, rows: Int64Array | None) -> Int64Array:
    return values if rows is None else taken(values, rows)


def _lengths(rows: ParsedRows, rules: BuildRules) -> tuple[Int64Array, Int64Array]:
    prompt, output = rows.prompts.column(), rows.outputs.column()
    for name, column in ((rows.labels.prompt, prompt), (rows.labels.output, output)):
        negative = np.flatnonzero(column < 0)
        if len(negative):
            row = int(negative[0])
            rows.fail(
                row,
                name,
                f"negative {name} {column[row]}",
                "expected 0 or more; correct the row or remove it",
            )
    zero = np.flatnonzero(prompt == 0)
    if len(zero) and not rules.drop_zero_prompts:
        remedy = "expected 1 or more; remove the row and count it under dropped.zero_prompt of the header"
        rows.fail(int(zero[0]), rows.labels.prompt, f"zero {rows.labels.prompt}", remedy)
    return prompt, output


def _times(rows: ParsedRows, kept: Int64Array | None, unit: TimeUnit) -> tuple[Int64Array, Int64Array]:
    """Return arrivals and cancel times of the kept rows, in microseconds from the earliest arrival."""
    origin = rows.times.earliest(kept)
    ends, places = _cancelled(rows, kept)
    name, origins = rows.labels.time, kept
    try:
        arrival_us = rows.times.microseconds(unit, origin, kept)
        name, origins = "cancel_at", rows.cancel_rows.column(ends)
        ends_us = rows.cancel_times.microseconds(unit, origin, ends)
    except TimeRangeError as error:
        row = error.index if origins is None else int(origins[error.index])
        remedy = f"more than 64 digits or too far from the earliest arrival, {origin}; correct the row"
        rows.fail(row, name, f"{name} out of range", remedy)
    early = np.flatnonzero(ends_us < arrival_us[places])
    if len(early):
        end = int(ends[early[0]])
        found = f"cancel_at {rows.cancel_times[end]} before the request's own arrival"
        rows.fail(rows.cancel_rows[end], "cancel_at", found, "expected a later time; correct the row")
    if len(ends) == 0:
        return arrival_us, constant(len(arrival_us), ABSENT)
    cancel_at_us = np.full(len(arrival_us), ABSENT, np.int64)
    cancel_at_us[places] = ends_us
    return arrival_us, cancel_at_us


def _cancelled(rows: ParsedRows, kept: Int64Array | None) -> tuple[Int64Array, Int64Array]:
    """Return which times of cancellation are those of kept rows, and the places of these among the kept."""
    at = rows.cancel_rows.column()
    if kept is None:
        return np.arange(len(at), dtype=np.int64), at
    ends = np.flatnonzero(np.isin(at, kept))
    return ends, np.searchsorted(kept, at[ends])


def _order(
    rows: ParsedRows, kept: Int64Array | None, arrival_us: Int64Array, *, sort: bool
) -> Int64Array | None:
    """Return the kept rows in order of arrival; None where they are in that order."""
    back = np.flatnonzero(arrival_us[1:] < arrival_us[:-1])
    if len(back) and sort:
        return np.argsort(arrival_us, kind="stable")
    if len(back):
        _refuse_order(rows, kept, int(back[0]))
    return None


def _refuse_order(rows: ParsedRows, kept: Int64Array | None, place: int) -> NoReturn:
    before, row = (place + k if kept is None else int(kept[place + k]) for k in (0, 1))
    rows.fail(
        row,
        rows.labels.time,
        f"time goes back to {rows.times[row]} from {rows.times[before]} on line {rows.lines[before]}",
        "expected non-decreasing times; --sort sorts the rows and keeps file order on ties",
    )


def _file_rows(kept: Int64Array | None, order: Int64Array | None) -> Int64Array | None:
    """Return the row of the file of each request; None where they are all of them, in order."""
    if kept is None or order is None:
        return order if kept is None else kept
    return kept[order]


def _request_ids(rows: ParsedRows, file_rows: Int64Array | None) -> Sequence[RequestId]:
    if rows.ids.given is None:
        every = NumberedIds(len(rows))
        return every if file_rows is None else picked(every, file_rows)
    given = rows.ids.given
    kept = range(len(rows)) if file_rows is None else file_rows.tolist()
    return tuple(RequestId(f"r{row}" if (name := given[row]) is None else name) for row in kept)


def _prefixes(
    rows: ParsedRows, file_rows: Int64Array | None, rules: BuildRules
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return ``node_offsets``, ``nodes`` and ``hashed_tokens`` of the kept rows."""
    counts = rows.id_counts()
    if not (counts > 0).any():
        hashed = _at(counts, file_rows)
        return constant(len(hashed) + 1, 0), np.zeros(0, np.int64), hashed
    offsets = offsets_of(np.maximum(counts, 0))
    places = rows.chains.places(offsets, rows.id_scopes())
    if file_rows is not None:
        offsets, places = ragged_rows(offsets, places, file_rows)
    nodes = places.astype(np.int64)
    hashed = _at(_hashed_tokens(rows, counts, rules), file_rows)
    numbered(nodes, offsets, np.maximum(hashed, 0) % max(rules.block_size, 1))
    return offsets, nodes, hashed


def _hashed_tokens(rows: ParsedRows, counts: Int64Array, rules: BuildRules) -> Int64Array:
    """Return the tokens that each row's ids cover: 0 for an empty list, `ABSENT` for none."""
    if rules.block_size == 0:
        return np.minimum(counts, 0)
    covered = rows.prompts.column() + np.where(rows.finished_ids.column() == ABSENT, 0, rows.outputs.column())
    if rules.tail == "floor":
        covered -= covered % rules.block_size
    return np.where(counts > 0, covered, np.minimum(counts, 0))


def _sessions(rows: ParsedRows, file_rows: Int64Array | None) -> Int64Array:
    """Number sessions by first appearance."""
    codes = rows.sessions.codes.column(file_rows)
    given = codes != ABSENT
    if not given.any():
        return constant(len(codes), ABSENT)
    numbers = np.full(len(codes), ABSENT, np.int64)
    numbers[given] = first_appearance(codes[given])
    return numbers
