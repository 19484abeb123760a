"""What options are measured by: the same requests for all, and the same figures on either core."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.cells import Cell
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.measure import Measurement, clock_cell, measure
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    import pytest

LAYOUT = model_layout("tiny")
SLO = Slo(60_000, 15_000)
SOURCE = StatedCosts(
    device="stated", kernel="stated", blocks={16: StepCosts(base_us=9_000, sequence_us=300, block_us=5)}
)


def clocked(cell: Cell) -> Measurement:
    return measure([(cell.option, cell)], cell.trace.open(), SOURCE, SLO, clock_cell)


def test_the_driver_clocks_where_numba_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With forks, cancellations, preemptions and a cold phase that ends at the first full pool."""
    cell = Cell(
        trace=TraceRef.of(synthetic("churn").head(60)),
        engine="reference",
        block_size=16,
        pool_bytes=60 * LAYOUT.block_bytes(16),
        layout=LAYOUT,
        scheduler=SchedulerConfig(max_sequences=16),
    )
    compiled = clocked(cell)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    driven = clocked(cell)
    assert driven.options[0].refused is None
    assert driven.cold_until_us == compiled.cold_until_us > 0
    assert driven.load == compiled.load
    (by_driver,), (by_core,) = driven.options, compiled.options
    assert by_driver.summary is not None
    assert by_core.summary is not None
    assert by_driver.summary.digest == by_core.summary.digest
    assert by_driver.summary.total("preempted") > 0
    assert (by_driver.cold, by_driver.steady) == (by_core.cold, by_core.steady)
    assert by_driver.running_variation == by_core.running_variation
    assert 0 < by_driver.steady[0].met < by_driver.steady[0].requests


def test_a_fork_is_in_one_phase_for_every_option() -> None:
    """Where a parent decodes at another pace its child comes at another time; here all are in time."""
    trace = TraceRef.of(synthetic("churn").head(60))
    costs = {1: StepCosts(base_us=9_240), 16: StepCosts(base_us=9_020)}
    cells = [
        Cell(trace=trace, engine="reference", block_size=size, pool_bytes=2**26, layout=LAYOUT)
        for size in costs
    ]
    source = StatedCosts(device="stated", kernel="stated", blocks=costs)
    measured = measure(
        [(cell.option, cell) for cell in cells], trace.open(), source, Slo(10**9, 10**9), clock_cell
    )
    one, sixteen = measured.options
    assert (trace.open().parent >= 0).any()
    for phase in ("cold", "steady"):
        pairs = zip(getattr(one, phase), getattr(sixteen, phase), strict=True)
        assert all(a.requests == b.requests and a.qualified_tokens == b.qualified_tokens for a, b in pairs)
    assert one.cold[0].requests + one.steady[0].requests == 60
