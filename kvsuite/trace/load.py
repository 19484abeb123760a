"""Opens a trace by name or path, and sums up what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.checks import node_ends
from kvsuite.trace.clock import TIME_UNITS
from kvsuite.trace.identity import content_hash
from kvsuite.trace.model import ABSENT, ForkKind
from kvsuite.trace.ragged import dense, row_chunks
from kvsuite.trace.readers.registry import detect, reader_named
from kvsuite.trace.readers.source import ReadOptions, open_trace_file
from kvsuite.trace.rows import TAILS
from kvsuite.trace.synthetic import synthetic, workload_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.trace.model import Fill, Trace
    from kvsuite.trace.tokens import Int64Array

T = TypeVar("T", bound=str)


def load_trace(
    text: str | Path,
    *,
    format: str | None = None,
    trace_block_size: int | None = None,
    time_unit: str | None = None,
    tail: str | None = None,
    sort: bool = False,
    limit: int | None = None,
) -> Trace:
    """Return a synthetic workload by name, or the trace in a file whose format its content tells.

    A name wins over a file of the same name: write ``./churn`` for the file. ``limit`` keeps the first
    requests, after the whole file was read and checked.

    **Raises:** `TraceError` for an unknown name, or a file that cannot be read, with its path and line;
    `AmbiguousTrace`, naming the option that settles it, for one that can be read in two ways.
    """
    options = ReadOptions(
        trace_block_size=trace_block_size,
        time_unit=_one_of("--time-unit", time_unit, TIME_UNITS),
        tail=_one_of("--tail", tail, TAILS),
        sort=sort,
    )
    if trace_block_size is not None and trace_block_size < 1:
        raise TraceError(f"--trace-block-size {trace_block_size}: expected 1 token or more")
    if limit is not None and limit < 1:
        raise TraceError(f"--limit {limit}: expected 1 request or more")
    if isinstance(text, str) and text in workload_names():
        if format is not None or options != ReadOptions(sort=sort):
            raise TraceError(
                f"{text} is a synthetic workload: options that say how a file is read do not apply"
            )
        trace = synthetic(text)
    else:
        trace = _read(Path(text), format, options)
    return trace if limit is None else trace.head(limit)


def _one_of(option: str, given: str | None, known: tuple[T, ...]) -> T | None:
    found = next((value for value in known if value == given), None)
    if given is not None and found is None:
        raise TraceError(f"unknown {option} {given}: expected {', '.join(known)}")
    return found


def _read(path: Path, format_name: str | None, options: ReadOptions) -> Trace:
    try:
        with open_trace_file(path) as file:
            reader = detect(file) if format_name is None else reader_named(format_name)
            return reader.read(file, options)
    except FileNotFoundError:
        raise TraceError(
            f"{path} is neither a file nor a synthetic workload: the workloads are "
            f"{', '.join(workload_names())}"
        ) from None
    except TraceError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens; percentiles are nearest-rank."""

    total: int
    minimum: int
    p50: int
    p90: int
    p99: int
    maximum: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """What `kvsuite trace info` prints."""

    name: str
    format: str
    license: str
    content_hash: str
    requests: int
    rows_read: int
    rows_added: int
    dropped: Mapping[str, int]
    filled: tuple[Fill, ...]
    prompt: LengthSummary
    output: LengthSummary
    duration_us: int
    """From the first arrival to the last."""
    block_size: int
    prefix_nodes: int
    looked_up_tokens: int
    """Prompt tokens of requests that come by themselves and whose sharing is known."""
    hit_tokens: int
    """Of those, tokens in prefix nodes of earlier requests: hits of a cold cache without end."""
    sessions: int
    forks: Mapping[str, int]
    cancels: int
    capped: int

    @property
    def hit_share(self) -> float | None:
        """Hits of a cold cache without end as a share of the prompt tokens looked up; None without hashes."""
        return self.hit_tokens / self.looked_up_tokens if self.looked_up_tokens else None


def summarize(trace: Trace) -> TraceSummary:
    """Return the figures of one trace."""
    kinds = {kind.name.lower(): int((trace.fork_kind == kind).sum()) for kind in ForkKind}
    cancelled = (trace.cancel_after != ABSENT) | (trace.cancel_at_us != ABSENT)
    return TraceSummary(
        name=trace.source.name,
        format=trace.source.format,
        license=trace.source.license,
        content_hash=content_hash(trace),
        requests=len(trace),
        rows_read=trace.rows_read,
        rows_added=trace.rows_added,
        dropped=dict(trace.dropped),
        filled=trace.filled,
        prompt=_lengths(trace.prompt_tokens),
        output=_lengths(trace.output_tokens),
        duration_us=int(trace.arrival_us[-1] - trace.arrival_us[0]),
        block_size=trace.block_size,
        prefix_nodes=_distinct(trace.nodes),
        looked_up_tokens=int(trace.prompt_tokens[trace.hashed_tokens != ABSENT].sum()),
        hit_tokens=hit_tokens(trace),
        sessions=_distinct(trace.session[trace.session != ABSENT]),
        forks={name: count for name, count in kinds.items() if count},
        cancels=int(cancelled.sum()),
        capped=int((trace.max_output_tokens != ABSENT).sum()),
    )


def hit_tokens(trace: Trace) -> int:
    """Return the prompt tokens whose prefix node an earlier request of the same scope has.

    This is a cold cache without end. Answers count as cached where their nodes are known. A lower bound for
    an engine whose blocks are smaller than the trace's: nothing shorter than a node is known to be shared.
    """
    if len(trace.nodes) == 0:
        return 0
    keys, bound = dense(_scoped_nodes(trace))
    known = np.zeros(bound, np.bool_)
    total = 0
    for start, stop in row_chunks(trace.node_offsets):
        first, last = int(trace.node_offsets[start]), int(trace.node_offsets[stop])
        here = keys[first:last]
        seen = np.ones(len(here), np.bool_)
        nodes, firsts = np.unique(here, return_index=True)
        seen[firsts] = known[nodes]
        known[nodes] = True
        owners = np.repeat(np.arange(stop - start), np.diff(trace.node_offsets[start : stop + 1]))
        covered = np.minimum(node_ends(trace, start, stop), trace.prompt_tokens[start:stop][owners])
        hits = np.zeros(stop - start, np.int64)
        np.maximum.at(hits, owners[seen], covered[seen])
        total += int(hits.sum())
    return total


def _scoped_nodes(trace: Trace) -> Int64Array:
    """Return numbers that are equal where node and scope are."""
    if not trace.scopes:
        return trace.nodes
    numbers = {scope: number for number, scope in enumerate(dict.fromkeys(trace.scopes))}
    scopes = np.array([numbers[scope] for scope in trace.scopes], np.int64)
    return trace.nodes * len(numbers) + np.repeat(scopes, np.diff(trace.node_offsets))


def _distinct(values: Int64Array) -> int:
    numbers, bound = dense(values)
    seen = np.zeros(bound, np.bool_)
    seen[numbers] = True
    return int(seen.sum())


def _lengths(tokens: Int64Array) -> LengthSummary:
    ordered = np.sort(tokens)

    def rank(percent: int) -> int:
        return int(ordered[-(-percent * len(ordered) // 100) - 1])

    return LengthSummary(int(ordered.sum()), int(ordered[0]), rank(50), rank(90), rank(99), int(ordered[-1]))
