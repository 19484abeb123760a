"""What the columns of a trace must satisfy; `Trace` runs it on construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.request import ABSENT, ForkKind

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
    for holds, rule in _row_rules(trace):
        if not holds.all():
            row = int(np.flatnonzero(~holds)[0])
            raise RowError(trace.request_ids[row], row, rule)
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
    if len(set(trace.request_ids)) != len(trace):
        seen: set[RequestId] = set()
        for row, request_id in enumerate(trace.request_ids):
            if request_id in seen:
                raise RowError(request_id, row, "its id stands twice: ids must be unique in a trace")
            seen.add(request_id)


def _row_rules(trace: Trace) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], str]]:
    absent = ABSENT
    output, final = trace.output_tokens, trace.prompt_tokens + trace.output_tokens
    cap, cancel_at = trace.max_output_tokens, trace.cancel_at_us
    yield trace.prompt_tokens >= 1, "prompt_tokens must be at least 1"
    yield output >= 0, "output_tokens must not be negative"
    yield final <= MAX_SEQUENCE_TOKENS, f"a sequence holds at most {MAX_SEQUENCE_TOKENS} tokens"
    yield np.diff(trace.arrival_us, prepend=trace.arrival_us[:1]) >= 0, "arrivals must not go back"
    yield (cap == absent) | (cap >= output), "max_output_tokens must not be less than output_tokens"
    known = np.isin(trace.fork_kind, [absent, *ForkKind])
    yield known, f"fork_kind must be one of {[kind.name for kind in ForkKind]}"
    yield trace.parent < np.arange(len(trace)), "a parent must stand before its child"
    both = (trace.parent == absent) == (trace.fork_kind == absent)
    yield both, "a fork needs both parent and kind"
    yield (trace.parent == absent) == (trace.fork_at == absent), "a fork needs both parent and fork point"
    one = (trace.cancel_after == absent) | (cancel_at == absent)
    yield one, "cancel_after and cancel_at exclude each other"
    yield trace.cancel_after <= output, "cancel_after must not be more than output_tokens"
    yield (cancel_at == absent) | (cancel_at >= trace.arrival_us), "cancel_at must not precede the arrival"
    yield (trace.turn == absent) | (trace.session != absent), "a turn needs a session"
    yield trace.hashed_tokens <= final, "prefix nodes must not cover more than prompt and output"
    inherits = (trace.parent != absent) & (trace.fork_kind != ForkKind.SPAWN)
    yield (
        ~inherits | (trace.hashed_tokens == absent),
        "a sample or beam has its parent's prefix nodes, none of its own",
    )


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
    counts, size = np.diff(trace.node_offsets), trace.block_size
    if len(trace.nodes) == 0 and not (trace.hashed_tokens > 0).any():
        return
    if size < 1:
        raise TraceError(
            f"the trace has prefix nodes and block size {size}: give the tokens a node stands for"
        )
    wrong = np.flatnonzero(counts != -(-np.maximum(trace.hashed_tokens, 0) // size))
    if len(wrong):
        row = int(wrong[0])
        rule = f"{counts[row]} prefix nodes of {size} tokens cannot cover {trace.hashed_tokens[row]} tokens"
        raise RowError(trace.request_ids[row], row, rule)
    parents, ends = node_parents(trace), node_ends(trace)
    _, first, inverse = np.unique(trace.nodes, return_index=True, return_inverse=True)
    strays = np.flatnonzero((parents != parents[first][inverse]) | (ends != ends[first][inverse]))
    if len(strays) or int(trace.nodes.min()) < 0:
        at = int(strays[0]) if len(strays) else int(trace.nodes.argmin())
        row = int(np.searchsorted(trace.node_offsets, at, side="right")) - 1
        raise RowError(
            trace.request_ids[row],
            row,
            f"prefix node {trace.nodes[at]} is negative or stands elsewhere after another node: "
            "a node stands for one whole prefix",
        )


def node_parents(trace: Trace) -> Int64Array:
    """Return the node before each entry of ``trace.nodes``, ABSENT for the first of a request."""
    parents = np.empty_like(trace.nodes)
    parents[1:] = trace.nodes[:-1]
    starts = trace.node_offsets[:-1][np.diff(trace.node_offsets) > 0]
    parents[starts] = ABSENT
    return parents


def node_ends(trace: Trace) -> Int64Array:
    """Return the number of tokens that each entry of ``trace.nodes`` covers, its whole prefix included."""
    counts = np.diff(trace.node_offsets)
    depth = np.arange(len(trace.nodes), dtype=np.int64) - np.repeat(trace.node_offsets[:-1], counts)
    return np.minimum((depth + 1) * trace.block_size, np.repeat(trace.hashed_tokens, counts))
