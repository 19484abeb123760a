"""Misreports show on ordinary traffic; faults kept for goldens, and the reference, break no law on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.mutants import MUTANTS
from kvsuite.mutants.table import GOLDEN
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ForkKind, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.contract import Engine

    MakeTrace = Callable[..., Trace]
    MakeEngine = Callable[..., Engine]
    Scenes = dict[str, tuple[Trace, int, int]]
WORKLOADS = {"boundary": (65, 100), "divergence-burst": (168, 100), "thrash": (60, 60), "churn": (60, 80)}
"""Named workloads: how many of their requests, in how many blocks of 16 tokens."""


@pytest.fixture
def scenes(make_trace: MakeTrace) -> Scenes:
    """Small lifecycles for faults that the named workloads do not reach: trace, blocks, token budget."""
    shared = {"nodes": [0, 1, 2, 3], "prompt_tokens": 64, "output_tokens": 2}
    child = {"prompt_tokens": 5, "output_tokens": 3, "parent": 0, "fork_kind": ForkKind.SAMPLE, "fork_at": 5}
    return {
        "cancelled in the middle of its prompt, then asked for again": (
            make_trace({**shared, "cancel_after": 0}, {**shared, "arrival_us": 150_000}, block_size=16),
            32,
            20,
        ),
        "a burst of children that all write": (
            make_trace({"prompt_tokens": 5, "output_tokens": 3}, child, child),
            32,
            64,
        ),
    }


def violated(trace: Trace, engine: Engine, budget: int = 8192) -> set[str]:
    done = replay(trace, engine, scheduler=SchedulerConfig(min(256, budget), budget))
    return {violation.invariant for violation in done.violations}


def run_all(name: str, make_engine: MakeEngine, scenes: Scenes) -> Iterator[set[str]]:
    for trace, blocks, budget in scenes.values():
        yield violated(trace, make_engine(name, block_size=16, num_blocks=blocks), budget)
    for workload, (requests, blocks) in WORKLOADS.items():
        trace = load_trace(workload).head(requests)
        yield violated(trace, make_engine(name, block_size=16, num_blocks=blocks))


@pytest.mark.parametrize("fault", sorted(name for name, m in MUTANTS.items() if m.caught_by == GOLDEN))
def test_a_fault_for_goldens_keeps_every_law(fault: str, make_engine: MakeEngine, scenes: Scenes) -> None:
    assert set().union(*run_all(f"mutant:{fault}", make_engine, scenes)) == set()


@pytest.mark.parametrize("fault", sorted(name for name, m in MUTANTS.items() if m.category))
def test_a_misreport_shows_on_ordinary_traffic(fault: str, make_engine: MakeEngine, scenes: Scenes) -> None:
    assert any(MUTANTS[fault].caught_by in found for found in run_all(f"mutant:{fault}", make_engine, scenes))


def test_the_reference_breaks_no_law(make_engine: MakeEngine, scenes: Scenes) -> None:
    assert list(run_all("reference", make_engine, scenes)) == [set()] * (len(WORKLOADS) + len(scenes))


def test_at_least_six_categories_have_a_misreport_that_breaks_closure_or_the_device() -> None:
    """Closure is no tautology: one planted misreport a category breaks it."""
    categories = {
        mutant.category for mutant in MUTANTS.values() if mutant.caught_by in {"closure", "device", "lengths"}
    }
    assert len(categories - {None}) >= 6
    assert MUTANTS["reserve-as-cache"].caught_by == "device"
