"""Engines of different makers against the reference: same trace, same blocks, same hits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.replay.driver import replay
from kvsuite.trace.request import ABSENT
from kvsuite.trace.synthetic import synthetic
from tests.adapters.built import VERSIONS, opened

if TYPE_CHECKING:
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

ENOUGH_TOKENS = 40_000
"""More than a trace below ever holds: nobody is refused, and nothing is evicted."""


def alone(trace: Trace) -> Trace:
    """Return the same lengths and times with nothing shared and nobody forked."""
    absent = np.full(len(trace), ABSENT, np.int64)
    return replace(
        trace,
        block_size=0,
        node_offsets=np.zeros(len(trace) + 1, np.int64),
        nodes=np.zeros(0, np.int64),
        hashed_tokens=absent,
        parent=absent,
        fork_kind=absent,
        fork_at=absent,
    )


def replayed(name: str, trace: Trace, block_size: int) -> Replay:
    num_blocks = ENOUGH_TOKENS // block_size + 2
    if name == "reference":
        done = replay(trace, open_engine(name, EngineConfig(model_layout("tiny"), block_size, num_blocks)))
    else:
        done = replay(trace, opened(name, block_size, num_blocks))
    assert list(done.violations) == []
    return done


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("block_size", [1, 8, 64, 256])
def test_blocks_and_slack_at_every_step(name: str, block_size: int) -> None:
    trace = alone(synthetic("churn").head(40))
    pool, expected = (replayed(each, trace, block_size).timeline.pools[0] for each in (name, "reference"))
    for column in ("live_blocks", "slack"):
        assert pool.column(column).tolist() == expected.column(column).tolist()


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("block_size", [8, 64])
def test_prefixes_are_found_by_full_blocks(name: str, block_size: int) -> None:
    """Prompts that arrive step by step on shared prefixes: the hits of each are those of the reference."""
    trace = synthetic("shared-prefix").head(40)
    done, expected = (replayed(each, trace, block_size) for each in (name, "reference"))
    hits = [[outcome.hit_tokens or 0 for outcome in each.outcomes] for each in (done, expected)]
    assert hits[0] == hits[1]
    assert sum(hits[0]) > 0
