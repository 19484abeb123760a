"""Scenes and replays around transfers and launched steps: the fence, the clock, and who waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Admission, Refusal, RefusalReason
from kvsuite.engine.extensions.async_steps import AsyncEngine
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.engine.reference import POOL, ReferenceEngine
from kvsuite.errors import EngineError
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.trace.model import RequestId, Trace
    from kvsuite.trace.tokens import TokenRun

    MakeTrace = Callable[..., Trace]
CONFIG = EngineConfig(model_layout("tiny"), 4, 8)


def overlapping(engine: Engine, taken_tokens: int) -> set[str]:
    """Release a sequence in flight, and launch another that takes ``taken_tokens``."""
    scene = Scene(engine)
    scene.admit("a", 7)
    scene.launch()
    scene.release("a")
    scene.admit("b", taken_tokens)
    scene.launch()
    scene.settle()
    scene.settle()
    scene.drain()
    return {violation.invariant for violation in scene.found()}


class TestFence:
    def test_a_quarantined_block_is_neither_free_nor_written(self) -> None:
        assert overlapping(AsyncEngine(CONFIG), 24) == set()

    def test_a_block_in_flight_that_is_free_breaks_the_fence(self) -> None:
        """The reference claims no such steps: of two blocks one is taken, the other lies free."""
        assert "fence" in overlapping(ReferenceEngine(CONFIG), 4)

    def test_a_block_in_flight_that_is_overwritten_breaks_content(self) -> None:
        assert overlapping(ReferenceEngine(CONFIG), 32) == {"content"}

    def test_a_step_is_settled_once(self) -> None:
        scene = Scene(ReferenceEngine(CONFIG))
        scene.step()
        with pytest.raises(EngineError, match="no step is in flight"):
            scene.settle()

    def test_steps_are_settled_in_the_order_of_launches_with_their_own_lengths(self) -> None:
        """Step 0 settles 5 tokens, step 1 the sixth."""
        seen = []

        class Listening(AsyncEngine):
            def done(self, step: int, accepted: object) -> None:
                seen.append((step, dict(accepted)))  # type: ignore[call-overload]
                super().done(step, accepted)  # type: ignore[arg-type]

        scene = Scene(Listening(CONFIG))
        scene.admit("a", 5)
        scene.launch()
        scene.extend("a")
        scene.launch()
        scene.settle()
        scene.settle()
        assert seen == [(0, {"a": 5}), (1, {"a": 6})]


def test_a_step_ends_the_transfers_that_begin_with_it_and_no_others() -> None:
    scene = Scene(TiersEngine(CONFIG))
    scene.admit("a", 5)
    scene.step()
    scene.release("a")
    scene.launch()
    scene.settle()
    (older,) = scene.transfers
    scene.admit("b", 5)
    scene.step()
    scene.release("b")
    scene.step()
    assert scene.transfers == [older]


class _AlwaysLoading(ReferenceEngine):
    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        del request_id, prompt, first_chunk_tokens, max_tokens
        return Admission(refusal=Refusal(1, 8, 0, POOL, RefusalReason.LOADING))


def test_a_request_that_loads_for_ever_breaks_progress(make_trace: MakeTrace) -> None:
    """With nothing running and every transfer ended, LOADING is believed for a while only."""
    done = replay(make_trace({"prompt_tokens": 4, "output_tokens": 1}), _AlwaysLoading(CONFIG))
    assert {violation.invariant for violation in done.violations} == {"progress"}


def test_a_waiting_request_that_is_cancelled_is_told_to_the_tiers(make_trace: MakeTrace) -> None:
    """r1 finds the pool taken and is cancelled before it had a turn; r0 is told nothing of the kind."""
    forgotten = []

    class Listening(TiersEngine):
        def forget(self, request_id: RequestId) -> None:
            forgotten.append(request_id)

    trace = make_trace(
        {"prompt_tokens": 30, "output_tokens": 2},
        {"prompt_tokens": 30, "output_tokens": 2, "cancel_at_us": 50_000},
    )
    assert replay(trace, Listening(CONFIG)).violations == ()
    assert forgotten == ["r1"]


def test_a_host_smaller_than_a_request_refuses_nobody(make_trace: MakeTrace) -> None:
    """Sequences live on the device: one host block beside a prompt of seven."""
    engine = TiersEngine(EngineConfig(model_layout("tiny"), 4, 8, options={"host_blocks": 1}))
    done = replay(make_trace({"prompt_tokens": 28, "output_tokens": 2}), engine)
    assert done.violations == ()
    assert done.timeline.pools[0].total("finished") == 1
