"""When requests got their tokens: a replay whose steps last as long as what they do.

TTFT is the end of the step that wrote a request's first token, less its arrival; ITL are the differences
between the ends of the steps that wrote its tokens, gaps by preemption included. A token that is computed
again after a preemption was there already. A child came when the step ended in which its parent had come so
far, and what it has from its parent is no token of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError
from kvsuite.ledger.summary import summary_of
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.driver import Replay, replay
from kvsuite.replay.step_costs import FEATURES, StepCosts
from kvsuite.sweep.cells import has_numba

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.summary import LedgerSummary
    from kvsuite.replay.compiled.replay import CompiledReplay
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.step_clock import ClockLog
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace

__all__ = ["FEATURES", "ClockedReplay", "RequestTimes", "StepCosts", "clocked_replay", "clocked_replay_on"]

Float64Array = npt.NDArray[np.float64]
_TOKENS_AT_ONCE = 1 << 22
LEDGER_BUCKETS = 1024
"""Buckets of steps that the ledger of a clocked replay is kept in."""
_ENDINGS = list(Ending)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """How long every request waited, each [requests]; nan where there is nothing to tell."""

    arrival_us: Float64Array
    """nan for a child that never came."""
    ttft_us: Float64Array
    """nan without a token."""
    itl_p99_us: Float64Array
    """The 99th percentile, nearest rank, of the gaps between its tokens; nan with fewer than two."""
    output_tokens: Int64Array
    """Tokens of its answer that it wrote itself."""
    ending: Int64Array
    """The place of its ending among the members of `kvsuite.replay.batch.Ending`."""
    prompt_tokens: Int64Array


@dataclass(frozen=True, slots=True)
class ClockedReplay:
    """A replay, and when its steps ended; R requests."""

    replay: CompiledReplay | Replay
    times: RequestTimes
    step_end_us: Float64Array
    """float64[steps]"""
    running: Int64Array
    """int64[steps]: live sequences in the forward pass."""
    features: Int64Array
    """int64[steps, features]: what each step was charged for, in the order of `FEATURES`."""

    @property
    def summary(self) -> LedgerSummary:
        """The ledger, summed up, whichever way it was replayed."""
        done = self.replay
        if isinstance(done, Replay):
            return summary_of(done.timeline.pools[0], done.timeline.steps, LEDGER_BUCKETS)
        return done.summary


def clocked_replay(
    trace: Trace,
    config: EngineConfig,
    scheduler: SchedulerConfig,
    costs: StepCosts,
    *,
    max_buckets: int | None = LEDGER_BUCKETS,
    requests: Requests | None = None,
    engine: type[ReferenceEngine] = ReferenceEngine,
    progress: Callable[[int, int], None] | None = None,
) -> ClockedReplay:
    """Take ``trace`` through the reference engine on the compiled core; see `compiled_replay` there.

    **Raises:** `ConfigError` for what ``engine`` refuses, and where numba is not there.
    """
    if not has_numba():
        raise ConfigError(
            "a clocked replay needs numba, which is not installed here: install kvsuite[fast], or take the "
            "driver (clocked_replay_on)"
        )
    from kvsuite.replay.compiled.replay import compiled_replay

    scheduler = replace(scheduler, costs=costs)
    done = compiled_replay(
        trace,
        config,
        scheduler,
        requests=requests,
        engine=engine,
        max_buckets=max_buckets,
        progress=progress,
    )
    return _clocked(trace, done, done.clock, done.fates.ending, done.fates.arrived_step)


def clocked_replay_on(
    engine: Engine,
    trace: Trace,
    scheduler: SchedulerConfig,
    costs: StepCosts,
    *,
    worker: Worker | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ClockedReplay:
    """Take ``trace`` through any engine, at the speed of the driver; see `kvsuite.replay.driver.replay`.

    **Raises:** `EngineError` when the engine leaves nothing to judge.
    """
    done = replay(trace, engine, worker, replace(scheduler, costs=costs), progress=progress)
    endings = [-1 if o.ending is None else _ENDINGS.index(o.ending) for o in done.outcomes]
    arrived = [-1 if o.arrived_step is None else o.arrived_step for o in done.outcomes]
    return _clocked(trace, done, done.clock, np.array(endings, np.int64), np.array(arrived, np.int64))


def _clocked(
    trace: Trace,
    done: CompiledReplay | Replay,
    clock: ClockLog | None,
    ending: Int64Array,
    arrived_step: Int64Array,
) -> ClockedReplay:
    assert clock is not None
    ends_us = clock.step_end_us
    child = trace.parent >= 0
    came = child & (arrived_step >= 0)
    arrival_us = np.where(child, np.nan, trace.arrival_us.astype(np.float64))
    arrival_us[came] = ends_us[arrived_step[came]]
    request, first, last = clock.token_spans.T
    first_us = np.full(len(trace), np.nan)
    first_us[request[::-1]] = ends_us[first[::-1]]  # of several spans the first stays
    tokens = np.bincount(request, last - first + 1, len(trace)).astype(np.int64)
    times = RequestTimes(
        arrival_us=arrival_us,
        ttft_us=first_us - arrival_us,
        itl_p99_us=_itl_p99_us(clock, tokens),
        output_tokens=tokens,
        ending=ending.astype(np.int64),
        prompt_tokens=trace.prompt_tokens,
    )
    return ClockedReplay(done, times, ends_us, clock.running, clock.features)


def _itl_p99_us(clock: ClockLog, tokens: Int64Array) -> Float64Array:
    p99_us = np.full(len(tokens), np.nan)
    for requests, steps in _token_steps(clock.token_spans, tokens):
        gaps_us = np.diff(clock.step_end_us[steps])
        counts = tokens[requests] - 1
        starts = np.cumsum(tokens[requests]) - tokens[requests]
        for count in np.unique(counts[counts > 0]):
            alike = counts == count
            rank = (99 * count + 99) // 100 - 1
            table = gaps_us[starts[alike][:, None] + np.arange(count)]
            p99_us[requests[alike]] = np.partition(table, rank, axis=1)[:, rank]
    return p99_us


def _token_steps(spans: Int64Array, tokens: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield requests with tokens, some at a time, and the steps of their tokens, request by request."""
    having = np.flatnonzero(tokens)
    batch = np.cumsum(tokens[having]) // _TOKENS_AT_ONCE
    for number in np.unique(batch):
        requests = having[batch == number]
        bounds = np.searchsorted(spans[:, 0], [requests[0], requests[-1] + 1])
        _, first, last = spans[slice(*bounds)].T
        lengths = last - first + 1
        before = np.cumsum(lengths) - lengths
        yield requests, np.repeat(first - before, lengths) + np.arange(int(lengths.sum()))
