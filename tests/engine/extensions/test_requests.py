"""The reference driven by requests: queue, limits, preemption, refusals, and how it is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine import registry
from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.extensions.requests import RequestsEngine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Observation
    from tests.engine.conftest import MakeConfig


def submit(engine: RequestsEngine, name: str, prompt: int, answer: int, answers: int = 1) -> None:
    run = TokenRun(TokenContent((hash(name) % 1000,), ()), 0, prompt)
    engine.submit(RequestId(name), run, max_tokens=answer, num_answers=answers)


def after(engine: RequestsEngine, steps: int) -> Observation:
    seen = engine.observe()
    for _ in range(steps):
        engine.step()
        seen = engine.observe()
    return seen


def test_requests_are_served_first_come_first_served_within_the_limit(make_config: MakeConfig) -> None:
    engine = RequestsEngine(make_config(options={"max_sequences": 1}))
    submit(engine, "a", 4, 2)
    submit(engine, "b", 4, 2)
    assert after(engine, 1).running == ("a",)
    seen = after(engine, 1)
    assert (seen.running, dict(seen.finished)) == ((), {"a": Release.FINISH})
    assert after(engine, 1).running == ("b",)


def test_a_prompt_is_computed_in_parts_of_the_step_limit(make_config: MakeConfig) -> None:
    """10 tokens at 4 a step: nothing is sampled before the third step, which computes the last 2."""
    engine = RequestsEngine(make_config(options={"max_step_tokens": 4}))
    submit(engine, "a", 10, 3)
    shown = [after(engine, 1) for _ in range(3)]
    assert [int(seen.snapshots[0].lengths[0]) for seen in shown] == [4, 8, 10]
    assert [seen.generated[RequestId("a")] for seen in shown] == [(0,), (0,), (1,)]


def test_the_youngest_gives_way_and_comes_back(make_config: MakeConfig) -> None:
    """4 blocks of 4: two prompts of 8 fill them; the 9th token of ``a`` takes a block of ``b``."""
    engine = RequestsEngine(make_config(num_blocks=4, prefix_cache=False))
    submit(engine, "a", 8, 6)
    submit(engine, "b", 8, 6)
    assert after(engine, 1).running == ("a", "b")
    seen = after(engine, 1)
    assert (seen.running, seen.generated[RequestId("b")]) == (("a",), (1,))
    ended: dict[RequestId, Release] = {}
    for _ in range(30):
        ended |= after(engine, 1).finished
    assert ended == {"a": Release.FINISH, "b": Release.FINISH}


@pytest.mark.parametrize(
    ("prompt", "answer", "why"),
    [(20, 2, "needs 5 blocks"), (14, 9, "grows beyond the pool after 3 tokens")],
    ids=["prompt", "answer"],
)
def test_what_cannot_fit_is_refused(make_config: MakeConfig, prompt: int, answer: int, why: str) -> None:
    """16 slots: a prompt of 14 has 14 + 2 computed when 3 are sampled, and the next has no slot."""
    engine = RequestsEngine(make_config(num_blocks=4))
    submit(engine, "a", prompt, answer)
    refused: dict[RequestId, str] = {}
    for _ in range(8):
        refused |= after(engine, 1).refused
    assert refused == {"a": why}
    assert len(after(engine, 0).snapshots[0].free) + len(after(engine, 0).snapshots[0].cached) == 4


def test_a_client_that_leaves_is_gone_after_the_next_step(make_config: MakeConfig) -> None:
    engine = RequestsEngine(make_config())
    submit(engine, "a", 4, 20, answers=2)
    after(engine, 2)
    engine.cancel(RequestId("a"))
    seen = after(engine, 1)
    assert (dict(seen.finished), seen.snapshots[0].request_ids) == ({"a": Release.CANCEL}, ())
    assert after(engine, 1).finished == {}


def test_ids_of_live_requests_are_unique(make_config: MakeConfig) -> None:
    engine = RequestsEngine(make_config())
    submit(engine, "a", 4, 2)
    with pytest.raises(EngineError, match="a was submitted already"):
        submit(engine, "a", 4, 2)


@pytest.mark.parametrize("value", [0, -1, True, "8"])
def test_limits_below_one_are_refused(make_config: MakeConfig, value: int | str) -> None:
    with pytest.raises(ConfigError, match=f"max_sequences is {value!r}"):
        RequestsEngine(make_config(options={"max_sequences": value}))


def test_what_it_runs_with_is_said(make_config: MakeConfig) -> None:
    spec = RequestsEngine(make_config(options={"max_sequences": 3})).spec
    assert spec.effective["max_sequences"] == 3
    assert spec.effective["max_step_tokens"] == 8192
    assert spec.claims(Capability.REQUEST_DRIVEN)
    assert not spec.claims(Capability.FORK)


def test_the_registry_tells_the_two_kinds_apart(make_config: MakeConfig) -> None:
    config = make_config()
    assert registry.is_request_driven(registry.open_any_engine("reference-requests", config))
    assert not registry.is_request_driven(registry.open_any_engine("reference", config))
    with pytest.raises(EngineError, match=r"'reference-requests' schedules and samples by itself"):
        registry.open_engine("reference-requests", config)
    with pytest.raises(EngineError, match=r"'reference' is driven token by token"):
        registry.open_request_engine("reference", config)


def test_an_engine_of_one_kind_that_claims_the_other_is_refused(make_config: MakeConfig) -> None:
    def silent(config: EngineConfig) -> RequestsEngine:
        engine = RequestsEngine(config)
        engine._spec = replace(engine.spec, capabilities=frozenset({Capability.PAGED}))
        return engine

    with pytest.raises(EngineError, match="lacks the claim REQUEST_DRIVEN"):
        registry.open_with("silent", silent, make_config())  # type: ignore[arg-type,unused-ignore]
