"""vLLM's own scheduler, driven by requests: it needs vLLM whole, which takes long to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import ConfigError, EngineError
from kvsuite.replay.batch import Ending
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.trace.load import load_trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.requests import Observation, RequestEngine

    Open = Callable[..., RequestEngine]

A, B = RequestId("a"), RequestId("b")


@pytest.fixture
def scheduler(vllm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open vLLM's scheduler on blocks of 16."""
    monkeypatch.setenv("KVSUITE_HOST_TIMEOUT_S", "600")

    def opened(num_blocks: int, *, loader: str = "full", **config: Any) -> RequestEngine:
        engine: RequestEngine = vllm(
            "0.33.0",
            loader=loader,
            kind="VllmSchedulerEngine",
            block_size=16,
            num_blocks=num_blocks,
            **config,
        )
        return engine

    return opened


def submit(engine: RequestEngine, name: RequestId, key: int, prompt: int, answer: int) -> None:
    engine.submit(name, TokenRun(TokenContent((key,), ()), 0, prompt), max_tokens=answer)


def after_a_step(engine: RequestEngine) -> Observation:
    engine.step()
    return engine.observe()


@pytest.mark.slow
def test_a_prompt_is_cut_and_its_answer_grows(scheduler: Open) -> None:
    """40 tokens by 32 a step: 2 blocks, 3 blocks; then one token a step, and nothing is left."""
    engine = scheduler(9, options={"max_sequences": 4, "max_step_tokens": 32}, prefix_cache=False)
    submit(engine, A, 1, 40, 3)
    held = []
    for _ in range(5):
        seen = after_a_step(engine)
        (shot,) = seen.snapshots
        held.append((shot.lengths.tolist(), len(shot.table_blocks), seen.generated.get(A)))
    assert held[:3] == [([32], 2, (0,)), ([40], 3, (1,)), ([41], 3, (2,))]
    assert held[3] == ([], 0, (3,))
    assert len(shot.free) == 8


@pytest.mark.slow
def test_a_request_waits_until_its_whole_prompt_fits(scheduler: Open) -> None:
    """8 blocks, 5 held: 4 are needed, so it waits, however small its first chunk would be."""
    engine = scheduler(9, options={"max_sequences": 4, "max_step_tokens": 96}, prefix_cache=False)
    submit(engine, A, 1, 79, 2)
    submit(engine, B, 2, 64, 2)
    assert after_a_step(engine).running == (A,)
    engine.cancel(A)
    assert after_a_step(engine).running == (B,)


@pytest.mark.slow
def test_traffic_under_pressure_keeps_every_law(scheduler: Open) -> None:
    engine = scheduler(61, options={"max_sequences": 16, "max_step_tokens": 256}, max_model_tokens=2048)
    done = replay_requests(load_trace("thrash").head(8), engine)
    assert done.violations == ()
    assert {outcome.ending for outcome in done.outcomes} == {Ending.FINISHED}


@pytest.mark.slow
def test_what_can_never_end_is_given_up_at_once(scheduler: Open) -> None:
    """8 blocks of 16 hold 128 tokens: 120 and 9 more do not fit, 120 and 8 do."""
    engine = scheduler(9)
    submit(engine, A, 1, 120, 9)
    submit(engine, B, 2, 120, 8)
    seen = after_a_step(engine)
    assert list(seen.refused) == [A]
    assert seen.running == (B,)


def test_it_needs_vllm_whole(scheduler: Open) -> None:
    with pytest.raises(EngineError, match="needs vLLM whole"):
        scheduler(9, loader="filtered")


@pytest.mark.parametrize(
    ("options", "said"), [({"window_tokens": 4}, "unknown option"), ({"max_sequences": 0}, "from 1 up")]
)
def test_its_options_are_the_limits_of_its_batch(scheduler: Open, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        scheduler(9, loader="filtered", options=options)
