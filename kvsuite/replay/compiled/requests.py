"""The columns of a trace as the compiled core wants them: steps in place of times, segments in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import ConfigError, TraceError
from kvsuite.replay.compiled.fields import A, G
from kvsuite.trace.model import ABSENT, ForkKind

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import Int32Array, Int64Array
    from kvsuite.trace.model import Trace

_MAX_KEY = 2**31 - 2
MAX_STEP = 2**31 - 2**20
"""Last step at which a replay may stand when it comes back to Python: numbers of steps have 32 bits."""
_NO_END = 2**62
"""Stands for the end of a request's last segment, which has none."""


@dataclass(frozen=True)
class Requests:
    """Shapes: R requests, P of them without a parent, K children."""

    arrivals: Int64Array
    """int64[P]: requests that arrive by themselves, in order."""
    arrival_us: Int64Array
    """int64[R]"""
    cancel_at_us: Int64Array
    """int64[R]: -1 where no time is given."""
    asked: Int32Array
    """int32[A, R]: see `kvsuite.replay.compiled.state.A`."""
    cancel_order: Int64Array
    """Requests with a time of cancellation, by time and index."""
    child_offsets: Int64Array
    """int64[R + 1] into ``children``; empty where nobody has children."""
    children: Int64Array
    """int64[K]"""
    segment_offsets: Int64Array
    """int64[R + 1]"""
    segments: Int64Array
    """int64[G members, segments]: keys as in `kvsuite.trace.tokens`."""


def requests_of(trace: Trace, step_us: int) -> Requests:
    """Return the requests of ``trace`` on a clock of ``step_us`` a step.

    On a clock of costs they serve whatever ``step_us`` is: there times are compared, and not steps.
    """
    arrival_step = -(-trace.arrival_us // step_us)
    if int(arrival_step.max(initial=0)) > MAX_STEP:
        raise ConfigError(
            f"a request arrives at step {int(arrival_step.max())}, and the compiled core counts to "
            f"{MAX_STEP}: give longer steps, or use the step-by-step driver"
        )
    cancel_step = np.where(
        trace.cancel_at_us == ABSENT, ABSENT, np.minimum(-(-trace.cancel_at_us // step_us), MAX_STEP + 1)
    )
    timed = np.flatnonzero(cancel_step != ABSENT)
    asked = np.zeros((len(A), len(trace)), np.int32)
    asked[A.ARRIVAL_STEP] = arrival_step
    asked[A.PROMPT] = trace.prompt_tokens
    asked[A.OUTPUT] = trace.output_tokens
    asked[A.CANCEL_AFTER] = np.where(cancel_step == ABSENT, trace.cancel_after, ABSENT)
    asked[A.CANCEL_STEP] = cancel_step
    asked[A.FORK_AT] = trace.fork_at
    asked[A.SPAWNED] = trace.fork_kind == ForkKind.SPAWN
    child_offsets, children = _children(trace)
    segment_offsets, segments = _segments(trace)
    return Requests(
        arrivals=np.flatnonzero(trace.parent == ABSENT),
        arrival_us=trace.arrival_us,
        cancel_at_us=trace.cancel_at_us,
        asked=asked,
        cancel_order=timed[np.argsort(trace.cancel_at_us[timed], kind="stable")],
        child_offsets=child_offsets,
        children=children,
        segment_offsets=segment_offsets,
        segments=segments,
    )


def _children(trace: Trace) -> tuple[Int64Array, Int64Array]:
    forked = np.flatnonzero(trace.parent != ABSENT)
    if len(forked) == 0:
        return np.zeros(1, np.int64), forked
    parents = trace.parent[forked]
    counts = np.bincount(parents, minlength=len(trace))
    return np.concatenate([[0], np.cumsum(counts)]), forked[np.argsort(parents, kind="stable")]


def _segments(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return offsets, and keys and ends, of every request's segments, as `Trace.content` gives them."""
    count = len(trace)
    covered = np.maximum(trace.hashed_tokens, 0)
    nodes = np.where(covered > 0, np.diff(trace.node_offsets), 0)
    forks = np.flatnonzero((trace.parent != ABSENT) & (trace.fork_kind != ForkKind.SPAWN))
    contents = {int(i): trace.content(int(i)) for i in forks}
    sizes = nodes + 1
    for index, content in contents.items():
        sizes[index] = len(content.keys)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    segments = np.full((len(G), offsets[-1]), _NO_END, np.int64)
    keys, ends, shared = segments
    keys[offsets[1:] - 1] = trace.num_nodes + np.arange(count)
    nodes[forks] = 0
    owner = np.repeat(np.arange(count), nodes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(nodes) - nodes, nodes)
    keys[offsets[owner] + place] = trace.nodes[trace.node_offsets[owner] + place]
    ends[offsets[owner] + place] = np.minimum((place + 1) * trace.block_size, covered[owner])
    for index, content in contents.items():
        start = offsets[index]
        keys[start : start + len(content.keys)] = content.keys
        ends[start : start + len(content.ends)] = content.ends
    if trace.scopes:
        keys[:] = _keys_in_scopes(trace, keys, sizes)
    if int(keys.max(initial=0)) > _MAX_KEY:
        raise TraceError(f"{int(keys.max())} different prefixes: keys of 31 bits tell {_MAX_KEY} apart")
    shared[:] = (np.bincount(keys) > 1)[keys]
    return offsets, segments


def _keys_in_scopes(trace: Trace, keys: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return keys that are equal only where key and scope are; a sample or beam has its parent's scope."""
    names = [trace.content(index).scope for index in range(len(trace))]
    scopes = np.unique(names, return_inverse=True)[1]
    pairs = np.stack([np.repeat(scopes, sizes), keys])
    return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
