"""What the compiled core is given of a trace, and that its comparison with the driver can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.errors import ConfigError, TraceError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled import replay as compiled
from kvsuite.replay.compiled import requests
from kvsuite.replay.compiled.fields import C
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.compiled.state import State
    from kvsuite.trace.model import Trace


def test_more_prefixes_than_keys_can_tell_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load_trace("shared-prefix").head(3)
    monkeypatch.setattr(requests, "_MAX_KEY", trace.num_nodes)
    with pytest.raises(TraceError, match="different prefixes"):
        requests_of(trace, 50_000)


def test_a_core_that_admits_by_another_gate_is_told(
    monkeypatch: pytest.MonkeyPatch,
    hold_against_the_driver: Callable[[Trace, EngineConfig, SchedulerConfig], None],
) -> None:
    opened = compiled.open_compiled

    def keeps_one_more_back(asked: Requests, spec: EngineSpec, scheduler: SchedulerConfig) -> State:
        state = opened(asked, spec, scheduler)
        state.c[C.WATERMARK] += 1
        return state

    monkeypatch.setattr(compiled, "open_compiled", keeps_one_more_back)
    trace = load_trace("thrash").head(30)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    config = EngineConfig(model_layout("tiny"), 8, -(-longest // 8) + 2)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        hold_against_the_driver(trace, config, SchedulerConfig())


def late(trace: Trace, **columns: object) -> Trace:
    return replace(trace, **{name: np.array(values) for name, values in columns.items()})  # type: ignore[arg-type]


def test_an_arrival_beyond_32_bits_of_steps_is_refused() -> None:
    trace = late(load_trace("churn").head(2), arrival_us=[0, 2**31 * 1000])
    config = EngineConfig(model_layout("tiny"), 16, 400)
    with pytest.raises(ConfigError, match=r"arrives at step 2147483648, .* counts to 2146435072"):
        compiled.compiled_replay(trace, config, SchedulerConfig(step_us=1000))


def test_a_client_that_leaves_in_ten_thousand_years_stays(
    hold_against_the_driver: Callable[[Trace, EngineConfig, SchedulerConfig], None],
) -> None:
    trace = late(load_trace("churn").head(2), cancel_after=[ABSENT] * 2, cancel_at_us=[2**58] * 2)
    hold_against_the_driver(trace, EngineConfig(model_layout("tiny"), 16, 400), SchedulerConfig())


def test_a_replay_that_comes_near_the_last_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MAX_STEP", 5)
    config = EngineConfig(model_layout("tiny"), 16, 400)
    with pytest.raises(ConfigError, match=r"has come to step .* counts to 5"):
        compiled.compiled_replay(load_trace("churn").head(5), config)


@pytest.mark.parametrize("name", ["max_step_tokens", "step_us"])
def test_a_limit_beyond_64_bits_is_refused(name: str) -> None:
    config = EngineConfig(model_layout("tiny"), 16, 400)
    scheduler = SchedulerConfig(**{name: 10**19})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{name} is 10000000000000000000"):
        compiled.compiled_replay(load_trace("churn").head(5), config, scheduler)
