"""A trace: what was asked of the engine, as NumPy columns, with a request as a row.

In columns an absent value is ``ABSENT``; a `Request` shows it as ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.checks import ROW_COLUMNS, check_trace
from kvsuite.trace.ragged import ragged_rows, taken
from kvsuite.trace.request import ABSENT, Fill, ForkKind, Request, RequestId, TraceSource
from kvsuite.trace.request_ids import picked
from kvsuite.trace.tokens import Int64Array, TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ABSENT", "Fill", "ForkKind", "Request", "RequestId", "Trace", "TraceSource"]


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, file order kept on ties.

    Every column has one entry a request. ``nodes`` is ragged: request ``i`` owns
    ``nodes[node_offsets[i]:node_offsets[i + 1]]``, one trie node a ``block_size`` tokens from position 0,
    covering its first ``hashed_tokens[i]`` tokens (past the prompt where the answer's hashes are known).
    Nodes are numbered by first appearance, and a node stands for the whole prefix that ends with it: one
    that ends inside a block is another node than the full block. ``hashed_tokens[i] == ABSENT`` says that
    nothing is known of sharing, 0 that the request is known to share nothing.

    **Raises:** `TraceError` on construction when the columns contradict each other.
    """

    request_ids: Sequence[RequestId]
    """A tuple, or `kvsuite.trace.request_ids.RuledIds` that stand for one."""
    arrival_us: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    block_size: int
    """Tokens a prefix node stands for; 0 where the trace carries none."""
    node_offsets: Int64Array
    nodes: Int64Array
    hashed_tokens: Int64Array
    max_output_tokens: Int64Array
    parent: Int64Array
    fork_kind: Int64Array
    fork_at: Int64Array
    cancel_after: Int64Array
    cancel_at_us: Int64Array
    session: Int64Array
    turn: Int64Array
    priority: Int64Array
    source: TraceSource
    rows_read: int
    """Rows of the file: ``rows_read == len(trace) - rows_added + sum(dropped.values())``."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    filled: tuple[Fill, ...] = ()
    hash_scope: str = "global"
    rows_added: int = 0
    """Requests that no file held and a `Fill` added."""
    scopes: tuple[str, ...] = ()
    """One a request, empty text for none; ``()`` where none has one. A sample or beam has its parent's."""

    def __post_init__(self) -> None:
        check_trace(self)

    def __len__(self) -> int:
        return len(self.request_ids)

    def __getitem__(self, index: int) -> Request:
        def optional(column: Int64Array) -> int | None:
            value = int(column[index])
            return None if value == ABSENT else value

        kind = optional(self.fork_kind)
        return Request(
            index=index,
            request_id=self.request_ids[index],
            arrival_us=int(self.arrival_us[index]),
            prompt_tokens=int(self.prompt_tokens[index]),
            output_tokens=int(self.output_tokens[index]),
            max_output_tokens=optional(self.max_output_tokens),
            parent=optional(self.parent),
            fork_kind=None if kind is None else ForkKind(kind),
            fork_at=optional(self.fork_at),
            cancel_after=optional(self.cancel_after),
            cancel_at_us=optional(self.cancel_at_us),
            session=optional(self.session),
            turn=optional(self.turn),
            priority=int(self.priority[index]),
            scope=self.scope_of(index),
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[index] for index in range(len(self)))

    @cached_property
    def num_nodes(self) -> int:
        """Distinct prefix nodes; private segments are numbered from here."""
        return int(self.nodes.max()) + 1 if len(self.nodes) else 0

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Indices of each parent's children, in trace order."""
        found: dict[int, list[int]] = {}
        for child in np.flatnonzero(self.parent != ABSENT).tolist():
            found.setdefault(int(self.parent[child]), []).append(child)
        return {parent: tuple(children) for parent, children in found.items()}

    def scope_of(self, index: int) -> str:
        """Return the scope of request ``index``; empty text for none."""
        return self.scopes[index] if self.scopes else ""

    def content(self, index: int) -> TokenContent:
        """Return what the tokens of request ``index`` are, prompt and answer."""
        private_key = self.num_nodes + index
        parent = int(self.parent[index])
        if parent != ABSENT and int(self.fork_kind[index]) != ForkKind.SPAWN:
            return self.content(parent).forked(int(self.fork_at[index]), private_key)
        covered = int(self.hashed_tokens[index])
        scope = self.scope_of(index)
        if covered <= 0:
            return TokenContent((private_key,), (), scope)
        row = self.nodes[self.node_offsets[index] : self.node_offsets[index + 1]].tolist()
        ends = [min((block + 1) * self.block_size, covered) for block in range(len(row))]
        return TokenContent((*row, private_key), tuple(ends), scope)

    def prompt(self, index: int) -> TokenRun:
        """Return the prompt of request ``index``."""
        return TokenRun(self.content(index), 0, int(self.prompt_tokens[index]))

    def head(self, count: int) -> Trace:
        """Return the first ``count`` requests (children whose parent is cut go with it)."""
        return self.select(np.arange(min(count, len(self)), dtype=np.int64))

    def select(self, rows: Int64Array) -> Trace:
        """Return the given rows, in the order given; parents must be among them.

        **Raises:** `TraceError` when a child is kept without its parent.
        """
        columns: dict[str, Any] = {name: taken(getattr(self, name), rows) for name in ROW_COLUMNS}
        columns["parent"] = self._moved_parents(rows, columns["parent"])
        offsets, nodes = ragged_rows(self.node_offsets, self.nodes, rows)
        return replace(
            self,
            request_ids=picked(self.request_ids, rows),
            node_offsets=offsets,
            nodes=nodes,
            rows_read=len(rows),
            rows_added=0,
            dropped={},
            scopes=tuple(self.scopes[i] for i in rows.tolist()) if self.scopes else (),
            **columns,
        )

    def _moved_parents(self, rows: Int64Array, parents: Int64Array) -> Int64Array:
        """Return where the ``parents`` of the selected ``rows`` are among them."""
        forked = parents != ABSENT
        if not forked.any():
            return parents
        moved = np.full(len(self), ABSENT, np.int64)
        moved[rows] = np.arange(len(rows))
        lost = np.flatnonzero(forked & (moved[parents] == ABSENT))
        if len(lost):
            child = int(rows[lost[0]])
            raise TraceError(
                f"request {self.request_ids[child]} is selected without its parent "
                f"{self.request_ids[int(self.parent[child])]}: select both or neither"
            )
        return np.where(forked, moved[parents], ABSENT)
