"""With a summary in place of rows, memory does not grow with the steps of a replay."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.ledger.summary import summary_of
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ABSENT, Trace

STEPS = 40_000


def one_long_answer() -> Trace:
    trace = load_trace("churn").head(1)
    return replace(
        trace,
        prompt_tokens=np.array([1]),
        output_tokens=np.array([STEPS]),
        max_output_tokens=np.array([ABSENT]),
    )


def peak_bytes(trace: Trace, max_buckets: int | None) -> int:
    config = EngineConfig(model_layout("tiny"), 256, 200)
    compiled_replay(trace.head(1), config, max_buckets=max_buckets)  # compiles, and allocates what is kept
    tracemalloc.start()
    try:
        compiled_replay(trace, config, max_buckets=max_buckets)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_are_not_kept() -> None:
    trace = one_long_answer()
    row_bytes = 45 * 8
    assert peak_bytes(trace, None) > STEPS * row_bytes
    assert peak_bytes(trace, 16) < STEPS * row_bytes / 4


def test_the_summary_is_that_of_every_row() -> None:
    trace = load_trace("churn").head(80)
    config = EngineConfig(model_layout("tiny"), 16, 300)
    kept, bounded = compiled_replay(trace, config), compiled_replay(trace, config, max_buckets=4)
    assert kept.timeline is not None
    assert bounded.timeline is None
    pool = kept.timeline.pools[0]
    assert bounded.summary.sums.tolist() == pool.rows.sum(axis=0).tolist()
    assert bounded.summary.maxima.tolist() == pool.rows.max(axis=0).tolist()
    assert bounded.summary.minima.tolist() == pool.rows.min(axis=0).tolist()
    assert bounded.summary.num_steps == len(kept.timeline)
    assert bounded.summary.digest == summary_of(pool, kept.timeline.steps).digest
    assert len(bounded.summary.buckets) <= 4
