"""What a step costs, driver and compiled: ``pytest bench/test_driver_step.py -o addopts= --benchmark-only``.

64 sequences decode in blocks of 16 tokens, a token a step each, and nobody comes or goes. A round is 64
steps, so that every sequence takes four blocks in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.frame import Frame
from kvsuite.replay.recorder import Recorder
from kvsuite.replay.steps import Stepper
from kvsuite.replay.storage import worker_of
from kvsuite.trace.model import TraceSource
from kvsuite.trace.request import RequestId
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    from kvsuite.replay.frame import Part
    from kvsuite.trace.model import Trace

BLOCK_SIZE = 16
SEQUENCES = 64
STEPS = 64
ROUNDS = 20
PROMPT_TOKENS = 512
ANSWER_TOKENS = 2 * STEPS * ROUNDS
"""Longer than anything below runs."""
CONFIG = EngineConfig(
    model_layout("tiny"), BLOCK_SIZE, SEQUENCES * (PROMPT_TOKENS + ANSWER_TOKENS) // BLOCK_SIZE
)
SCHEDULER = SchedulerConfig(max_step_tokens=SEQUENCES * PROMPT_TOKENS)


@pytest.fixture(scope="module")
def trace() -> Trace:
    """64 requests that come at once and stay."""
    row = Row(timestamp=0, input_length=PROMPT_TOKENS, output_length=ANSWER_TOKENS)
    rows = [row] * SEQUENCES
    return trace_of(rows, TraceSource(format="made", name="decoding"), block_size=0)


def frames(trace: Trace, take: Callable[[Part], None]) -> Callable[[int], None]:
    """Return what walks a replay by a number of steps, once everybody decodes."""
    stepper = Stepper(trace, ReferenceEngine(CONFIG), SCHEDULER, read_all=False)
    parts = stepper.parts()

    def walk(steps: int) -> None:
        while steps:
            part = next(parts)
            take(part)
            steps -= isinstance(part, Frame)

    walk(2)
    return walk


def test_engine_and_scheduler(benchmark: BenchmarkFixture, trace: Trace) -> None:
    """64 steps beside the engine: scheduler, guard, engine, snapshot of what changed."""
    lengths: list[int] = []

    def take(part: Part) -> None:
        if isinstance(part, Frame):
            lengths[:] = part.lengths

    walk = frames(trace, take)
    benchmark.pedantic(walk, (STEPS,), rounds=ROUNDS)  # type: ignore[no-untyped-call]
    assert lengths == [PROMPT_TOKENS + 1 + STEPS * ROUNDS] * SEQUENCES


def test_whole_step(benchmark: BenchmarkFixture, trace: Trace) -> None:
    """The same with ledger and content: every token is written to the probe and read back."""
    engine = ReferenceEngine(CONFIG)
    recorder = Recorder(engine.spec, worker_of(engine, None), read_all=False)
    walk = frames(trace, recorder.take)
    benchmark.pedantic(walk, (STEPS,), rounds=ROUNDS)  # type: ignore[no-untyped-call]
    assert recorder.found() == []


def test_snapshot_of_changes(benchmark: BenchmarkFixture) -> None:
    """64 extensions by a token, and a snapshot of what they changed, 64 times."""
    engine = ReferenceEngine(CONFIG)
    contents = [TokenContent((key,), ()) for key in range(SEQUENCES)]
    names = [RequestId(f"r{key}") for key in range(SEQUENCES)]
    for name, content in zip(names, contents, strict=True):
        engine.admit(name, TokenRun(content, 0, PROMPT_TOKENS), first_chunk_tokens=PROMPT_TOKENS)
    state = {"length": PROMPT_TOKENS, "revision": engine.snapshot()[0].revision, "changed": 0}

    def run() -> None:
        for _ in range(STEPS):
            at = state["length"]
            for name, content in zip(names, contents, strict=True):
                engine.extend(name, TokenRun(content, at, at + 1))
            (shot,) = engine.snapshot(state["revision"])
            state["length"], state["revision"] = at + 1, shot.revision
            state["changed"] += len(shot.live)

    benchmark.pedantic(run, rounds=ROUNDS)  # type: ignore[no-untyped-call]
    assert state["changed"] == SEQUENCES * STEPS * ROUNDS // BLOCK_SIZE


def test_compiled_step(benchmark: BenchmarkFixture, trace: Trace) -> None:
    """64 steps of the compiled core, a row each; compiled before the clock starts."""
    pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")
    from kvsuite.ledger.row import INDEX
    from kvsuite.replay.compiled.columns import NUM_COLUMNS, ROW_ORDER
    from kvsuite.replay.compiled.loop import run
    from kvsuite.replay.compiled.replay import open_compiled
    from kvsuite.replay.compiled.requests import requests_of

    state = open_compiled(requests_of(trace, SCHEDULER.step_us), ReferenceEngine(CONFIG).spec, SCHEDULER)
    rows = np.zeros((STEPS, 1 + NUM_COLUMNS), np.int64)
    run(state, rows[:2], ROW_ORDER)
    benchmark.pedantic(run, (state, rows, ROW_ORDER), rounds=ROUNDS)  # type: ignore[no-untyped-call]
    assert rows[:, 1 + INDEX["written"]].tolist() == [SEQUENCES] * STEPS
    assert rows[-1, 1 + INDEX["logical"]] == SEQUENCES * (PROMPT_TOKENS + 1 + STEPS * ROUNDS)
