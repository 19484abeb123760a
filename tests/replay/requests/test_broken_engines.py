"""Each law is broken by an engine of its own, and named; the sound engine breaks none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.contract import Capability, Observation, PoolCounts, Release
from kvsuite.engine.extensions.requests import RequestsEngine
from kvsuite.engine.snapshot import PoolKey
from kvsuite.errors import EngineError
from kvsuite.replay.requests import steps
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.trace.rows import Row
from tests.replay.requests.engines import (
    CancelsByItself,
    ClaimsOtherBytes,
    ContradictsItsTables,
    Counted,
    DeafToCancels,
    DoesNotClose,
    EndsByError,
    ForgetsALength,
    GoesOn,
    LeaksOnCancel,
    LosesBlocks,
    Miscounted,
    RefusesWhatFits,
    Stalls,
    Starves,
    StopsShort,
    Undercounted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.trace.model import Trace

    Open = Callable[..., RequestsEngine]
    Requests = Callable[..., Trace]

ROWS = (
    Row(request_id="a", timestamp=0, input_length=20, output_length=30),
    Row(request_id="b", timestamp=0, input_length=33, output_length=40, cancel_at=500),
    Row(request_id="c", timestamp=100, input_length=64, output_length=20),
)


def broken(done: RequestReplay) -> set[str]:
    return {violation.invariant for violation in done.violations}


@pytest.mark.parametrize("kind", [RequestsEngine, Counted], ids=["tables", "numbers"])
def test_the_sound_engine_breaks_nothing(open_requests: Open, requests_of: Requests, kind: Any) -> None:
    done = replay_requests(requests_of(*ROWS), open_requests(kind))
    assert done.violations == ()
    assert [outcome.ending and outcome.ending.value for outcome in done.outcomes] == [
        "finished",
        "cancelled",
        "finished",
    ]


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (Miscounted, "used"),
        (Undercounted, "used"),
        (LeaksOnCancel, "used"),
        (LeaksOnCancel, "drain"),
        (LosesBlocks, "partition"),
        (LosesBlocks, "closure"),
        (LosesBlocks, "drain"),
        (ForgetsALength, "lengths"),
        (StopsShort, "endings"),
        (GoesOn, "endings"),
        (DeafToCancels, "progress"),
        (RefusesWhatFits, "progress"),
        (Stalls, "progress"),
        (EndsByError, "endings"),
        (CancelsByItself, "endings"),
        (ClaimsOtherBytes, "closure"),
        (DoesNotClose, "closure"),
        (ContradictsItsTables, "used"),
    ],
)
def test_a_broken_engine_is_named(open_requests: Open, requests_of: Requests, kind: Any, law: str) -> None:
    done = replay_requests(requests_of(*ROWS), open_requests(kind))
    assert law in broken(done), [str(violation) for violation in done.violations][:5]


def test_an_engine_that_takes_for_ever_is_stopped(
    open_requests: Open, requests_of: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers come and go, so that it never stands still: the number of steps gives it away."""
    monkeypatch.setattr(steps, "MARGIN_STEPS", 100)
    done = replay_requests(requests_of(*ROWS), open_requests(Starves))
    assert broken(done) >= {"progress"}
    assert any("c, submitted at step 2, did not end: more steps" in str(found) for found in done.violations)
    assert done.outcomes[2].ending is None


def test_a_stall_is_told_from_patience(open_requests: Open, requests_of: Requests) -> None:
    """Nothing changes for 256 steps and four blocks of 16 more: the replay gives up, and says who waits."""
    done = replay_requests(requests_of((20, 30)), open_requests(Stalls))
    (found,) = (violation for violation in done.violations if violation.invariant == "progress")
    assert "r0, submitted at step 0, did not end: nothing has changed for 320 steps" in found.message
    assert len(done.timeline) == 11 + 320


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"running": ["a"]}, "running"),
        ({"running": ("ghost",)}, "'ghost' in running"),
        ({"finished": {"ghost": Release.FINISH}}, "'ghost' in finished"),
        ({"finished": {"a": "stop"}}, "expected a Release"),
        ({"generated": {"a": 3}}, "a tuple of 1 token counts"),
        ({"generated": {"a": (1, 2)}}, "a tuple of 1 token counts"),
        ({"generated": {"a": (-1,)}}, "a tuple of 1 token counts"),
        ({"finished": {"a": Release.FINISH}, "refused": {"a": "no"}}, "a both finished and refused"),
        ({"counts": (PoolCounts(PoolKey(group=1)),)}, "a pool of the spec"),
        ({"counts": (PoolCounts(PoolKey(), used_blocks=1.5),)}, "used_blocks 1.5"),  # type: ignore[arg-type]
        ({"num_running": 1.0}, "num_running 1.0"),
        ({"snapshots": ("no",)}, "a tuple of PoolSnapshot"),
        ({"refused": None}, "mappings of request ids"),
    ],
)
def test_an_answer_without_the_form_of_the_contract_ends_the_replay(
    open_requests: Open, requests_of: Requests, change: dict[str, Any], said: str
) -> None:
    class Malformed(RequestsEngine):
        def observe(self) -> Observation:
            return replace(super().observe(), **change)

    with pytest.raises(EngineError, match="answered observe at step 0") as caught:
        replay_requests(requests_of(*ROWS), open_requests(Malformed))
    assert said in str(caught.value)


def test_a_crash_is_named(open_requests: Open, requests_of: Requests) -> None:
    class Crashes(RequestsEngine):
        def step(self) -> None:
            raise ZeroDivisionError("no more blocks")

    with pytest.raises(EngineError, match=r"raised ZeroDivisionError in step at step 0: no more blocks"):
        replay_requests(requests_of(*ROWS), open_requests(Crashes))


def test_a_crash_after_a_broken_law_says_both(open_requests: Open, requests_of: Requests) -> None:
    class Crashes(Miscounted):
        def step(self) -> None:
            if any(asked.generated[0] > 3 for asked in self.running):
                raise ZeroDivisionError
            super().step()

    with pytest.raises(EngineError, match="broken before that: used at step 0"):
        replay_requests(requests_of(*ROWS), open_requests(Crashes))


def test_a_spec_that_changes_is_refused(open_requests: Open, requests_of: Requests) -> None:
    class Fickle(RequestsEngine):
        def step(self) -> None:
            super().step()
            self._spec = replace(self._spec, version="2")

    with pytest.raises(EngineError, match="the spec of an engine is constant"):
        replay_requests(requests_of((20, 3)), open_requests(Fickle))


def test_a_request_that_cannot_fit_and_finishes_is_caught(open_requests: Open, requests_of: Requests) -> None:
    """17 tokens of prompt and 20 more in a pool of two blocks: 36 computed tokens have no 36 slots."""

    class Magic(RequestsEngine):
        def __init__(self, config: EngineConfig) -> None:
            super().__init__(replace(config, num_blocks=64))
            small = replace(self._spec.pools[0], num_blocks=2)
            claims = self._spec.capabilities | {Capability.REQUEST_DRIVEN}
            self._spec = replace(self._spec, pools=(small,), capabilities=claims)

        def observe(self) -> Observation:
            return replace(super().observe(), snapshots=())

    done = replay_requests(requests_of((17, 20)), open_requests(Magic))
    assert "36 tokens computed, and the pool has 32 slots" in str(done.violations[0])
