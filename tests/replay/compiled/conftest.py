"""The driver over the readable engine is the definition; the compiled core is held against it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")

from typing import TYPE_CHECKING

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.ledger.row import COLUMN_NAMES
from kvsuite.ledger.summary import summary_of
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.compiled.replay import Fates, compiled_replay
from kvsuite.replay.driver import Outcome, replay
from kvsuite.trace.model import Trace

if TYPE_CHECKING:
    from kvsuite.replay.step_clock import ClockLog

HoldAgainst = Callable[[Trace, EngineConfig, SchedulerConfig], None]


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Return the path of a public trace below ``$KVSUITE_TRACES``, or skip."""

    def find(relative: str) -> Path:
        root = os.environ.get("KVSUITE_TRACES")
        if root is None or not (Path(root) / relative).exists():
            pytest.skip(f"KVSUITE_TRACES names no folder with {relative}")
        return Path(root) / relative

    return find


@pytest.fixture
def hold_against_the_driver() -> HoldAgainst:
    return compare


def compare(trace: Trace, config: EngineConfig, scheduler: SchedulerConfig) -> None:
    """Expect every column at every step, every outcome, and every refusal to be the driver's."""
    wanted = replay(trace, ReferenceEngine(config), scheduler=scheduler)
    found = compiled_replay(trace, config, scheduler)
    assert found.timeline is not None
    assert found.timeline.steps.tolist() == wanted.timeline.steps.tolist()
    rows, expected = found.timeline.pools[0].rows, wanted.timeline.pools[0].rows
    wrong = np.argwhere(rows != expected)
    if len(wrong):
        step, column = (int(place) for place in wrong[0])
        pytest.fail(
            f"{len(wrong)} values differ, first {COLUMN_NAMES[column]} at step "
            f"{wanted.timeline.steps[step]}: {rows[step, column]}, expected {expected[step, column]}"
        )
    assert outcomes(found.fates, trace) == list(wanted.outcomes)
    assert found.final_lengths.tolist() == wanted.final_lengths.tolist()
    assert dict(found.refusals) == dict(wanted.refusals)
    assert found.violations == ()
    assert found.summary.digest == summary_of(wanted.timeline.pools[0], wanted.timeline.steps).digest
    compare_clocks(found.clock, wanted.clock)


def compare_clocks(found: ClockLog | None, wanted: ClockLog | None) -> None:
    """Expect the same ends to the bit, and the same tokens in the same steps."""
    if wanted is None or found is None:
        assert found is wanted
        return
    np.testing.assert_array_equal(found.features, wanted.features)
    assert found.step_end_us.tobytes() == wanted.step_end_us.tobytes()
    assert found.running.tolist() == wanted.running.tolist()
    assert found.token_spans.tolist() == wanted.token_spans.tolist()


def outcomes(fates: Fates, trace: Trace) -> list[Outcome]:
    endings = list(Ending)

    def step(column: np.ndarray[tuple[int], np.dtype[np.int64]], index: int) -> int | None:
        return None if column[index] < 0 else int(column[index])

    return [
        Outcome(
            index=index,
            ending=None if fates.ending[index] < 0 else endings[fates.ending[index]],
            arrived_step=step(fates.arrived_step, index),
            admitted_step=step(fates.admitted_step, index),
            first_token_step=step(fates.first_token_step, index),
            ended_step=step(fates.ended_step, index),
            generated_tokens=int(fates.generated_tokens[index]),
            final_tokens=trace[index].final_tokens,
            hit_tokens=int(fates.hit_tokens[index]),
            preemptions=int(fates.preemptions[index]),
        )
        for index in range(len(trace))
    ]
