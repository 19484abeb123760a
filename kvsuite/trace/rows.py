"""The canonical row: one request as a line of a canonical file, and as workloads and overlays write it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.clock import milliseconds
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.model import ForkKind
from kvsuite.trace.parsed import Batch, Labels, ParsedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.model import Fill, Request, Trace, TraceSource
    from kvsuite.trace.trie import RawId

SCHEMA = "kvsuite.trace"
SCHEMA_VERSION = 1
LABELS = Labels("timestamp", "input_length", "output_length")
EXACT_MAX = 2**53 - 1
"""Largest whole number that every JSON reader keeps exact."""

Tail = Literal["ceil", "floor"]
"""Whether a last, partial block has a prefix id."""
TAILS: tuple[Tail, ...] = ("ceil", "floor")
Count = Annotated[int, msgspec.Meta(ge=0, le=EXACT_MAX)]
Whole = Annotated[int, msgspec.Meta(ge=-EXACT_MAX, le=EXACT_MAX)]
"""A length: negative ones are refused later, by name."""


class Row(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One request; times are milliseconds, exact. docs/traces.md defines every key."""

    request_id: str | None = None
    timestamp: Any
    """``int`` or ``Decimal``."""
    input_length: Whole
    output_length: Whole
    hash_ids: list[Count | str] | None = None
    output_hash_ids: list[Count | str] | None = None
    max_output_length: Count | None = None
    parent: str | None = None
    fork: Literal["sample", "beam", "spawn"] | None = None
    fork_at: Count | None = None
    cancel_after: Count | None = None
    cancel_at: Any = None
    """``int``, ``Decimal`` or None."""
    session_id: str | None = None
    turn: Count | None = None
    priority: Whole = 0
    scope: str | None = None
    obs: dict[str, Any] | None = None
    """What was observed of the request; read past and never kept."""


class SourceFields(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where a trace came from."""

    format: str = ""
    name: str = ""
    digest: str = ""
    license: str = ""


class FillFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A named, seeded rule that added something."""

    name: str
    rule: str
    seed: int


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """First line of a canonical file."""

    schema: str
    version: int
    block_size: Annotated[int, msgspec.Meta(ge=1, le=EXACT_MAX)] | None = None
    hash_id_scope: Literal["global", "local"] = "global"
    tail: Tail | None = None
    requests: Count | None = None
    source: SourceFields | None = None
    filled: list[FillFields] = []
    dropped: dict[str, Count] = {}
    added: Count = 0
    content_hash: str | None = None


def batch_of(rows: Sequence[Row], lines: Sequence[int]) -> Batch:
    """Return the columns of ``rows``."""
    return Batch(
        lines=lines,
        times=[row.timestamp for row in rows],
        prompt_tokens=[row.input_length for row in rows],
        output_tokens=[row.output_length for row in rows],
        request_ids=[row.request_id for row in rows],
        hash_ids=[row.hash_ids for row in rows],
        output_hash_ids=[row.output_hash_ids for row in rows],
        max_output_tokens=[row.max_output_length for row in rows],
        parents=[row.parent for row in rows],
        forks=[row.fork for row in rows],
        fork_at=[row.fork_at for row in rows],
        cancel_after=[row.cancel_after for row in rows],
        cancel_at=[row.cancel_at for row in rows],
        sessions=[row.session_id for row in rows],
        turns=[row.turn for row in rows],
        priorities=[row.priority for row in rows],
        request_scopes=[row.scope for row in rows],
    )


def trace_of(
    rows: Sequence[Row],
    source: TraceSource,
    *,
    block_size: int,
    tail: Tail = "ceil",
    filled: tuple[Fill, ...] = (),
    dropped: dict[str, int] | None = None,
    rows_added: int = 0,
    hash_scope: str = "global",
) -> Trace:
    """Return the trace of rows that were made, not read; their place in errors is their index.

    **Raises:** `TraceError` for rows that contradict each other.
    """
    rules = BuildRules(
        time_unit="ms",
        block_size=block_size,
        tail=tail,
        hash_scope=hash_scope,
        dropped=dropped or {},
        filled=filled,
        rows_added=rows_added,
    )
    parsed = ParsedRows(LABELS)
    parsed.extend(batch_of(rows, range(len(rows))))
    return build_trace(parsed, source, rules)


def rows_of(trace: Trace) -> list[Row]:
    """Return the canonical rows of a trace, prefix ids being its node numbers."""
    return [_row(trace, request) for request in trace]


def _row(trace: Trace, request: Request) -> Row:
    index = request.index
    covered = int(trace.hashed_tokens[index])
    ids: list[RawId] | None = None
    if covered >= 0:
        ids = trace.nodes[trace.node_offsets[index] : trace.node_offsets[index + 1]].tolist()
    finished = covered > request.prompt_tokens
    return Row(
        request_id=request.request_id,
        timestamp=milliseconds(request.arrival_us),
        input_length=request.prompt_tokens,
        output_length=request.output_tokens,
        hash_ids=None if finished else ids,
        output_hash_ids=ids if finished else None,
        max_output_length=request.max_output_tokens,
        parent=None if request.parent is None else trace.request_ids[request.parent],
        fork=None if request.fork_kind is None else _fork_name(request.fork_kind),
        fork_at=request.fork_at,
        cancel_after=request.cancel_after,
        cancel_at=None if request.cancel_at_us is None else milliseconds(request.cancel_at_us),
        session_id=None if request.session is None else str(request.session),
        turn=request.turn,
        priority=request.priority,
        scope=request.scope or None,
    )


def _fork_name(kind: ForkKind) -> Literal["sample", "beam", "spawn"]:
    match kind:
        case ForkKind.SAMPLE:
            return "sample"
        case ForkKind.BEAM:
            return "beam"
        case ForkKind.SPAWN:
            return "spawn"


def tail_rule(trace: Trace) -> Tail:
    """Return how the trace's prefix nodes treat a last, partial block; ``ceil`` where both rules hold.

    **Raises:** `TraceError` where neither rule holds for every request.
    """
    size, covered = max(trace.block_size, 1), trace.hashed_tokens
    lengths = (trace.prompt_tokens, trace.prompt_tokens + trace.output_tokens)
    known = covered <= 0
    ceil = known | (covered == lengths[0]) | (covered == lengths[1])
    floor = known | (covered == lengths[0] // size * size) | (covered == lengths[1] // size * size)
    if ceil.all():
        return "ceil"
    if floor.all():
        return "floor"
    row = int(np.flatnonzero(~(ceil if ceil.sum() >= floor.sum() else floor))[0])
    raise TraceError(
        f"request {trace.request_ids[row]}: prefix nodes cover {covered[row]} of {lengths[0][row]} prompt "
        f"tokens at block size {size}: a canonical file covers all of them, or all full blocks, in every row"
    )


def is_time(value: object) -> bool:
    """Return whether a decoded JSON value can be a time: a number, and not a bool."""
    return type(value) is int or isinstance(value, Decimal)
