"""One block a sequence is contiguous reservation of the maximum: the same admissions, the same waste."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contiguous.controls import ContiguousMax
from kvsuite.engine.contiguous.one_block import OneBlock
from kvsuite.errors import ConfigError
from kvsuite.replay.driver import Replay, replay
from kvsuite.trace.model import ABSENT, Trace
from kvsuite.trace.synthetic import synthetic

EQUAL = ("payload", "running", "waiting", "admitted", "finished", "rejected", "written", "logical")


def uncapped(name: str) -> Trace:
    """A workload without caps, forks and cancellations: what every control understands."""
    trace = synthetic(name)
    absent = np.full(len(trace), ABSENT)
    return replace(
        trace,
        max_output_tokens=absent,
        parent=absent,
        fork_kind=absent,
        fork_at=absent,
        cancel_after=absent,
        cancel_at_us=absent,
    )


def config(trace: Trace, reservations: int, spare_slots: int = 0) -> EngineConfig:
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    slots = reservations * longest + spare_slots
    return EngineConfig(model_layout("tiny"), 1, slots, prefix_cache=False, max_model_tokens=longest)


def columns(done: Replay, *names: str) -> list[list[int]]:
    return [done.timeline.pools[0].column(name).tolist() for name in names]


@pytest.mark.parametrize("name", ["churn", "boundary", "chat"])
def test_it_admits_and_wastes_as_the_reservation_of_the_maximum(name: str) -> None:
    trace = uncapped(name).head(60)
    opened = config(trace, 3, spare_slots=1)
    one, most = replay(trace, OneBlock(opened)), replay(trace, ContiguousMax(opened))
    assert one.violations == most.violations == ()
    assert one.timeline.steps.tolist() == most.timeline.steps.tolist()
    assert columns(one, *EQUAL) == columns(most, *EQUAL)
    assert columns(one, "slack") == columns(most, "over_reserved")
    assert max(columns(one, "waiting")[0]) > 0


def test_by_hand() -> None:
    trace = uncapped("churn").head(5)
    spec = OneBlock(replace(config(trace, 1), num_blocks=70, max_model_tokens=32)).spec
    (pool,) = spec.pools
    assert (pool.block_size, pool.num_blocks, pool.contiguous) == (32, 2, True)
    assert spec.name == "contiguous-one-block"
    assert spec.effective["prefix_cache"] is False


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_model_tokens": None}, "give max_model_tokens"),
        ({"max_model_tokens": 71}, "a pool of 70 slots does not hold one reservation of 71"),
        ({"options": {"nul": 1}}, "unknown option"),
    ],
)
def test_what_it_refuses(change: dict[str, object], says: str) -> None:
    opened = EngineConfig(model_layout("tiny"), 1, 70, max_model_tokens=32)
    with pytest.raises(ConfigError, match=says):
        OneBlock(replace(opened, **change))  # type: ignore[arg-type]
