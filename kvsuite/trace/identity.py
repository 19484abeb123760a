"""The content hash of a trace: a hash of the lifecycle it asks for, not of the file it came in.

docs/traces.md states the canonical text exactly, with a worked example.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.trace.ragged import Appearances, constant, dense, row_chunks
from kvsuite.trace.request import ABSENT, ForkKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import Int64Array

    BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]

HASH_PREFIX = "kvt1-"


def content_hash(trace: Trace) -> str:
    """Return ``kvt1-`` and the SHA-256, in hexadecimal, of `canonical_text`."""
    digest = hashlib.sha256()
    for part in canonical_parts(trace):
        digest.update(part)
    return HASH_PREFIX + digest.hexdigest()


def canonical_text(trace: Trace) -> bytes:
    """Return the lifecycle as ASCII: a head line, then one line a request, each ended by LF.

    Times count from the earliest arrival; nodes, partial tails and sessions are numbered by first
    appearance; whatever says nothing (an id of a partial block that never recurs, a session used once,
    names) is left out.
    """
    return b"".join(canonical_parts(trace))


def canonical_parts(trace: Trace) -> Iterator[bytes]:
    """Yield `canonical_text` in parts of whole lines, so that it never is in memory as a whole."""
    numbering = _Numbering(trace)
    yield f"kvtrace-canonical/1 block={trace.block_size if numbering.has_blocks else 0}\n".encode("ascii")
    for start, stop in row_chunks(trace.node_offsets):
        yield "".join(line + "\n" for line in numbering.lines(start, stop)).encode("ascii")


class _Numbering:
    """Writes lines from the first request to the last, and numbers what appears in them on the way."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._start_us = int(trace.arrival_us.min(initial=2**62))
        self._nodes, bound = dense(trace.nodes)
        self._full, self._tails = Appearances(bound), Appearances(bound)
        self._recurring = self._recurring_tails(bound)
        given = bool((trace.session != ABSENT).any())
        self._sessions, bound = dense(trace.session + 1 if given else constant(len(trace), 0))
        self._shared = np.bincount(self._sessions, minlength=bound) > 1
        self._shared[self._sessions[trace.session == ABSENT][:1]] = False
        self._session_numbers = Appearances(bound)
        self._scopes: dict[str, int] = {}
        full = len(trace.nodes) > 0 and bool((trace.hashed_tokens >= trace.block_size).any())
        self.has_blocks = full or bool(self._recurring.any())
        """Whether a line says of which blocks its tokens are."""

    def _recurring_tails(self, bound: int) -> BoolArray:
        """Return, for each node, whether it is a partial block that at least two requests have."""
        if bound == 0:
            return np.zeros(0, np.bool_)
        ends = self._trace.node_offsets[1:][self._is_partial(slice(None))] - 1
        recurring: BoolArray = np.bincount(self._nodes[ends], minlength=bound) > 1
        return recurring

    def _is_partial(self, rows: slice) -> BoolArray:
        covered = self._trace.hashed_tokens[rows]
        partial: BoolArray = (covered > 0) & (covered % self._trace.block_size != 0)
        return partial

    def lines(self, start: int, stop: int) -> list[str]:
        """Return the lines of requests ``start..stop``, which follow those asked for before."""
        trace, rows = self._trace, slice(start, stop)
        lines = [
            f"{arrival} {prompt} {output}"
            for arrival, prompt, output in zip(
                (trace.arrival_us[rows] - self._start_us).tolist(),
                trace.prompt_tokens[rows].tolist(),
                trace.output_tokens[rows].tolist(),
                strict=True,
            )
        ]
        if len(trace.nodes):
            self._append_nodes(lines, start, stop)
        self._append_rest(lines, start, stop)
        return lines

    def _append_nodes(self, lines: list[str], start: int, stop: int) -> None:
        trace, rows = self._trace, slice(start, stop)
        bounds = trace.node_offsets[start : stop + 1]
        nodes = self._nodes[bounds[0] : bounds[-1]]
        partial = self._is_partial(rows)
        ends = bounds[1:][partial] - 1 - bounds[0]
        full = np.ones(len(nodes), np.bool_)
        full[ends] = False
        owners = np.repeat(np.arange(stop - start), np.diff(bounds))
        for owner, text in _runs(owners[full], self._full.number(nodes[full])):
            lines[owner] += text
        recurring = self._recurring[nodes[ends]]
        at = np.flatnonzero(partial)[recurring]
        for row, number in zip(at.tolist(), self._tails.number(nodes[ends][recurring]).tolist(), strict=True):
            covered = int(trace.hashed_tokens[start + row])
            end = "" if covered == trace.prompt_tokens[start + row] else f":{covered}"
            lines[row] += f" q={number}{end}"

    def _append_rest(self, lines: list[str], start: int, stop: int) -> None:
        trace, rows = self._trace, slice(start, stop)
        sessions = self._sessions[rows]
        shared = self._shared[sessions]
        numbers = np.zeros(stop - start, np.int64)
        numbers[shared] = self._session_numbers.number(sessions[shared])
        turn, cancel_after, cancel_at = trace.turn[rows], trace.cancel_after[rows], trace.cancel_at_us[rows]
        _append(lines, "s", numbers, shared)
        _append(lines, "u", turn, shared & (turn != ABSENT))
        _append(lines, "r", trace.priority[rows], trace.priority[rows] != 0)
        for row in np.flatnonzero(trace.parent[rows] != ABSENT).tolist():
            kind = ForkKind(int(trace.fork_kind[start + row])).name.lower()
            lines[row] += f" f={trace.parent[start + row]}:{kind}:{trace.fork_at[start + row]}"
        _append(lines, "c", cancel_after, cancel_after != ABSENT)
        _append(lines, "x", cancel_at - self._start_us, cancel_at != ABSENT)
        cap = trace.max_output_tokens[rows]
        _append(lines, "m", cap, cap != ABSENT)
        for row, scope in enumerate(trace.scopes[rows]):
            if scope:
                lines[row] += f" k={self._scopes.setdefault(scope, len(self._scopes))}"


def _runs(owners: Int64Array, numbers: Int64Array) -> list[tuple[int, str]]:
    """Return, for each owner in order, `` b=`` and its numbers with unbroken runs as ``first-last``."""
    if len(numbers) == 0:
        return []
    new_owner = np.diff(owners, prepend=-1) != 0
    starts = np.flatnonzero(new_owner | (np.diff(numbers, prepend=-2) != 1))
    ends = np.append(starts[1:], len(numbers)) - 1
    found: dict[int, list[str]] = {}
    for owner, first, last in zip(
        owners[starts].tolist(), numbers[starts].tolist(), numbers[ends].tolist(), strict=True
    ):
        found.setdefault(owner, []).append(str(first) if first == last else f"{first}-{last}")
    return [(owner, " b=" + ",".join(runs)) for owner, runs in found.items()]


def _append(lines: list[str], letter: str, values: Int64Array, given: BoolArray) -> None:
    rows = np.flatnonzero(given)
    for row, value in zip(rows.tolist(), values[rows].tolist(), strict=True):
        lines[row] += f" {letter}={value}"
