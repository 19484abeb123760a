"""Requests of one shape, and the stretch of a trace on a pool of so many blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.burst import largest_burst
from kvsuite.sweep.cells import Cell
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.fullest import Stretch
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.record.decision_rows import BurstRow
    from kvsuite.trace.model import Trace


LAYOUT = model_layout("tiny").with_(num_layers=32)
COSTS = StepCosts(base_us=1000)
SOURCE = StatedCosts(device="here", kernel="stated", blocks=dict.fromkeys((1, 2, 4, 8), COSTS))


def together(requests: int, prompt: int, output: int, gap_ms: int = 0) -> Trace:
    rows = [
        Row(request_id=f"r{k}", timestamp=k * gap_ms, input_length=prompt, output_length=output)
        for k in range(requests)
    ]
    return trace_of(rows, TraceSource("invented", "together"), block_size=0)


def cell(trace: Trace, blocks: int, *, size: int = 4, seats: int = 16, engine: str = "reference") -> Cell:
    return Cell(
        trace=TraceRef.of(trace),
        engine=engine,
        block_size=size,
        pool_bytes=blocks * LAYOUT.block_bytes(size),
        layout=LAYOUT,
        scheduler=SchedulerConfig(max_sequences=seats, max_step_tokens=4096),
    )


def stretch(trace: Trace, blocks: int, *, seats: int = 16, engine: str = "reference") -> Stretch:
    """Return all of a trace, on a pool of which tables take nothing."""
    return Stretch(trace, cell(trace, blocks, seats=seats, engine=engine), COSTS)


def bears(asked: Stretch) -> BurstRow:
    """Return the largest burst of an engine that forks."""
    burst = largest_burst(asked)
    assert burst is not None
    return burst
