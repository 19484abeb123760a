"""The part of a trace around the step at which an option holds the most blocks, and that part on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.engine.registry import open_engine
from kvsuite.ledger.row import INDEX
from kvsuite.replay.driver import replay
from kvsuite.sweep.cells import COMPILED
from kvsuite.sweep.charge import charged
from kvsuite.sweep.lengths import longest_declared_tokens

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.timeline import PoolTimeline
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.step_clock import ClockLog
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.clock import ClockedReplay, StepCosts
    from kvsuite.trace.model import Trace

STRETCH_REQUESTS = 1024
"""At the most, so that every token can be read back in seconds."""
STRETCH_TOKENS = 2_000_000
"""At the most, unless the pool holds half as many: the stretch has to fill it again from empty."""
_BEFORE = 3 / 4
"""Share of a stretch that came before the fullest step."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A replay that kept every row."""

    pool: PoolTimeline
    clock: ClockLog
    arrived_step: Int64Array
    """int64[requests], as the next; -1 where it never came so far."""
    ended_step: Int64Array
    forks: bool
    """Whether the engine claims to."""

    @property
    def fullest(self) -> int:
        """The first of the steps with the most live blocks."""
        return int(self.column("live_blocks").argmax())

    def column(self, name: str) -> Int64Array:
        """Return a column of the ledger, int64[steps]."""
        return self.pool.column(name)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some requests in a row of a trace, on the pool and costs of an option. It begins with an empty pool."""

    trace: Trace
    cell: Cell
    """What tables take is off its pool, and a request may be as long as in the whole trace."""
    costs: StepCosts

    def rows(self, trace: Trace | None = None) -> Rows:
        """Replay it, or what was made of its trace, and keep every row."""
        trace = trace or self.trace
        scheduler = replace(self.cell.scheduler, costs=self.costs)
        if self.cell.is_compiled:
            return _compiled(trace, self.cell, scheduler)
        return _stepped(trace, self.cell, scheduler)


def _compiled(trace: Trace, cell: Cell, scheduler: SchedulerConfig) -> Rows:
    from kvsuite.replay.compiled.replay import compiled_replay

    done = compiled_replay(trace, cell.config(trace), scheduler, engine=COMPILED[cell.engine])
    assert done.timeline is not None
    assert done.clock is not None
    fates, forks = done.fates, done.spec.claims(Capability.FORK)
    return Rows(done.timeline.pools[0], done.clock, fates.arrived_step, fates.ended_step, forks)


def _stepped(trace: Trace, cell: Cell, scheduler: SchedulerConfig) -> Rows:
    done = replay(trace, open_engine(cell.engine, cell.config(trace)), scheduler=scheduler)
    assert done.clock is not None
    steps = [(outcome.arrived_step, outcome.ended_step) for outcome in done.outcomes]
    arrived, ended = np.array([[-1 if s is None else s for s in pair] for pair in steps]).reshape(-1, 2).T
    forks = done.spec.claims(Capability.FORK)
    return Rows(done.timeline.pools[0], done.clock, arrived, ended, forks)


def fullest_stretch(cell: Cell, trace: Trace, costs: StepCosts, clocked: ClockedReplay) -> Stretch:
    """Return the requests around the fullest step of ``clocked``, on what tables leave of the cell's pool."""
    longest = cell.max_model_tokens or longest_declared_tokens(trace)
    paid, _ = charged(replace(cell, max_model_tokens=longest), trace)
    pool = clocked.summary.spec
    return Stretch(_around(trace, clocked, pool.usable_blocks * pool.block_size), paid, costs)


def fullest_us(clocked: ClockedReplay) -> float:
    """Return the end of the fullest step, as near as the buckets of its ledger tell; 0 without a step."""
    if not len(clocked.step_end_us):
        return 0.0
    buckets = clocked.summary.buckets
    row = int(buckets.high[:, INDEX["live_blocks"]].argmax()) * buckets.rows_per_bucket
    return float(clocked.step_end_us[min(row, len(clocked.step_end_us) - 1)])


def _around(trace: Trace, clocked: ClockedReplay, pool_tokens: int) -> Trace:
    """Return the requests around the last one that had its first token by the end of the fullest step."""
    most_tokens = max(STRETCH_TOKENS, 2 * pool_tokens)
    ends = np.cumsum(trace.prompt_tokens + trace.output_tokens)
    began = np.flatnonzero(clocked.times.arrival_us + clocked.times.ttft_us <= fullest_us(clocked))
    last = int(began[-1]) if len(began) else 0
    start = max(
        last - int(_BEFORE * STRETCH_REQUESTS),
        int(np.searchsorted(ends, ends[last] - _BEFORE * most_tokens)) if len(ends) else 0,
        0,
    )
    before = int(ends[start - 1]) if start else 0
    stop = min(start + STRETCH_REQUESTS, int(np.searchsorted(ends, before + most_tokens, side="right")))
    if (start, stop) == (0, len(trace)):
        return trace
    return _without_orphans(trace, np.arange(start, max(stop, last + 1), dtype=np.int64))


def _without_orphans(trace: Trace, rows: Int64Array) -> Trace:
    """Return the rows but for those whose parent, or parent's parent, is not among them.

    Where that leaves none, as among the children of one large family, the trace is returned whole.
    """
    while len(rows):
        parents = trace.parent[rows]
        known = (parents < 0) | np.isin(parents, rows)
        if known.all():
            return trace.select(rows)
        rows = rows[known]
    return trace
