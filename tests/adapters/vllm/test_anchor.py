"""vLLM's own block manager against the reference replay: one policy, nothing cached, the same rows.

Nothing was recorded: both sides are asked now. The pool is short enough that sequences give way to others,
and the token budget of a step never cuts a prompt, for vLLM knows nothing of what the reference promises to
the rest of one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.ledger.timeline import Timeline
    from kvsuite.trace.model import Trace

    Make = Callable[..., Engine]

VERSION = "0.33.0"
AZURE = "azure/AzureLLMInferenceTrace_conv.csv"
AZURE_POOL_TOKENS = 2**18
AZURE_STEP_US = 150_000
"""So long a step that more arrives than the pool holds."""
MAX_SEQUENCES = 256
COLUMNS = (
    *("running", "waiting", "live_blocks", "written", "slack"),
    *("admitted", "preempted", "finished", "cancelled", "refused_admissions", "refused_growths"),
)
"""What both sides count alike; which block is handed out is each side's own affair."""
every_size = pytest.mark.parametrize("block_size", [1, 16, 128])


class Setting(NamedTuple):
    """A pool and a clock: ``pool_tokens`` apart from the null block, steps of ``step_us``."""

    pool_tokens: int
    block_size: int
    step_us: int = 50_000

    @property
    def scheduler(self) -> SchedulerConfig:
        """A budget that a full pool and a token for everybody cannot exceed."""
        return SchedulerConfig(MAX_SEQUENCES, self.pool_tokens + MAX_SEQUENCES, self.step_us)

    @property
    def num_blocks(self) -> int:
        return self.pool_tokens // self.block_size + 1

    @property
    def reference(self) -> EngineConfig:
        return EngineConfig(
            model_layout("tiny"),
            self.block_size,
            self.num_blocks,
            prefix_cache=False,
            options={"null_blocks": 1},
        )


def of_vllm(vllm: Make, trace: Trace, setting: Setting) -> Timeline:
    engine = vllm(VERSION, block_size=setting.block_size, num_blocks=setting.num_blocks, prefix_cache=False)
    done = replay(trace, engine, scheduler=setting.scheduler)
    assert done.violations == ()
    return done.timeline


def of_driver(trace: Trace, setting: Setting) -> Timeline:
    return replay(trace, ReferenceEngine(setting.reference), scheduler=setting.scheduler).timeline


def of_compiled(trace: Trace, setting: Setting) -> Timeline:
    timeline = compiled_replay(trace, setting.reference, setting.scheduler).timeline
    assert timeline is not None
    return timeline


def first_difference(found: Timeline, expected: Timeline) -> str | None:
    """Say where two timelines first differ; ``None``: nowhere."""
    if found.steps.tolist() != expected.steps.tolist():
        return f"{len(found)} steps, expected {len(expected)}, or other ones"
    mine, theirs = (
        np.stack([timeline.pools[0].column(name) for name in COLUMNS], axis=1)
        for timeline in (found, expected)
    )
    wrong = np.argwhere(mine != theirs)
    if len(wrong) == 0:
        return None
    row, column = (int(place) for place in wrong[0])
    return (
        f"{COLUMNS[column]} at step {expected.steps[row]}: {mine[row, column]}, "
        f"expected {theirs[row, column]}"
    )


def assert_pressed(timeline: Timeline) -> None:
    assert timeline.pools[0].column("preempted").sum() > 0, "nobody gave way: the pool is too large to tell"


@pytest.fixture
def azure() -> Trace:
    """Azure's conversation trace, below ``$KVSUITE_TRACES``."""
    root = os.environ.get("KVSUITE_TRACES")
    if root is None or not (Path(root) / AZURE).exists():
        pytest.skip(f"KVSUITE_TRACES names no folder with {AZURE}")
    return load_trace(str(Path(root) / AZURE))


@pytest.mark.parametrize("workload", ["thrash", "cancel-burst"])
@every_size
def test_made_traffic_in_a_short_pool(vllm: Make, workload: str, block_size: int) -> None:
    setting = Setting(1024, block_size)
    trace = load_trace(workload)
    expected = of_driver(trace, setting)
    assert_pressed(expected)
    assert first_difference(of_vllm(vllm, trace, setting), expected) is None


@every_size
def test_a_few_hundred_azure_requests(vllm: Make, azure: Trace, block_size: int) -> None:
    setting = Setting(AZURE_POOL_TOKENS // 8, block_size, AZURE_STEP_US)
    trace = azure.head(300)
    expected = of_compiled(trace, setting)
    assert_pressed(expected)
    assert first_difference(of_vllm(vllm, trace, setting), expected) is None


@pytest.mark.slow
@every_size
def test_ten_thousand_azure_requests(vllm: Make, azure: Trace, block_size: int) -> None:
    setting = Setting(AZURE_POOL_TOKENS, block_size, AZURE_STEP_US)
    trace = azure.head(10_000)
    expected = of_compiled(trace, setting)
    assert_pressed(expected)
    assert first_difference(of_vllm(vllm, trace, setting), expected) is None
    if block_size == 16:
        assert first_difference(of_driver(trace, setting), expected) is None


def test_one_block_less_is_told(vllm: Make) -> None:
    """The comparison can fail: under pressure a pool of one block less comes to other rows."""
    trace = load_trace("thrash")
    whole = of_vllm(vllm, trace, Setting(1024, 16))
    assert first_difference(whole, of_driver(trace, Setting(1024 - 16, 16))) is not None
