"""The content hash of a trace: a hash of the lifecycle it asks for, not of the file it came in.

docs/traces.md states the canonical text exactly, with a worked example.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.trace.checks import node_ends
from kvsuite.trace.request import ABSENT, ForkKind

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import Int64Array

HASH_PREFIX = "kvt1-"


def content_hash(trace: Trace) -> str:
    """Return ``kvt1-`` and the SHA-256, in hexadecimal, of `canonical_text`."""
    return HASH_PREFIX + hashlib.sha256(canonical_text(trace)).hexdigest()


def canonical_text(trace: Trace) -> bytes:
    """Return the lifecycle as ASCII: a head line, then one line a request, each ended by LF.

    Times count from the earliest arrival; nodes, partial tails and sessions are numbered by first
    appearance; whatever says nothing (an id of a partial block that never recurs, a session used once,
    names) is left out.
    """
    start_us = int(trace.arrival_us.min(initial=2**62))
    lines = [
        f"{arrival - start_us} {prompt} {output}"
        for arrival, prompt, output in zip(
            trace.arrival_us.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
        )
    ]
    _append_nodes(trace, lines)
    _append_rest(trace, lines, start_us)
    block_size = trace.block_size if any(" b=" in line or " q=" in line for line in lines) else 0
    return "".join(line + "\n" for line in [f"kvtrace-canonical/1 block={block_size}", *lines]).encode(
        "ascii"
    )


def first_appearance(values: Int64Array) -> Int64Array:
    """Return the values renumbered 0, 1, ... in order of first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _append_nodes(trace: Trace, lines: list[str]) -> None:
    if len(trace.nodes) == 0:
        return
    owners = np.repeat(np.arange(len(trace)), np.diff(trace.node_offsets))
    partial = node_ends(trace) % trace.block_size != 0
    for owner, text in _runs(owners[~partial], first_appearance(trace.nodes[~partial])):
        lines[owner] += text
    tails, rows = trace.nodes[partial], owners[partial]
    _, inverse, counts = np.unique(tails, return_inverse=True, return_counts=True)
    recurring = counts[inverse] > 1
    numbers = first_appearance(tails[recurring])
    for row, number in zip(rows[recurring].tolist(), numbers.tolist(), strict=True):
        covered = int(trace.hashed_tokens[row])
        end = "" if covered == trace.prompt_tokens[row] else f":{covered}"
        lines[row] += f" q={number}{end}"


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


def _append_rest(trace: Trace, lines: list[str], start_us: int) -> None:
    sessions, counts = np.unique(trace.session, return_counts=True)
    shared = np.isin(trace.session, sessions[(counts > 1) & (sessions != ABSENT)])
    rows = np.flatnonzero(shared)
    for row, number in zip(rows.tolist(), first_appearance(trace.session[rows]).tolist(), strict=True):
        lines[row] += f" s={number}"
    _append(lines, "u", trace.turn, shared & (trace.turn != ABSENT))
    _append(lines, "r", trace.priority, trace.priority != 0)
    for row in np.flatnonzero(trace.parent != ABSENT).tolist():
        kind = ForkKind(int(trace.fork_kind[row])).name.lower()
        lines[row] += f" f={trace.parent[row]}:{kind}:{trace.fork_at[row]}"
    _append(lines, "c", trace.cancel_after, trace.cancel_after != ABSENT)
    _append(lines, "x", trace.cancel_at_us - start_us, trace.cancel_at_us != ABSENT)
    _append(lines, "m", trace.max_output_tokens, trace.max_output_tokens != ABSENT)
    scopes: dict[str, int] = {}
    for row, scope in enumerate(trace.scopes):
        if scope:
            lines[row] += f" k={scopes.setdefault(scope, len(scopes))}"


def _append(
    lines: list[str], letter: str, values: Int64Array, given: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> None:
    rows = np.flatnonzero(given)
    for row, value in zip(rows.tolist(), values[rows].tolist(), strict=True):
        lines[row] += f" {letter}={value}"
