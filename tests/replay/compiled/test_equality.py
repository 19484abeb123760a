"""The compiled core comes to the driver's rows, on every workload, on real traces and on drawn lifecycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cases.conformance.test_lifecycles import Lifecycle, lifecycles
from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Trace
from kvsuite.trace.synthetic import workload_names

if TYPE_CHECKING:
    from pathlib import Path

HoldAgainst = Callable[[Trace, EngineConfig, SchedulerConfig], None]

SLOW_LIFECYCLES = 3000
LAYOUT = model_layout("tiny")
SPEC = ReferenceEngine(EngineConfig(LAYOUT, 4, 64)).spec
NARROW = SchedulerConfig(max_sequences=7, max_step_tokens=64)


def tight_pool(trace: Trace, block_size: int, **config: object) -> EngineConfig:
    """A pool that holds the longest request and little beside it: everybody gives way to somebody."""
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    return EngineConfig(LAYOUT, block_size, -(-longest // block_size) + 5, **config)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", workload_names())
@pytest.mark.parametrize("block_size", [4, 16])
def test_every_workload(name: str, block_size: int, hold_against_the_driver: HoldAgainst) -> None:
    trace = load_trace(name).head(60)
    hold_against_the_driver(trace, tight_pool(trace, block_size), NARROW)


@pytest.mark.parametrize(
    "config", [{"prefix_cache": False}, {"watermark_blocks": 2}, {"options": {"null_blocks": 1}}], ids=str
)
def test_every_option(config: dict[str, object], hold_against_the_driver: HoldAgainst) -> None:
    trace = load_trace("churn").head(60)
    hold_against_the_driver(trace, tight_pool(trace, 8, **config), SchedulerConfig())


def held(lifecycle: Lifecycle, hold_against_the_driver: HoldAgainst) -> None:
    config = EngineConfig(
        LAYOUT, lifecycle.block_size, lifecycle.num_blocks, prefix_cache=lifecycle.prefix_cache
    )
    hold_against_the_driver(lifecycle.trace, config, lifecycle.scheduler)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=lifecycles(SPEC))
def test_any_lifecycle(drawn: Lifecycle, hold_against_the_driver: HoldAgainst) -> None:
    held(drawn, hold_against_the_driver)


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_whole(name: str, hold_against_the_driver: HoldAgainst) -> None:
    trace = load_trace(name)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    roomy = EngineConfig(LAYOUT, 16, 4 * -(-longest // 16))
    hold_against_the_driver(trace, roomy, SchedulerConfig())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relative", "pool_tokens", "step_us"),
    [
        ("azure/AzureLLMInferenceTrace_conv.csv", 2**18, 150_000),
        ("mooncake/conversation_trace.jsonl", 2**20, 60_000),
    ],
    ids=["azure", "mooncake"],
)
def test_real_traces_whole(
    relative: str,
    pool_tokens: int,
    step_us: int,
    real_trace: Callable[[str], Path],
    hold_against_the_driver: HoldAgainst,
) -> None:
    trace = load_trace(real_trace(relative))
    config = EngineConfig(LAYOUT, 16, pool_tokens // 16)
    hold_against_the_driver(trace, config, SchedulerConfig(step_us=step_us))


@pytest.mark.slow
@settings(
    max_examples=SLOW_LIFECYCLES,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(drawn=lifecycles(SPEC), watermark=st.integers(0, 2))
def test_three_thousand_lifecycles(
    drawn: Lifecycle, watermark: int, hold_against_the_driver: HoldAgainst
) -> None:
    config = EngineConfig(
        LAYOUT,
        drawn.block_size,
        drawn.num_blocks,
        prefix_cache=drawn.prefix_cache,
        watermark_blocks=watermark,
    )
    hold_against_the_driver(drawn.trace, config, drawn.scheduler)


@pytest.mark.parametrize(
    "file", ["azure/AzureLLMInferenceTrace_conv.csv", "mooncake/conversation_trace.jsonl"]
)
def test_real_traces(
    file: str, real_trace: Callable[[str], Path], hold_against_the_driver: HoldAgainst
) -> None:
    trace = load_trace(str(real_trace(file))).head(300)
    hold_against_the_driver(trace, tight_pool(trace, 64), SchedulerConfig())
