"""How a trace is asked for: where it is, how it is read, and what is done to it before a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.trace.load import load_trace
from kvsuite.trace.overlay import apply_overlay
from kvsuite.trace.tile import tiled

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a trace is read, and what is done to it before it is replayed."""

    trace_block_size: int | None = None
    time_unit: str | None = None
    tail: str | None = None
    format: str | None = None
    sort: bool = False
    limit: int | None = None
    overlays: tuple[str, ...] = ()
    overlay_seed: int = 0
    repeat: int = 1


def open_trace(text: str, options: TraceOptions) -> Trace:
    """Read the trace called ``text``, cut it to ``limit`` requests, lay the overlays over it, and repeat it.

    **Raises:** `TraceError` from the readers and overlays.
    """
    trace = load_trace(
        text,
        format=options.format,
        trace_block_size=options.trace_block_size,
        time_unit=options.time_unit,
        tail=options.tail,
        sort=options.sort,
        limit=options.limit,
    )
    if options.overlays:
        trace = apply_overlay(trace, *options.overlays, seed=options.overlay_seed)
    return tiled(trace, options.repeat)
