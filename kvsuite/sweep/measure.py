"""Every option of a decision clocked through its repeats: what the knee is found from.

Repeat ``k`` runs all options one after the other before repeat ``k + 1`` begins, each on its own draw of
costs. The clock is given as a function, so that a decision can be had from any model of step time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.golden.key import SHOWN, engine_hash
from kvsuite.ledger.row import INDEX
from kvsuite.sweep.cells import COMPILED
from kvsuite.sweep.charge import charged
from kvsuite.sweep.clock import ClockedReplay, StepCosts, clocked_replay, clocked_replay_on
from kvsuite.sweep.knee import MIN_REPEATS, Option
from kvsuite.sweep.load import Load
from kvsuite.sweep.slo import Served, Slo, served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.ledger.summary import LedgerSummary
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.clock import Float64Array
    from kvsuite.sweep.costs import CostSource
    from kvsuite.sweep.trial import Trial
    from kvsuite.trace.model import Trace

Clock = Callable[["Cell", "Trace", StepCosts], ClockedReplay]
"""Replays a cell with the time that each step takes; raises `ConfigError` for one that is refused."""
Progress = Callable[[int, int, tuple[str, ...]], None]

COLD_SHARE = 0.05
"""Of the requests of a trace: at most so many are cold."""


@dataclass(kw_only=True)
class Measured:
    """One option: the cell as it was asked for, and what its clocked replays came to."""

    cell: Cell
    name: str
    costs: list[StepCosts] = field(default_factory=list)
    """As drawn, one a repeat."""
    table_bytes: int = 0
    pool_blocks: int = 0
    """In blocks of the cell's size: of a control, slots."""
    refused: str | None = None
    unjudged: str | None = None
    unfit: str | None = None
    broken: str | None = None
    """The first law that its first replay broke."""
    trial: Trial | None = None
    """Of one that would ship."""
    summary: LedgerSummary | None = None
    """Of the first repeat."""
    engine: str = ""
    """What it really ran with."""
    cold: list[Served] = field(default_factory=list)
    """One a repeat."""
    steady: list[Served] = field(default_factory=list)
    step_us: list[float] = field(default_factory=list)
    running_variation: float = 0.0
    """Standard deviation of the running sequences over their mean; steady phase, first repeat."""

    @property
    def ran(self) -> bool:
        """Whether there are figures."""
        return self.summary is not None

    def mean(self, *columns: str) -> float:
        """Return the mean over steps of the sum of ledger columns; 0 for a replay without a step."""
        if self.summary is None or not self.summary.num_steps:
            return 0.0
        return sum(self.summary.total(name) for name in columns) / self.summary.num_steps

    @property
    def spare_blocks(self) -> int | None:
        """Blocks free or reclaimable when the pool was fullest; each sample that diverges takes one.

        A control has slots in place of blocks, and nothing of it is shared.
        """
        if self.summary is None or self.cell.is_control:
            return None
        return self.summary.spec.usable_blocks - self.summary.peak("live_blocks")

    def option(self) -> Option:
        """Return what the knee looks at: the steady phase."""
        if self.summary is None:
            return Option(
                name=self.name,
                block_size=self.cell.block_size,
                is_control=self.cell.is_control,
                refused=self.refused,
                unjudged=self.unjudged,
            )
        slots = self.pool_blocks * self.cell.block_size
        return Option(
            name=self.name,
            block_size=self.cell.block_size,
            is_control=self.cell.is_control,
            unfit=self.unfit,
            qualified_tokens=tuple(figures.qualified_tokens for figures in self.steady),
            step_us=tuple(self.step_us),
            completed_tokens=self.steady[0].completed_tokens,
            slack_share=self.mean("slack", "over_reserved") / slots,
            table_share=self.table_bytes / self.cell.pool_bytes,
            lost_requests=self.steady[0].refused,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Every option of one decision, measured alike."""

    options: tuple[Measured, ...]
    cold_until_us: float
    load: Load
    repeats: int

    @property
    def candidates(self) -> list[Measured]:
        """Options with figures that may ship: controls apart."""
        return _candidates(self.options)


def measure(
    cells: Sequence[tuple[str, Cell]],
    trace: Trace,
    source: CostSource,
    slo: Slo,
    clock: Clock,
    *,
    repeats: int = MIN_REPEATS,
    progress: Progress | None = None,
) -> Measurement:
    """Clock every cell, each called by its name, ``repeats`` times.

    An engine that refuses a cell, a pool that its tables fill, and a control without costs are options with
    their reason. Where the cold phase ends, and the load at which steps are compared, is up to those that may
    ship: a decision among them does not change with the controls beside it.

    **Raises:** `ConfigError` for block sizes without costs.
    """
    options = [_option(cell, name, source, repeats) for name, cell in cells]
    firsts: dict[str, ClockedReplay] = {}
    told = 0
    for measured in options:
        if measured.unjudged is None:
            for first in _first(measured, trace, clock):
                firsts[measured.name] = first
        told = _tell(progress, told, len(options) * repeats, measured)
    candidates = _candidates(options)
    boundary_us = cold_until_us(trace, [firsts[measured.name] for measured in candidates])
    load = _load(candidates)
    for measured in options:
        if measured.ran:
            first = firsts.pop(measured.name)
            _add(measured, first, trace, slo, boundary_us)
            measured.running_variation = _variation(first, boundary_us)
    for repeat in range(1, repeats):
        for measured in options:
            if measured.ran:
                cell, _ = charged(measured.cell, trace)
                _add(measured, clock(cell, trace, measured.costs[repeat]), trace, slo, boundary_us)
            told = _tell(progress, told, len(options) * repeats, measured)
    for measured in options:
        if measured.ran:
            measured.step_us = [load.step_us(measured.cell, costs) for costs in measured.costs]
    return Measurement(options=tuple(options), cold_until_us=boundary_us, load=load, repeats=repeats)


def clock_cell(cell: Cell, trace: Trace, costs: StepCosts) -> ClockedReplay:
    """Replay a cell, each step as long as it costs, on the core that `run_cell` replays it on.

    ``trace`` is the cell's own, which then is converted once for all replays, or another one.

    **Raises:** `ConfigError` and `EngineError` for what the engine refuses.
    """
    config = cell.config(trace)
    if not cell.is_compiled:
        engine = open_engine(cell.engine, config)
        if len(engine.spec.pools) != 1:
            raise ConfigError(f"{len(engine.spec.pools)} pools: a decision compares engines of one pool")
        return clocked_replay_on(engine, trace, cell.scheduler, costs)
    known = cell.trace.requests(cell.scheduler.step_us) if cell.trace.open() is trace else None
    return clocked_replay(trace, config, cell.scheduler, costs, requests=known, engine=COMPILED[cell.engine])


def cold_until_us(trace: Trace, replays: Sequence[ClockedReplay]) -> float:
    """Return when the cold phase ends, the same for every option.

    That is when `COLD_SHARE` of the requests have arrived by the times of the trace, or at the first full
    pool of any of ``replays`` (a step that finds no block free, or refuses an admission), whichever comes
    first.
    """
    if not replays or not len(trace):
        return 0.0
    arrivals = np.sort(_listed_us(trace))
    share_us = float(arrivals[min(int(np.ceil(COLD_SHARE * len(arrivals))), len(arrivals) - 1)])
    return min([share_us, *(_first_full_us(replay) for replay in replays)])


def _candidates(options: Sequence[Measured]) -> list[Measured]:
    return [measured for measured in options if measured.ran and not measured.cell.is_control]


def _option(cell: Cell, name: str, source: CostSource, repeats: int) -> Measured:
    """Return an option with the costs of its repeats; a control without any has the reason."""
    measured = Measured(cell=cell, name=name)
    if not cell.is_control:
        measured.costs = [source.draw(cell.block_size, repeat) for repeat in range(repeats)]
        return measured
    try:
        measured.costs = [source.draw_control(repeat) for repeat in range(repeats)]
    except ConfigError as unknown:
        measured.unjudged = str(unknown)
    return measured


def _first(measured: Measured, trace: Trace, clock: Clock) -> tuple[ClockedReplay] | tuple[()]:
    """Clock an option for the first time; nothing, with the reason kept, where it is refused."""
    try:
        cell, measured.table_bytes = charged(measured.cell, trace)
        measured.pool_blocks = cell.config(trace).num_blocks
        clocked = clock(cell, trace, measured.costs[0])
    except (ConfigError, EngineError) as refusal:
        measured.refused = str(refusal)
        return ()
    measured.summary = clocked.summary
    if violations := clocked.replay.violations:
        measured.broken = str(violations[0])
        measured.unfit = f"breaks a law: {violations[0]}"
    spec = clocked.replay.spec
    measured.engine = f"{spec.name} {spec.version} {engine_hash(spec)[:SHOWN]}"
    return (clocked,)


def _add(measured: Measured, clocked: ClockedReplay, trace: Trace, slo: Slo, boundary_us: float) -> None:
    measured.cold.append(phase(clocked, trace, slo, (-np.inf, boundary_us)))
    measured.steady.append(phase(clocked, trace, slo, (boundary_us, np.inf)))


def phase(clocked: ClockedReplay, trace: Trace, slo: Slo, window_us: tuple[float, float]) -> Served:
    """Return what a replay came to over the requests that a trace lists between two times."""
    return served(clocked, slo, window_us, listed_us=_listed_us(trace))


def _listed_us(trace: Trace) -> Float64Array:
    """Return when each request stands in the trace: a child too, which comes at another time each replay."""
    return trace.arrival_us.astype(np.float64)


def _first_full_us(clocked: ClockedReplay) -> float:
    """Return the end of the first bucket of rows that saw a full pool; infinite without one."""
    buckets = clocked.summary.buckets
    full = (buckets.low[:, INDEX["free"]] == 0) | (buckets.total[:, INDEX["refused_admissions"]] > 0)
    if not full.any() or not len(clocked.step_end_us):
        return float("inf")
    rows = (int(full.argmax()) + 1) * buckets.rows_per_bucket
    return float(clocked.step_end_us[min(rows, len(clocked.step_end_us)) - 1])


def _load(ran: Sequence[Measured]) -> Load:
    """Return the median, over options that ran, of mean sequences and mean context."""
    running = [measured.mean("running") for measured in ran]
    lengths = [
        measured.mean("logical") / measured.mean("running") for measured in ran if measured.mean("running")
    ]
    return Load(round(np.median(running)) if running else 0, round(np.median(lengths)) if lengths else 0)


def _variation(clocked: ClockedReplay, boundary_us: float) -> float:
    running = clocked.running[clocked.step_end_us >= boundary_us]
    return float(running.std() / running.mean()) if len(running) and running.mean() else 0.0


def _tell(progress: Progress | None, told: int, total: int, measured: Measured) -> int:
    if progress is not None:
        progress(told + 1, total, (measured.name,))
    return told + 1
