"""What is part of a golden's identity, and what is not."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.golden.key import asked_recipe, engine_hash, engine_preimage, file_name, golden_key, slug
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.replay.step_costs import StepCosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.golden.codec import Observed


def test_the_engine_hash_is_the_sha256_of_the_preimage(engine: Callable[..., EngineSpec]) -> None:
    text = '{"adapter_version":1,"effective":{"cow":"lazy"},"name":"acme","version":"1.0"}'
    assert engine_hash(engine()) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [{"version": "1.1"}, {"cow": "eager"}, {"eviction": "lru"}],
    ids=["version", "a policy", "one more effective value"],
)
def test_behaviour_changes_the_engine_hash(engine: Callable[..., EngineSpec], change: dict[str, Any]) -> None:
    assert engine_hash(engine(**change)) != engine_hash(engine())


def test_how_an_engine_is_opened_does_not_change_its_hash(engine: Callable[..., EngineSpec]) -> None:
    opened = engine(block_size=64, num_blocks=999, prefix_cache=False, watermark_blocks=3)
    assert engine_hash(opened) == engine_hash(engine())
    assert engine_preimage(opened)["effective"] == {"cow": "lazy"}


def test_provenance_is_no_identity(engine: Callable[..., EngineSpec]) -> None:
    assert engine_hash(replace(engine(), provenance={"kernel": "triton"})) == engine_hash(engine())


@pytest.mark.parametrize(
    "change",
    [
        {"case": "another"},
        {"label": "second"},
        {"trace_hash": "kvt1-0100"},
        {"layout": "other layout"},
        {"dtype": "float16"},
        {"recipe": {"block_size": 8}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_asked_changes_the_key(observe: Callable[..., Observed], change: dict[str, Any]) -> None:
    question = observe().question
    assert golden_key(replace(question, **change)) != golden_key(question)


def test_the_name_of_a_trace_is_no_identity(observe: Callable[..., Observed]) -> None:
    question = observe().question
    assert golden_key(replace(question, trace_name="copy")) == golden_key(question)


def test_the_file_name_shows_case_trace_and_dtype(observe: Callable[..., Observed]) -> None:
    question = observe(label="warm").question
    expected = f"conformance-test_growth-test_one-chat-warm.chat.bfloat16.{golden_key(question)}.json"
    assert file_name(question) == expected


def test_a_file_name_fits_a_file_system_whatever_the_case_is_called(observe: Callable[..., Observed]) -> None:
    question = replace(observe().question, case="x" * 900, trace_name="y" * 900, dtype="z" * 900)
    assert len(file_name(question)) < 230
    other = replace(question, case="x" * 901)
    assert file_name(other) != file_name(question)


def test_a_slug_is_never_empty_and_never_hides_a_file() -> None:
    assert slug("../..") == "none"
    assert slug(".hidden/é") == "hidden"


def test_the_recipe_is_what_was_asked_for() -> None:
    config = EngineConfig(model_layout("tiny"), 16, 64, options={"cow": "eager", "admission": "greedy"})
    plain = SchedulerConfig(max_sequences=4, max_step_tokens=64, step_us=7)
    clocked = replace(plain, costs=StepCosts(base_us=9))
    assert asked_recipe(config, clocked) == asked_recipe(config, plain) | {"costs": str(clocked.costs)}
    assert asked_recipe(config, plain) == {
        "block_size": 16,
        "num_blocks": 64,
        "prefix_cache": True,
        "watermark_blocks": 0,
        "option.admission": "greedy",
        "option.cow": "eager",
        "max_sequences": 4,
        "max_step_tokens": 64,
        "step_us": 7,
    }
