"""The figures of a trace, as lines of a name and a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.trace.load import summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.trace.load import LengthSummary, TraceSummary
    from kvsuite.trace.model import Trace

Figure = tuple[str, str]


def trace_figures(name: str, trace: Trace, limit: int | None = None) -> Iterator[Figure]:
    """Yield what was asked: rows read = kept + dropped, tokens, content hash, fills.

    ``limit`` is the number of requests that was asked for, where the rest of the trace was cut.
    """
    return _asked(name, summarize(trace), limit)


def info_figures(name: str, trace: Trace, limit: int | None = None) -> Iterator[Figure]:
    """Yield everything `kvsuite trace info` prints; percentiles are nearest rank."""
    summary = summarize(trace)
    yield from _asked(name, summary, limit)
    yield "prompt tokens", _spread(summary.prompt)
    yield "output tokens", _spread(summary.output)
    yield "arrivals over", f"{summary.duration_us / 1e6:,.3f} s"
    if summary.hit_share is None:
        yield "prefix hashes", "none: the trace does not say what requests share"
    else:
        yield (
            "prefix hashes",
            f"{summary.prefix_nodes:,} prefixes of {summary.block_size} tokens a hash; "
            f"an unbounded cache, empty at first, would find {summary.hit_tokens:,} of "
            f"{summary.looked_up_tokens:,} prompt tokens looked up ({summary.hit_share:.2%})",
        )
    yield "sessions", f"{summary.sessions:,}" if summary.sessions else "none"
    forks = ", ".join(f"{count:,} {kind}" for kind, count in summary.forks.items())
    yield "forks", forks or "none"
    yield "cancels", f"{summary.cancels:,}" if summary.cancels else "none"
    yield "caps on output", f"{summary.capped:,} requests" if summary.capped else "none"
    if summary.license:
        yield "licence", summary.license


def _asked(name: str, summary: TraceSummary, limit: int | None) -> Iterator[Figure]:
    yield "trace", f"{name} ({summary.format}), {summary.content_hash}"
    if limit is not None:
        yield "limit", f"the first {limit:,} requests alone: rows and hash are theirs"
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in summary.dropped.items() if count)
    added = f", {summary.rows_added:,} added" if summary.rows_added else ""
    yield (
        "rows read",
        f"{summary.rows_read:,} = {summary.requests - summary.rows_added:,} kept + "
        f"{sum(summary.dropped.values()):,} dropped{f' ({dropped})' if dropped else ''}{added}",
    )
    yield "tokens asked", f"{summary.prompt.total:,} prompt, {summary.output.total:,} output"
    for fill in summary.filled:
        yield "filled", f"{fill.name}: {fill.rule} (seed {fill.seed})"


def _spread(lengths: LengthSummary) -> str:
    return (
        f"min {lengths.minimum:,}, p50 {lengths.p50:,}, p90 {lengths.p90:,}, p99 {lengths.p99:,}, "
        f"max {lengths.maximum:,}"
    )
