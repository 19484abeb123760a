"""Traces and engines for tests, written out row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import Replay, replay
from kvsuite.trace.model import ABSENT, ForkKind, RequestId, Trace, TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine

_DEFAULTS = {
    "arrival_us": 0,
    "prompt_tokens": 1,
    "output_tokens": 0,
    "max_output_tokens": ABSENT,
    "parent": ABSENT,
    "fork_kind": ABSENT,
    "fork_at": ABSENT,
    "cancel_after": ABSENT,
    "cancel_at_us": ABSENT,
    "session": ABSENT,
    "turn": ABSENT,
    "priority": 0,
}


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """Build a trace from one dict a request; ``nodes`` gives prefix nodes of ``block_size`` tokens."""

    def build(*rows: dict[str, Any], block_size: int = 0) -> Trace:
        columns: dict[str, Any] = {
            name: np.array([row.get(name, default) for row in rows], np.int64)
            for name, default in _DEFAULTS.items()
        }
        nodes = [row.get("nodes", []) for row in rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(run) for run in nodes], out=offsets[1:])
        hashed = [
            min(len(run) * block_size, row["prompt_tokens"]) if run else ABSENT
            for run, row in zip(nodes, rows, strict=True)
        ]
        return Trace(
            request_ids=tuple(RequestId(f"r{i}") for i in range(len(rows))),
            block_size=block_size,
            node_offsets=offsets,
            nodes=np.array([node for run in nodes for node in run], np.int64),
            hashed_tokens=np.array(hashed, np.int64),
            source=TraceSource("test", "by hand"),
            rows_read=len(rows),
            **columns,
        )

    return build


@pytest.fixture
def make_engine() -> Callable[..., Engine]:
    """Open an engine with the smallest layout."""

    def build(
        name: str = "reference", *, block_size: int = 4, num_blocks: int = 16, **options: Any
    ) -> Engine:
        return open_engine(name, EngineConfig(model_layout("tiny"), block_size, num_blocks, **options))

    return build


@pytest.fixture
def short_life(make_trace: Callable[..., Trace]) -> Trace:
    """Two requests of three blocks of 16, a fork of the first, and a third request that comes later."""
    child = {"prompt_tokens": 40, "output_tokens": 4, "parent": 0, "fork_kind": ForkKind.SAMPLE}
    return make_trace(
        {"prompt_tokens": 40, "output_tokens": 4},
        {"prompt_tokens": 35, "output_tokens": 6},
        {**child, "fork_at": 40},
        {"prompt_tokens": 20, "output_tokens": 3, "arrival_us": 150_000},
    )


@pytest.fixture
def drive(short_life: Trace) -> Callable[..., Replay]:
    """Take the short life through an engine of the given class, in 16 blocks of 16 tokens."""

    def run(
        engine_type: Callable[[EngineConfig], Engine],
        *,
        read_all: bool = False,
        max_step_tokens: int = 8192,
    ) -> Replay:
        config = EngineConfig(model_layout("tiny"), block_size=16, num_blocks=16)
        scheduler = SchedulerConfig(max_sequences=16, max_step_tokens=max_step_tokens)
        return replay(short_life, engine_type(config), scheduler=scheduler, read_all=read_all)

    return run
