"""What the columns of a trace must satisfy; `Trace` runs it on construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.ragged import chunks, dense, row_chunks
from kvsuite.trace.request import ABSENT, ForkKind
from kvsuite.trace.request_ids import are_distinct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.trace.model import Trace
    from kvsuite.trace.request import RequestId
    from kvsuite.trace.tokens import Int64Array


class RowError(TraceError):
    """A request breaks a rule; readers turn its row into a place in their file."""

    def __init__(self, request_id: RequestId, row: int, rule: str) -> None:
        super().__init__(f"request {request_id} (row {row}): {rule}")
        self.row = row
        self.rule = rule


_UNSEEN = -2
"""Stands for the parent of a node that was not met yet; that of a request's first node is `ABSENT`."""
MAX_SEQUENCE_TOKENS = 2**31 - 1
"""Longest sequence: a length and a position fit an int32 column."""

ROW_COLUMNS = (
    "arrival_us",
    "prompt_tokens",
    "output_tokens",
    "hashed_tokens",
    "max_output_tokens",
    "parent",
    "fork_kind",
    "fork_at",
    "cancel_after",
    "cancel_at_us",
    "session",
    "turn",
    "priority",
)
"""Columns of `Trace` with one entry a request."""


def check_trace(trace: Trace) -> None:
    """Check shapes, then rows, forks and prefix nodes.

    **Raises:** `TraceError` that names the first request at fault and the rule it breaks.
    """
    _check_columns(trace)
    _check_rows(trace)
    for child in np.flatnonzero(trace.parent != ABSENT).tolist():
        _check_fork(trace, child)
    _check_nodes(trace)


def _check_columns(trace: Trace) -> None:
    for name in ROW_COLUMNS:
        found = getattr(trace, name).shape
        if found != (len(trace),):
            raise TraceError(f"column {name} has shape {found}, expected ({len(trace)},)")
    if trace.scopes and len(trace.scopes) != len(trace):
        raise TraceError(
            f"{len(trace.scopes)} scopes, expected one for each of {len(trace)} requests or none"
        )
    offsets = trace.node_offsets
    if offsets.shape != (len(trace) + 1,) or int(offsets[0]) != 0 or int(offsets[-1]) != len(trace.nodes):
        raise TraceError(
            f"node_offsets has shape {offsets.shape} and spans {offsets[:1]}..{offsets[-1:]}, "
            f"expected {len(trace) + 1} entries from 0 to {len(trace.nodes)}"
        )
    if trace.rows_read != len(trace) - trace.rows_added + sum(trace.dropped.values()):
        raise TraceError(
            f"{trace.rows_read} rows read and {trace.rows_added} added, but {len(trace)} kept and "
            f"{dict(trace.dropped)} dropped: every row must be kept or dropped for a named reason"
        )
    if not are_distinct(trace.request_ids):
        seen: set[RequestId] = set()
        for row, request_id in enumerate(trace.request_ids):
            if request_id in seen:
                raise RowError(request_id, row, "its id stands twice: ids must be unique in a trace")
            seen.add(request_id)


def _check_rows(trace: Trace) -> None:
    first: dict[str, int] = {}
    rules: list[str] = []
    for start, stop in chunks(len(trace)):
        rules = []
        for holds, rule in _row_rules(trace, start, stop):
            rules.append(rule)
            if not holds.all():
                first.setdefault(rule, start + int(np.flatnonzero(~holds)[0]))
    for rule in rules:
        if rule in first:
            raise RowError(trace.request_ids[first[rule]], first[rule], rule)


def _row_rules(
    trace: Trace, start: int, stop: int
) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], str]]:
    absent, rows = ABSENT, slice(start, stop)
    arrival, prompt, output = trace.arrival_us[rows], trace.prompt_tokens[rows], trace.output_tokens[rows]
    cap, cancel_after = trace.max_output_tokens[rows], trace.cancel_after[rows]
    cancel_at, hashed = trace.cancel_at_us[rows], trace.hashed_tokens[rows]
    parent, kind = trace.parent[rows], trace.fork_kind[rows]
    final, before = prompt + output, trace.arrival_us[max(start - 1, 0)]
    yield prompt >= 1, "prompt_tokens must be at least 1"
    yield output >= 0, "output_tokens must not be negative"
    yield final <= MAX_SEQUENCE_TOKENS, f"a sequence holds at most {MAX_SEQUENCE_TOKENS} tokens"
    yield np.diff(arrival, prepend=before) >= 0, "arrivals must not go back"
    yield (cap == absent) | (cap >= output), "max_output_tokens must not be less than output_tokens"
    known = np.isin(kind, [absent, *ForkKind])
    yield known, f"fork_kind must be one of {[kind.name for kind in ForkKind]}"
    yield parent < np.arange(start, stop), "a parent must stand before its child"
    yield (parent == absent) == (kind == absent), "a fork needs both parent and kind"
    yield (parent == absent) == (trace.fork_at[rows] == absent), "a fork needs both parent and fork point"
    one = (cancel_after == absent) | (cancel_at == absent)
    yield one, "cancel_after and cancel_at exclude each other"
    yield cancel_after <= output, "cancel_after must not be more than output_tokens"
    yield (cancel_at == absent) | (cancel_at >= arrival), "cancel_at must not precede the arrival"
    yield (trace.turn[rows] == absent) | (trace.session[rows] != absent), "a turn needs a session"
    yield hashed <= final, "prefix nodes must not cover more than prompt and output"
    inherits = (parent != absent) & (kind != ForkKind.SPAWN)
    yield ~inherits | (hashed == absent), "a sample or beam has its parent's prefix nodes, none of its own"


