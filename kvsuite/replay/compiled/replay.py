"""A trace through the compiled reference engine, from Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.ledger.invariants import judge
from kvsuite.ledger.timeline import PoolTimeline, Timeline
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled import loop
from kvsuite.replay.compiled.columns import LEDGER_ORDER, NUM_COLUMNS
from kvsuite.replay.compiled.requests import Requests, requests_of
from kvsuite.replay.compiled.state import C, F, State, open_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.ledger.invariants import Violation
    from kvsuite.replay.compiled.state import Int64Array
    from kvsuite.trace.model import Trace

CHUNK_STEPS = 1 << 15
"""Rows taken between two returns to Python: 12 MiB of them."""
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

    Nothing is written or read back, so there is no content to judge.
    """

    spec: EngineSpec
    scheduler: SchedulerConfig
    timeline: Timeline
    fates: Fates
    final_lengths: Int64Array
    refusals: Mapping[RefusalReason, int]
    violations: tuple[Violation, ...]


def open_compiled(requests: Requests, config: EngineConfig, scheduler: SchedulerConfig) -> State:
    """Return the state of a reference engine opened with ``config``, before the first step."""
    return open_state(
        requests,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        null_blocks=int(config.options.get("null_blocks", 0)),
        watermark_blocks=config.watermark_blocks,
        prefix_cache=config.prefix_cache,
        max_sequences=scheduler.max_sequences,
        max_step_tokens=scheduler.max_step_tokens,
        columns=NUM_COLUMNS,
    )


def compiled_replay(
    trace: Trace,
    config: EngineConfig,
    scheduler: SchedulerConfig | None = None,
    *,
    requests: Requests | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CompiledReplay:
    """Take ``trace`` through the reference engine that ``config`` opens.

    ``requests`` spares the conversion of a trace that is replayed more than once. Threads may replay side by
    side: compiled code holds no lock.

    **Raises:** `ConfigError` for what `ReferenceEngine` refuses.
    """
    scheduler = scheduler or SchedulerConfig()
    spec = ReferenceEngine(config).spec
    state = open_compiled(requests or requests_of(trace, scheduler.step_us), config, scheduler)
    steps, rows, lengths = [], [], []
    chunk_steps = np.zeros(CHUNK_STEPS, np.int64)
    chunk_rows = np.zeros((CHUNK_STEPS, NUM_COLUMNS), np.int64)
    with np.errstate(over="ignore"):  # digests wrap around, in plain Python too
        while not loop.is_done(state):
            taken = loop.run(state, chunk_steps, chunk_rows)
            steps.append(chunk_steps[:taken].copy())
            rows.append(chunk_rows[:taken, LEDGER_ORDER])
            lengths.append(state.final_lengths[: state.c[C.FINAL_LENGTHS]].copy())
            state.c[C.FINAL_LENGTHS] = 0
            if progress is not None:
                progress(int(state.c[C.ENDED]), len(trace))
    pool = PoolTimeline(spec.pools[0], np.concatenate(rows))
    timeline = Timeline(np.concatenate(steps), (pool,))
    return CompiledReplay(
        spec=spec,
        scheduler=scheduler,
        timeline=timeline,
        fates=_fates(state),
        final_lengths=np.concatenate(lengths),
        refusals={reason: int(n) for reason, n in zip(_REASONS, state.refusals, strict=True) if n},
        violations=tuple(judge(timeline)),
    )


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
