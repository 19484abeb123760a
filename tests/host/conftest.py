"""Engines in a host of this very interpreter."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.hosted.engine import HostedEngine, open_hosted
from kvsuite.sweep.lengths import longest_declared_tokens
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

ENGINES = Path(__file__).with_name("engines.py")


def _config_for(trace: Trace | None = None, *, block_size: int = 4, num_blocks: int = 64) -> EngineConfig:
    """Return a small pool for ``trace``."""
    most = None if trace is None else longest_declared_tokens(trace)
    return EngineConfig(model_layout("tiny"), block_size, num_blocks, max_model_tokens=most, trace=trace)


@pytest.fixture
def hosted() -> Callable[..., HostedEngine]:
    """Open an engine in a host: a name of the registry, or of ``engines.py`` beside this file."""

    def build(name: str, config: EngineConfig | None = None, *, python: Path | None = None) -> HostedEngine:
        factory = f"{ENGINES}:{name}" if name[0].isupper() or name in {"refuses", "breaks"} else name
        engine = open_hosted(python or Path(sys.executable), factory, config or _config_for())
        assert isinstance(engine, HostedEngine)
        return engine

    return build


@pytest.fixture
def config_for() -> Callable[..., EngineConfig]:
    """Return the configuration of a small pool for a trace."""
    return _config_for


@pytest.fixture
def everything() -> Callable[[Replay], dict[str, Any]]:
    """Return all that a replay came to, as values that can be compared."""
    return _everything


def _everything(done: Replay) -> dict[str, Any]:
    return {
        "steps": done.timeline.steps.tolist(),
        "rows": {str(pool.spec.key): pool.rows.tolist() for pool in done.timeline.pools},
        "device": done.timeline.device,
        "spec": done.spec,
        "scheduler": done.scheduler,
        "outcomes": done.outcomes,
        "content": done.content,
        "violations": done.violations,
        "not_judged": done.not_judged,
        "final_lengths": done.final_lengths.tolist(),
        "fork_families": done.fork_families,
        "refusals": dict(done.refusals),
        "clock": None
        if done.clock is None
        else [getattr(done.clock, f.name).tolist() for f in fields(done.clock)],
    }


@pytest.fixture
def prompt_of() -> Callable[[int, int], Any]:
    """Return the first tokens of content that nobody else has."""
    return lambda key, tokens: TokenRun(TokenContent((key,), ()), 0, tokens)
