"""Contiguous reservation against paged allocation, measured on the engines themselves.

Two measurements make up a row:

* *held at once*: every request is admitted at its final length into a pool that holds all of them at the
  largest reservation; what each then owns is read from the engine's snapshot.
* *under churn*: a second workload, whose requests come and go, is replayed on a smaller pool. A fragmentation
  event is one offered admission that is refused although enough slots are free in all
  (`RefusalReason.NO_CONTIGUOUS_RUN`). A request that waits is offered at every step, so it can count often.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.guard import GuardedEngine
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.record.schema import ComparisonLine, ComparisonRow
from kvsuite.replay.driver import Replay, replay
from kvsuite.sweep.cells import CONTROL_BLOCK_SIZE, CONTROLS
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.cache.layout import Layout
    from kvsuite.engine.contract import Engine
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.trace.model import Trace

CAVEAT = (
    "Each request is held at its final length, all at once. The exact control reads that length from the "
    "trace, which no engine can. Fragmentation events are counted in a replay of {churn} on {slots:,} slots."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A workload to be held at once, one to be replayed, the paged engine and the churn's pool.

    **Raises:** `ConfigError` for a workload with a request longer than ``max_tokens``, or a churn pool that
    does not hold one reservation of ``max_tokens``.
    """

    trace: Trace
    churn: Trace
    layout: Layout
    scheduler: SchedulerConfig
    paged_engine: str = "reference"
    block_size: int = 16
    max_tokens: int = 2048
    churn_tokens: int = 4096

    def __post_init__(self) -> None:
        longest = int(self.lengths.max(initial=0))
        if longest > self.max_tokens:
            raise ConfigError(
                f"the longest request holds {longest} tokens, the maximum to reserve is {self.max_tokens}: "
                "give a larger maximum"
            )
        if self.churn_tokens < self.max_tokens:
            raise ConfigError(
                f"a churn pool of {self.churn_tokens} tokens does not hold one reservation of "
                f"{self.max_tokens}: give a larger pool"
            )

    @property
    def lengths(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Final length of each request, int64[requests]."""
        return self.trace.prompt_tokens + self.trace.output_tokens

    def open(self, engine: str, trace: Trace, pool_tokens: int) -> Engine:
        """Open a control, or the paged engine, for ``trace`` on a pool of ``pool_tokens`` slots.

        The prefix cache is off: what differs is where slots lie, and not what is shared.
        """
        block_size = CONTROL_BLOCK_SIZE if engine in CONTROLS else self.block_size
        return open_engine(
            engine,
            EngineConfig(
                layout=self.layout,
                block_size=block_size,
                num_blocks=pool_tokens // block_size,
                prefix_cache=False,
                max_model_tokens=self.max_tokens,
                trace=trace,
            ),
        )


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A row of the comparison, with the replay its events were counted in."""

    row: ComparisonRow
    churn: Replay
    duration_s: float


def strategies(comparison: Comparison) -> dict[str, str]:
    """Return what each engine is called in the comparison."""
    return {
        "contiguous-max": f"contiguous, {comparison.max_tokens:,} reserved",
        "contiguous-pow2": "contiguous, power of two",
        "contiguous-exact": "contiguous, exact length",
        comparison.paged_engine: f"paged, blocks of {comparison.block_size}",
    }


def run_strategy(
    comparison: Comparison, engine: str, progress: Callable[[int, int], None] | None = None
) -> StrategyResult:
    """Measure one strategy both ways."""
    started_s = perf_counter()
    opened = comparison.open(engine, comparison.churn, comparison.churn_tokens)
    churn = replay(comparison.churn, opened, scheduler=comparison.scheduler, progress=progress)
    row = ComparisonRow(
        strategy=strategies(comparison)[engine],
        engine=engine,
        reserved_tokens=held_at_once(comparison, engine),
        payload_tokens=int(comparison.lengths.sum()),
        fragmentation_events=churn.refusals.get(RefusalReason.NO_CONTIGUOUS_RUN, 0),
        refused_admissions=churn.timeline.pools[0].total("refused_admissions"),
    )
    return StrategyResult(row, churn, perf_counter() - started_s)


def held_at_once(comparison: Comparison, engine: str) -> int:
    """Return the slots that all requests own together, each at its final length.

    **Raises:** `EngineError` when the engine refuses one, although the pool holds the largest reservation
    of all.
    """
    trace, lengths = comparison.trace, comparison.lengths.tolist()
    opened = GuardedEngine(comparison.open(engine, trace, len(trace) * comparison.max_tokens))
    for index, length in enumerate(lengths):
        admission = opened.admit(
            trace.request_ids[index], TokenRun(trace.content(index), 0, length), first_chunk_tokens=length
        )
        if not admission.accepted:
            raise EngineError(
                f"{engine} refused request {index} of {length} tokens in a pool of {len(trace)} times "
                f"{comparison.max_tokens} tokens: {admission.refusal}"
            )
    snapshot = opened.snapshot()[0]
    return len(np.unique(snapshot.table_blocks)) * opened.spec.pools[0].block_size


def comparison_line(
    comparison: Comparison, rows: list[ComparisonRow], *, case: str, trace: str, churn: str
) -> ComparisonLine:
    """Return the comparison as a line of the record; ``trace`` and ``churn`` are refs of trace lines."""
    return ComparisonLine(
        case=case,
        trace=trace,
        block_size=comparison.block_size,
        max_tokens=comparison.max_tokens,
        lengths=comparison.lengths.tolist(),
        rows=rows,
        caveat=CAVEAT.format(churn=churn, slots=comparison.churn_tokens),
    )
