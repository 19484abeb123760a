"""Decisions over small workloads, on costs that are stated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.cache.layout import model_layout
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.decision import Decided, decided
from kvsuite.sweep.measure import Clock, Measurement, measure
from kvsuite.sweep.plan import SweepPlan
from kvsuite.sweep.recipe import Recipe
from kvsuite.sweep.traces import TraceRef
from tests.sweep.burst_clock import burst_clock

if TYPE_CHECKING:
    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.clock import StepCosts
    from kvsuite.sweep.slo import Slo
    from kvsuite.trace.model import Trace

LAYOUT = model_layout("tiny")  # 128 bytes a token: 2 layers x (k, v) x 2 heads x 8 x 2 bytes
DEEP = LAYOUT.with_(num_layers=32)  # 2048 bytes: tables weigh little
SIZES = (1, 2, 4, 8, 16)
HERE = "this processor"


def plan(
    trace: Trace,
    slots: int,
    sizes: tuple[int, ...] = SIZES,
    layout: Layout = LAYOUT,
    max_sequences: int = 16,
    controls: tuple[str, ...] = ("contiguous-max",),
) -> SweepPlan:
    """Return a sweep on a pool of so many slots."""
    return SweepPlan(
        traces=(TraceRef.of(trace),),
        layout=layout,
        pools_bytes=(slots * layout.bytes_per_token,),
        scheduler=SchedulerConfig(max_sequences=max_sequences, max_step_tokens=4096),
        sizes=sizes,
        controls=controls,
        prefix_cache=False,
    )


def stated(
    costs: StepCosts | dict[int, StepCosts],
    spread: float = 0.0,
    device: str = HERE,
    control: StepCosts | None = None,
) -> StatedCosts:
    """Return costs by block size, or the same at all."""
    blocks = costs if isinstance(costs, dict) else dict.fromkeys((*SIZES, 32, 64), costs)
    return StatedCosts(device=device, kernel="stated", blocks=blocks, spread=spread, control=control)


def measured(
    swept: SweepPlan, source: StatedCosts, slo: Slo, repeats: int = 3, clock: Clock = burst_clock
) -> Measurement:
    """Return every option of a sweep, clocked."""
    cells = [(cell.option, cell) for cell in swept.cells()]
    return measure(cells, swept.traces[0].open(), source, slo, clock, repeats=repeats)


def judged(
    swept: SweepPlan, source: StatedCosts, slo: Slo, clock: Clock = burst_clock, **more: Any
) -> Decided:
    """Return the decision of a sweep."""
    recipe = Recipe(
        sizes=swept.sizes,
        engine="reference",
        engine_options=(),
        kernel=source.kernel,
        layout=swept.layout,
        sharing=swept.prefix_cache,
        scheduler=swept.scheduler,
        watermark_blocks=0,
        max_model_tokens=1,
        pool_bytes=swept.pools_bytes[0],
        trace_hash=swept.traces[0].content_hash,
        slo=slo,
        device=source.device,
    )
    return decided(measured(swept, source, slo, clock=clock), recipe, here=HERE, **more)
