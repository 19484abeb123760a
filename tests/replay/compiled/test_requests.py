"""What the compiled core is given of a trace, and that its comparison with the driver can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.errors import TraceError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled import replay as compiled
from kvsuite.replay.compiled import requests
from kvsuite.replay.compiled.fields import C
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.trace.load import load_trace

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
