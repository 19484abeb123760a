"""An engine driven by requests from another process comes to what it comes to here."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.hosted.engine import HostedRequestEngine, open_hosted
from kvsuite.engine.registry import open_request_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.trace.synthetic import synthetic


def config(**options: int) -> EngineConfig:
    return EngineConfig(model_layout("tiny"), 16, 512, options=options)


def hosted(**options: int) -> HostedRequestEngine:
    engine = open_hosted(Path(sys.executable), "reference-requests", config(**options))
    assert isinstance(engine, HostedRequestEngine)
    return engine


def test_rows_and_endings_are_the_same() -> None:
    trace = synthetic("cancel-burst")
    there, here = (
        replay_requests(trace, engine)
        for engine in (hosted(), open_request_engine("reference-requests", config()))
    )
    assert there.violations == here.violations == ()
    assert there.spec == here.spec
    assert np.array_equal(there.timeline.pools[0].rows, here.timeline.pools[0].rows)
    assert there.outcomes == here.outcomes


def test_what_it_refuses_is_refused_here() -> None:
    with pytest.raises(ConfigError, match="max_sequences is 0"):
        hosted(max_sequences=0)


def test_what_it_raises_is_raised_here() -> None:
    engine = hosted()
    trace = synthetic("boundary")
    engine.submit(trace.request_ids[0], trace.prompt(0), max_tokens=3)
    with pytest.raises(EngineError, match="was submitted already"):
        engine.submit(trace.request_ids[0], trace.prompt(0), max_tokens=3)
