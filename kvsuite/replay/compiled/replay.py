"""A trace through the compiled reference engine, from Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError
from kvsuite.ledger.invariants import judge
from kvsuite.ledger.summary import MAX_BUCKETS, LedgerSummary, SummaryBuilder
from kvsuite.ledger.timeline import PoolTimeline, Timeline
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled import loop
from kvsuite.replay.compiled.columns import NUM_COLUMNS, ROW_ORDER
from kvsuite.replay.compiled.ends import ClockBook
from kvsuite.replay.compiled.fields import C, F
from kvsuite.replay.compiled.requests import MAX_STEP, Requests, requests_of
from kvsuite.replay.compiled.slots import SlotSteps
from kvsuite.replay.compiled.state import COLLECTED_STEPS, State, open_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import PoolSpec
    from kvsuite.ledger.invariants import Violation
    from kvsuite.replay.compiled.state import Int64Array
    from kvsuite.replay.content import ContentTally
    from kvsuite.replay.step_clock import ClockLog
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace

CHUNK_STEPS = COLLECTED_STEPS
"""Rows taken between two returns to Python."""
_MAX_LIMIT = 2**62
_REASONS = (RefusalReason.NO_BLOCKS, RefusalReason.PROMISED, RefusalReason.WATERMARK)


@dataclass(frozen=True)
class Fates:
    """How every request fared, each int[requests]; -1 where it never came so far.

    The columns are those of `kvsuite.replay.driver.Outcome`; ``ending`` counts the members of
    `kvsuite.replay.batch.Ending`.
    """

    ending: Int64Array
    arrived_step: Int64Array
    admitted_step: Int64Array
    first_token_step: Int64Array
    ended_step: Int64Array
    generated_tokens: Int64Array
    hit_tokens: Int64Array
    preemptions: Int64Array


@dataclass(frozen=True)
class CompiledReplay:
    """What a compiled replay came to: the same rows as the step-by-step driver over the reference engine.

    Without a worker nothing is written or read back, and there is no content to judge.
    """

    spec: EngineSpec
    scheduler: SchedulerConfig
    summary: LedgerSummary
    timeline: Timeline | None
    """None where only the summary was kept."""
    fates: Fates
    final_lengths: Int64Array
    refusals: Mapping[RefusalReason, int]
    content: ContentTally | None
    """None where nothing was written: without a worker."""
    violations: tuple[Violation, ...]
    clock: ClockLog | None = None
    """Where steps lasted as long as what they did."""


def open_compiled(requests: Requests, spec: EngineSpec, scheduler: SchedulerConfig) -> State:
    """Return the state of an engine that says ``spec`` of itself, before the first step."""
    (pool,) = spec.pools
    return open_state(
        requests,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        null_blocks=pool.never_allocatable_blocks,
        watermark_blocks=int(spec.effective["watermark_blocks"]),
        prefix_cache=bool(spec.effective["prefix_cache"]),
        max_sequences=scheduler.max_sequences,
        max_step_tokens=scheduler.max_step_tokens,
        columns=NUM_COLUMNS,
        costs=scheduler.costs,
    )


def compiled_replay(
    trace: Trace,
    config: EngineConfig,
    scheduler: SchedulerConfig | None = None,
    *,
    requests: Requests | None = None,
    engine: type[ReferenceEngine] = ReferenceEngine,
    max_buckets: int | None = None,
    worker: Worker | None = None,
    read_all: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CompiledReplay:
    """Take ``trace`` through the reference engine that ``config`` opens, or one that only opens it otherwise.

    ``requests`` spares the conversion of a trace that is replayed more than once. With ``max_buckets`` rows
    are not kept, and memory does not grow with the steps; on a clock of costs, by their `ClockLog` alone.
    Threads may replay side by side: compiled code holds no lock. With a ``worker`` every step is carried out
    in its slots and read back, at the speed of Python: see `kvsuite.replay.compiled.slots`.

    **Raises:** `ConfigError` for what ``engine`` refuses.
    """
    scheduler = scheduler or SchedulerConfig()
    spec = engine(config).spec
    _refuse_beyond_64_bits(spec, scheduler)
    state = open_compiled(requests or requests_of(trace, scheduler.step_us), spec, scheduler)
    ledger = _Ledger(spec.pools[0], max_buckets)
    slots = SlotSteps(state, trace, worker, spec.pools[0].key, read_all=read_all) if worker else None
    lengths, clock = [], ClockBook(state)
    chunk = np.zeros((CHUNK_STEPS, 1 + NUM_COLUMNS), np.int64)
    with np.errstate(over="ignore"):  # digests wrap around, in plain Python too
        while not loop.is_done(state):
            taken = slots.run(chunk, ROW_ORDER) if slots else loop.run(state, chunk, ROW_ORDER)
            if state.c[C.STEP] > MAX_STEP:
                raise ConfigError(
                    f"the replay has come to step {state.c[C.STEP]}, and the compiled core counts to "
                    f"{MAX_STEP}: give longer steps, or use the step-by-step driver"
                )
            ledger.add(chunk[:taken])
            lengths.append(state.final_lengths[: state.c[C.FINAL_LENGTHS]].copy())
            state.c[C.FINAL_LENGTHS] = 0
            clock.collect(chunk[:taken, 1:])
            if max_buckets is None:
                chunk = np.zeros_like(chunk)  # the ledger keeps the rows where they are
            if progress is not None:
                progress(int(state.c[C.ENDED]), len(trace))
    return CompiledReplay(
        spec=spec,
        scheduler=scheduler,
        summary=ledger.summary.finish(),
        timeline=ledger.timeline(),
        fates=_fates(state),
        final_lengths=np.concatenate(lengths),
        refusals={reason: int(n) for reason, n in zip(_REASONS, state.refusals, strict=True) if n},
        content=slots.tally() if slots else None,
        violations=(*ledger.violations, *(slots.violations if slots else ())),
        clock=clock.log(),
    )


def _refuse_beyond_64_bits(spec: EngineSpec, scheduler: SchedulerConfig) -> None:
    limits = {name: getattr(scheduler, name) for name in ("max_sequences", "max_step_tokens", "step_us")}
    for name, limit in {**limits, "watermark_blocks": int(spec.effective["watermark_blocks"])}.items():
        if limit > _MAX_LIMIT:
            raise ConfigError(
                f"{name} is {limit}: the compiled core counts to {_MAX_LIMIT}; give less, or use the "
                "step-by-step driver"
            )


class _Ledger:
    """Judges rows as they come, sums them up, and keeps them where they are asked for."""

    def __init__(self, spec: PoolSpec, max_buckets: int | None) -> None:
        self._spec = spec
        self._kept: list[Int64Array] | None = [] if max_buckets is None else None
        self.summary = SummaryBuilder(spec, max_buckets or MAX_BUCKETS)
        self.violations: list[Violation] = []

    def add(self, numbered_rows: Int64Array) -> None:
        self.summary.add(numbered_rows)
        self.violations += judge(self._timeline(numbered_rows))
        if self._kept is not None:
            self._kept.append(numbered_rows)

    def timeline(self) -> Timeline | None:
        return None if self._kept is None else self._timeline(np.concatenate(self._kept))

    def _timeline(self, numbered_rows: Int64Array) -> Timeline:
        return Timeline(numbered_rows[:, 0], (PoolTimeline(self._spec, numbered_rows[:, 1:]),))


def _fates(s: State) -> Fates:
    return Fates(
        ending=s.fate[F.ENDING],
        arrived_step=s.fate[F.ARRIVED_STEP],
        admitted_step=s.fate[F.ADMITTED_STEP],
        first_token_step=s.fate[F.FIRST_TOKEN_STEP],
        ended_step=s.fate[F.ENDED_STEP],
        generated_tokens=s.fate[F.GENERATED],
        hit_tokens=s.fate[F.HIT_TOKENS],
        preemptions=s.fate[F.PREEMPTIONS],
    )
