"""Builds a `Trace` from the parsed rows of any format: checks and orders them, and names prefixes by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.checks import RowError
from kvsuite.trace.clock import Time, TimeRangeError, TimeUnit, microseconds
from kvsuite.trace.model import ABSENT, Fill, ForkKind, RequestId, Trace, TraceSource
from kvsuite.trace.trie import RawId, build_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsuite.trace.tokens import Int64Array

FORK_KINDS = {kind.name.lower(): kind for kind in ForkKind}
ZERO_PROMPT = "zero_prompt"
"""Why a row without prompt tokens is dropped."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What a format calls its fields; ``prefix`` stands before a name where a place is given."""

    time: str
    prompt: str
    output: str
    prefix: str = "$."

    def place(self, line: int, name: str) -> str:
        """Return where a value stands, such as ``line 812 $.output_length``."""
        return f"line {line} {self.prefix}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRows:
    """Rows in file order, as parallel columns; an empty optional column is one that the format lacks."""

    labels: Labels
    lines: Sequence[int]
    times: Sequence[Time]
    time_unit: TimeUnit
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    request_ids: Sequence[str | None] = ()
    hash_ids: Sequence[Sequence[RawId] | None] = ()
    hashed_tokens: Sequence[int] = ()
    """Tokens that ``hash_ids`` cover; not read where those are None."""
    scopes: Sequence[int] = ()
    """Namespace of the ids of each row."""
    max_output_tokens: Sequence[int | None] = ()
    parents: Sequence[str | None] = ()
    forks: Sequence[str | None] = ()
    fork_at: Sequence[int | None] = ()
    cancel_after: Sequence[int | None] = ()
    cancel_at: Sequence[Time | None] = ()
    sessions: Sequence[str | None] = ()
    turns: Sequence[int | None] = ()
    priorities: Sequence[int] = ()
    request_scopes: Sequence[str | None] = ()
    """What sets equal tokens apart, not to be taken for ``scopes``, within which ids mean something."""

    def __len__(self) -> int:
        return len(self.lines)

    def fail(self, row: int, name: str, found: str, remedy: str) -> NoReturn:
        """Raise the `TraceError` of one row."""
        raise TraceError(f"{found} @ {self.labels.place(self.lines[row], name)}: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRules:
    """How rows become a trace."""

    block_size: int = 0
    drop_zero_prompts: bool = False
    sort: bool = False
    hash_scope: str = "global"
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Rows that were dropped before, by reason."""
    filled: tuple[Fill, ...] = ()
    rows_added: int = 0


def build_trace(rows: ParsedRows, source: TraceSource, rules: BuildRules) -> Trace:
    """Return the trace of ``rows``.

    **Raises:** `TraceError` that names the line: no rows, a negative length, a time that goes back (unless
    ``rules.sort``), an unknown parent, or whatever `Trace` refuses.
    """
    prompt, output = _lengths(rows, rules)
    kept = np.flatnonzero(prompt > 0)
    if len(kept) == 0:
        raise TraceError(
            f"no requests: {len(rows)} rows read, none with a prompt; give a trace with requests"
        )
    arrival_us, cancel_at_us = _times(rows, kept)
    order = _order(rows, kept, arrival_us, sort=rules.sort)
    file_rows = kept[order]
    ids = [RequestId(_request_id(rows, row)) for row in file_rows.tolist()]
    offsets, nodes, hashed_tokens = _prefixes(rows, file_rows.tolist(), rules.block_size)
    lost = len(rows) - len(kept)
    dropped = (
        {**rules.dropped, ZERO_PROMPT: rules.dropped.get(ZERO_PROMPT, 0) + lost} if lost else rules.dropped
    )
    columns = {name: _optional(values, file_rows) for name, values in _optional_columns(rows).items()}
    try:
        return Trace(
            request_ids=tuple(ids),
            arrival_us=arrival_us[order],
            prompt_tokens=prompt[file_rows],
            output_tokens=output[file_rows],
            block_size=rules.block_size,
            node_offsets=offsets,
            nodes=nodes,
            hashed_tokens=hashed_tokens,
            cancel_at_us=cancel_at_us[order],
            parent=_parents(rows, file_rows.tolist(), ids),
            fork_kind=_fork_kinds(rows, file_rows.tolist()),
            session=_sessions(rows, file_rows.tolist()),
            priority=_priorities(rows, file_rows),
            source=source,
            rows_read=len(kept) - rules.rows_added + sum(dropped.values()),
            dropped=dropped,
            filled=rules.filled,
            hash_scope=rules.hash_scope,
            rows_added=rules.rows_added,
            scopes=_request_scopes(rows, file_rows.tolist(), ids),
            **columns,
        )
    except RowError as error:
        line = rows.lines[int(file_rows[error.row])]
        raise TraceError(f"request {ids[error.row]} @ line {line}: {error.rule}; correct the row") from None


def _lengths(rows: ParsedRows, rules: BuildRules) -> tuple[Int64Array, Int64Array]:
    prompt = np.array(rows.prompt_tokens, np.int64)
    output = np.array(rows.output_tokens, np.int64)
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


def _times(rows: ParsedRows, kept: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return arrivals and cancel times of the kept rows, in microseconds from the earliest arrival."""
    indices = kept.tolist()
    times = [rows.times[row] for row in indices]
    origin = min(times)
    given = [k for k, row in enumerate(indices) if rows.cancel_at and rows.cancel_at[row] is not None]
    ends: list[Time] = [time for k in given if (time := rows.cancel_at[indices[k]]) is not None]
    cancel_at_us = np.full(len(indices), ABSENT, np.int64)
    name, origins = rows.labels.time, indices
    try:
        arrival_us = microseconds(times, rows.time_unit, origin)
        name, origins = "cancel_at", [indices[k] for k in given]
        cancel_at_us[given] = microseconds(ends, rows.time_unit, origin)
    except TimeRangeError as error:
        remedy = f"more than 64 digits or too far from the earliest arrival, {origin}; correct the row"
        rows.fail(origins[error.index], name, f"{name} out of range", remedy)
    for k in given:
        if cancel_at_us[k] < arrival_us[k]:
            found = f"cancel_at {rows.cancel_at[indices[k]]} before the request's own arrival"
            rows.fail(indices[k], "cancel_at", found, "expected a later time; correct the row")
    return arrival_us, cancel_at_us


def _order(rows: ParsedRows, kept: Int64Array, arrival_us: Int64Array, *, sort: bool) -> Int64Array:
    if sort:
        return np.argsort(arrival_us, kind="stable")
    back = np.flatnonzero(np.diff(arrival_us) < 0)
    if len(back):
        before, row = int(kept[back[0]]), int(kept[back[0] + 1])
        rows.fail(
            row,
            rows.labels.time,
            f"time goes back to {rows.times[row]} from {rows.times[before]} on line {rows.lines[before]}",
            "expected non-decreasing times; --sort sorts the rows and keeps file order on ties",
        )
    return np.arange(len(kept), dtype=np.int64)


def _request_id(rows: ParsedRows, row: int) -> str:
    given = rows.request_ids[row] if rows.request_ids else None
    return f"r{row}" if given is None else given


def _prefixes(
    rows: ParsedRows, file_rows: list[int], block_size: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return ``node_offsets``, ``nodes`` and ``hashed_tokens`` of the kept rows."""
    given = [rows.hash_ids[row] if rows.hash_ids else None for row in file_rows]
    chains: list[Sequence[RawId]] = [chain or () for chain in given]
    hashed = [
        ABSENT if chain is None else rows.hashed_tokens[row] if chain else 0
        for chain, row in zip(given, file_rows, strict=True)
    ]
    scopes = [rows.scopes[row] for row in file_rows] if rows.scopes else [0] * len(file_rows)
    offsets, nodes = build_nodes(chains, [max(tokens, 0) for tokens in hashed], block_size, scopes)
    return offsets, nodes, np.array(hashed, np.int64)


def _optional_columns(rows: ParsedRows) -> dict[str, Sequence[int | None]]:
    return {
        "max_output_tokens": rows.max_output_tokens,
        "fork_at": rows.fork_at,
        "cancel_after": rows.cancel_after,
        "turn": rows.turns,
    }


def _optional(values: Sequence[int | None], file_rows: Int64Array) -> Int64Array:
    if not values:
        return np.full(len(file_rows), ABSENT, np.int64)
    return np.array([ABSENT if value is None else value for value in values], np.int64)[file_rows]


def _priorities(rows: ParsedRows, file_rows: Int64Array) -> Int64Array:
    if not rows.priorities:
        return np.zeros(len(file_rows), np.int64)
    return np.array(rows.priorities, np.int64)[file_rows]


def _sessions(rows: ParsedRows, file_rows: list[int]) -> Int64Array:
    """Number sessions by first appearance."""
    numbers: dict[str, int] = {}
    given = [rows.sessions[row] if rows.sessions else None for row in file_rows]
    indices = [ABSENT if name is None else numbers.setdefault(name, len(numbers)) for name in given]
    return np.array(indices, np.int64)


def _parents(rows: ParsedRows, file_rows: list[int], ids: list[RequestId]) -> Int64Array:
    column = np.full(len(file_rows), ABSENT, np.int64)
    if not any(rows.parents):
        return column
    places = {name: place for place, name in enumerate(ids)}
    for child, row in enumerate(file_rows):
        name = rows.parents[row]
        if name is None:
            continue
        parent = places.get(RequestId(name))
        if parent is None or parent >= child:
            state = "unknown" if parent is None else "not before its child"
            rows.fail(
                row, "parent", f"parent {name} is {state}", "a parent's line stands before its children's"
            )
        column[child] = parent
    return column


def _request_scopes(rows: ParsedRows, file_rows: list[int], ids: list[RequestId]) -> tuple[str, ...]:
    """Return the scope of each kept row; one that is absent in a sample or beam is its parent's."""
    if not any(rows.request_scopes):
        return ()
    found: dict[str, str] = {}
    for name, row in zip(ids, file_rows, strict=True):
        given, parent = rows.request_scopes[row], rows.parents[row] if rows.parents else None
        inherits = given is None and parent is not None and rows.forks[row] != "spawn"
        found[name] = found[parent] if inherits and parent is not None else given or ""
    return tuple(found.values())


def _fork_kinds(rows: ParsedRows, file_rows: list[int]) -> Int64Array:
    if not rows.forks:
        return np.full(len(file_rows), ABSENT, np.int64)
    kinds = [rows.forks[row] for row in file_rows]
    return np.array([ABSENT if kind is None else FORK_KINDS[kind] for kind in kinds], np.int64)
