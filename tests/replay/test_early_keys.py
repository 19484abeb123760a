"""Engines whose blocks can be found from the step that computes them on: what the model expects of hits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.replay.judged import JudgedEngine
from kvsuite.replay.model import EARLY_KEYS, LifecycleModel
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine, EngineSpec

A, B = RequestId("a"), RequestId("b")
PROMPT = TokenRun(TokenContent((1, 9), (8,)), 0, 13)


@pytest.fixture
def spec(make_engine: Callable[..., Engine]) -> EngineSpec:
    return make_engine("reference", block_size=4, num_blocks=16, prefix_cache=True).spec


def early(spec: EngineSpec) -> EngineSpec:
    return replace(spec, effective={**spec.effective, EARLY_KEYS: "when_scheduled"})


def test_by_default_only_what_is_settled_can_be_found(spec: EngineSpec) -> None:
    model = LifecycleModel(spec)
    model.admit(A, PROMPT, 13)
    assert model.longest_hit(PROMPT) == 0
    model.settle(A, 13)
    assert model.longest_hit(PROMPT) == 12


@pytest.mark.parametrize(("scheduled", "found"), [(3, 0), (4, 4), (11, 8), (13, 12)])
def test_scheduled_blocks_can_be_found_while_their_sequence_lives(
    spec: EngineSpec, scheduled: int, found: int
) -> None:
    model = LifecycleModel(early(spec))
    model.admit(A, PROMPT, scheduled)
    assert model.longest_hit(PROMPT) == found
    assert model.longest_hit(TokenRun(TokenContent((1, 7), (8,)), 0, 13)) == min(found, 8)
    model.release(A)
    assert model.longest_hit(PROMPT) == 0, "what never ran is nowhere"


def test_an_engine_that_does_not_say_so_is_named(make_engine: Callable[..., Any]) -> None:
    """The same engine, the same answers: a hit in the same step is a violation unless it is declared."""
    for declared in (False, True):
        engine = make_engine("mutant:publish-on-allocation", block_size=4, num_blocks=16, prefix_cache=True)
        engine._spec = early(engine._spec) if declared else engine._spec
        judged = JudgedEngine(engine)
        for name in (A, B):
            judged.admit(name, PROMPT, first_chunk_tokens=13)
        assert [violation.invariant for violation in judged.violations] == ([] if declared else ["hits"])
