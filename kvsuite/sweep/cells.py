"""A cell of a sweep: one engine at one block size on one pool and trace, run anywhere, with the same result.

The reference engine, and the control of one block a sequence, run on the compiled core where numba is
installed. That core writes nothing into slots, so no content is read back; its ledger is the step-by-step
driver's, row for row. Every other engine goes through the driver.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Literal

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contiguous.one_block import OneBlock
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.ledger.invariants import first_of_each
from kvsuite.ledger.row import SCHEMA_VERSION
from kvsuite.ledger.summary import summary_of
from kvsuite.replay.batch import SEMANTICS_VERSION, SchedulerConfig, scheduler_recipe
from kvsuite.replay.driver import replay
from kvsuite.sweep.identity import engine_identity, suite_identity
from kvsuite.sweep.lengths import longest_declared_tokens
from kvsuite.sweep.lines import compiled_lines, replay_lines
from kvsuite.sweep.results import CellResult, refused_row, sweep_row
from kvsuite.sweep.stopping import raise_if_stopped

if TYPE_CHECKING:
    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.traces import TraceRef
    from kvsuite.trace.model import Trace

COMPILED: dict[str, type[ReferenceEngine]] = {"reference": ReferenceEngine, OneBlock.name: OneBlock}
"""Engines that the compiled core has too."""
Core = Literal["auto", "compiled", "step"]
Scalar = int | str | bool

REFERENCE = "reference"
CONTROLS = ("contiguous-max", "contiguous-pow2", "contiguous-exact", OneBlock.name)
DEFAULT_CONTROLS = CONTROLS[:3]
"""The fourth stands in for the first on traces that are too long for the step-by-step driver."""
CLOCKED_CONTROLS = CONTROLS[3:]
"""Controls of a decision unless others are named: each is replayed once a repeat."""
CONTROL_BLOCK_SIZE = 1
"""A control hands out single slots, in one unbroken run a sequence."""
LEDGER_ROWS = 256
"""Rows kept of each cell's ledger: enough to draw, small enough for a dozen of them."""
LEDGER_BUCKETS = 1 << 14
"""Buckets a compiled replay is kept in until it is thinned: 28 MiB. Shorter replays lose no peak."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is replayed, and on what. Equal cells have equal keys, whatever they are called."""

    trace: TraceRef
    engine: str
    block_size: int
    pool_bytes: int
    layout: Layout
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    prefix_cache: bool = True
    watermark_blocks: int = 0
    max_model_tokens: int | None = None
    """Most tokens a request without a cap may come to; the longest of the trace where none is given."""
    options: tuple[tuple[str, Scalar], ...] = ()
    """The engine's own, see `EngineConfig.options`; a control has none."""
    core: Core = "auto"
    """What the reference engine runs on; other engines have no choice."""
    name: str = field(default="", compare=False)
    """What it is called in its sweep."""

    @property
    def is_control(self) -> bool:
        """Whether the engine is a contiguous control."""
        return self.engine in CONTROLS

    @property
    def option(self) -> str:
        """What a row of the sweep calls it."""
        return self.engine if self.is_control else f"block {self.block_size}"

    @property
    def is_compiled(self) -> bool:
        """Whether it runs on the compiled core here."""
        return self.engine in COMPILED and self.core != "step" and (self.core == "compiled" or has_numba())

    @cached_property
    def key(self) -> str:
        """64 hex digits that stand for everything the result depends on, as far as it can be told here.

        The name of a trace is no part of it, and its content is.
        """
        preimage = {
            "trace": self.trace.content_hash,
            "engine": self.engine,
            "identity": engine_identity(self.engine),
            "suite": suite_identity(),
            "ledger_schema": SCHEMA_VERSION,
            "replay_semantics": SEMANTICS_VERSION,
            "block_size": self.block_size,
            "pool_bytes": self.pool_bytes,
            "layout": asdict(self.layout),
            "scheduler": scheduler_recipe(self.scheduler),
            "prefix_cache": self.prefix_cache,
            "watermark_blocks": self.watermark_blocks,
            "max_model_tokens": self.max_model_tokens,
            "options": sorted(self.options),
            "core": self.core,
        }
        text = json.dumps(preimage, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def config(self, trace: Trace) -> EngineConfig:
        """Return how the engine is opened for ``trace``.

        **Raises:** `ConfigError` when the pool holds no block of that size.
        """
        slots = self.pool_bytes // self.layout.bytes_per_token
        return EngineConfig(
            layout=self.layout,
            block_size=self.block_size,
            num_blocks=slots if self.is_control else self.layout.blocks_in(self.pool_bytes, self.block_size),
            prefix_cache=self.prefix_cache,
            watermark_blocks=self.watermark_blocks,
            max_model_tokens=self.max_model_tokens or longest_declared_tokens(trace),
            options={} if self.is_control else dict(self.options),
            trace=trace,
        )


def has_numba() -> bool:
    """Return whether the compiled core can be had here."""
    return importlib.util.find_spec("numba") is not None


def run_cell(cell: Cell) -> CellResult:
    """Replay one cell; an engine that refuses it gives a row with the reason.

    **Raises:** `TraceError` when the trace is not the one that was named; `EngineError` when the engine
    leaves nothing to judge; `ConfigError` where the compiled core is demanded and numba is not there.
    """
    started_s, started_cpu_s = perf_counter(), thread_time()
    trace = cell.trace.open()
    result = _run_compiled(cell, trace) if cell.is_compiled else _run_stepped(cell, trace)
    return replace(result, wall_s=perf_counter() - started_s, cpu_s=thread_time() - started_cpu_s)


def _run_compiled(cell: Cell, trace: Trace) -> CellResult:
    if not has_numba():
        raise ConfigError(
            "the compiled core needs numba, which is not installed here: install kvsuite[fast], or leave "
            "out --core compiled"
        )
    from kvsuite.replay.compiled.replay import compiled_replay

    try:
        done = compiled_replay(
            trace,
            cell.config(trace),
            cell.scheduler,
            requests=cell.trace.requests(cell.scheduler.step_us),
            engine=COMPILED[cell.engine],
            progress=raise_if_stopped,
            max_buckets=LEDGER_BUCKETS,
        )
    except ConfigError as refusal:
        return CellResult(row=refused_row(cell, str(refusal)))
    return CellResult(
        row=sweep_row(cell, done.summary, done.refusals, trace),
        digest=done.summary.digest,
        violations=tuple(first_of_each(done.violations)),
        lines=tuple(compiled_lines(done, case="", engine="", trace="", duration_s=0.0, max_rows=LEDGER_ROWS)),
    )


def _run_stepped(cell: Cell, trace: Trace) -> CellResult:
    try:
        engine = open_engine(cell.engine, cell.config(trace))
    except (ConfigError, EngineError) as refusal:
        return CellResult(row=refused_row(cell, str(refusal)))
    if len(engine.spec.pools) != 1:
        reason = f"{len(engine.spec.pools)} pools: a sweep compares engines of one pool"
        return CellResult(row=refused_row(cell, reason))
    done = replay(trace, engine, scheduler=cell.scheduler, progress=raise_if_stopped)
    summary = summary_of(done.timeline.pools[0], done.timeline.steps)
    return CellResult(
        row=sweep_row(cell, summary, done.refusals, trace),
        digest=summary.digest,
        violations=tuple(first_of_each(done.violations)),
        lines=tuple(replay_lines(done, case="", engine="", trace="", duration_s=0.0, max_rows=LEDGER_ROWS)),
    )