def _check_fork(trace: Trace, child: int) -> None:
    parent, at = int(trace.parent[child]), int(trace.fork_at[child])
    inherits = trace.fork_kind[child] != ForkKind.SPAWN
    if inherits and trace.scope_of(child) != trace.scope_of(parent):
        rule = (
            f"its scope is {trace.scope_of(child)!r}, expected that of its parent: {trace.scope_of(parent)!r}"
        )
        raise RowError(trace.request_ids[child], child, rule)
    final = int(trace.prompt_tokens[parent] + trace.output_tokens[parent])
    reach = int(trace.prompt_tokens[child] + trace.output_tokens[child])
    if trace.fork_kind[child] == ForkKind.SPAWN:
        holds = at == 0
    else:
        holds = int(trace.prompt_tokens[parent]) <= at <= min(final, reach)
        holds = holds and trace.prompt_tokens[child] == trace.prompt_tokens[parent]
    if not holds:
        raise RowError(
            trace.request_ids[child],
            child,
            f"fork_at {at} of parent {trace.request_ids[parent]} must lie between the shared prompt "
            f"({trace.prompt_tokens[parent]} tokens) and the shorter of both final lengths "
            f"({min(final, reach)}), with equal prompts; a spawn shares 0",
        )


def _check_nodes(trace: Trace) -> None:
    """Check that nodes cover what `hashed_tokens` says and form a trie, each with one parent and one end."""
    size = trace.block_size
    if len(trace.nodes) == 0 and not (trace.hashed_tokens > 0).any():
        return
    if size < 1:
        raise TraceError(
            f"the trace has prefix nodes and block size {size}: give the tokens a node stands for"
        )
    for start, stop in chunks(len(trace)):
        counts, covered = np.diff(trace.node_offsets[start : stop + 1]), trace.hashed_tokens[start:stop]
        wrong = np.flatnonzero(counts != -(-np.maximum(covered, 0) // size))
        if len(wrong):
            at = int(wrong[0])
            rule = f"{counts[at]} prefix nodes of {size} tokens cannot cover {covered[at]} tokens"
            raise RowError(trace.request_ids[start + at], start + at, rule)
    stray = int(trace.nodes.argmin()) if int(trace.nodes.min()) < 0 else _first_stray(trace)
    if stray is not None:
        row = int(np.searchsorted(trace.node_offsets, stray, side="right")) - 1
        raise RowError(
            trace.request_ids[row],
            row,
            f"prefix node {trace.nodes[stray]} is negative or stands elsewhere after another node: "
            "a node stands for one whole prefix",
        )


def _first_stray(trace: Trace) -> int | None:
    """Return the first entry of ``trace.nodes`` whose node stood after another node, or ended elsewhere."""
    numbers, bound = dense(trace.nodes)
    parents, ends = np.full(bound, _UNSEEN, np.int64), np.zeros(bound, np.int64)
    for start, stop in row_chunks(trace.node_offsets):
        first, last = int(trace.node_offsets[start]), int(trace.node_offsets[stop])
        here = numbers[first:last]
        own_parents, own_ends = node_parents(trace, start, stop), node_ends(trace, start, stop)
        fresh = np.flatnonzero(parents[here] == _UNSEEN)
        nodes, firsts = np.unique(here[fresh], return_index=True)
        parents[nodes], ends[nodes] = own_parents[fresh[firsts]], own_ends[fresh[firsts]]
        strays = np.flatnonzero((parents[here] != own_parents) | (ends[here] != own_ends))
        if len(strays):
            return first + int(strays[0])
    return None


def node_parents(trace: Trace, start: int, stop: int) -> Int64Array:
    """Return the node before each node of requests ``start..stop``, ABSENT for the first of a request."""
    first, last = trace.node_offsets[start], trace.node_offsets[stop]
    parents = np.empty(last - first, np.int64)
    parents[1:] = trace.nodes[first : last - 1] if last > first else 0
    bounds = trace.node_offsets[start : stop + 1]
    parents[bounds[:-1][np.diff(bounds) > 0] - first] = ABSENT
    return parents


def node_ends(trace: Trace, start: int, stop: int) -> Int64Array:
    """Return the tokens that each node of requests ``start..stop`` covers, its whole prefix included."""
    bounds = trace.node_offsets[start : stop + 1]
    counts = np.diff(bounds)
    depth = np.arange(bounds[0], bounds[-1], dtype=np.int64) - np.repeat(bounds[:-1], counts)
    covered: Int64Array = np.repeat(trace.hashed_tokens[start:stop], counts)
    ends: Int64Array = np.minimum((depth + 1) * trace.block_size, covered)
    return ends
