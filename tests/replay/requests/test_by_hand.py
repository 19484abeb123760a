"""Rows and endings of a few requests, worked out by hand: blocks of 16 tokens, steps of 50 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.engine.extensions.requests import RequestsEngine
from kvsuite.errors import ConfigError
from kvsuite.ledger.row import ABSENT
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.requests.asked import (
    ANSWER_LEAVES,
    BEAM,
    LENGTH,
    NO_TOKEN,
    ONE_ANSWER,
    ORPHAN,
    UNSEEN,
    asked_trace,
)
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.replay.step_costs import StepCosts
from kvsuite.trace.rows import Row
from tests.replay.requests.engines import Counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Observation
    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.trace.model import Trace

    Open = Callable[..., RequestsEngine]
    Requests = Callable[..., Trace]


def column(done: RequestReplay, name: str) -> list[int]:
    return [int(value) for value in done.timeline.pools[0].column(name)]


def test_three_requests_by_hand(open_requests: Open, requests_of: Requests) -> None:
    """Tokens computed after each step; an answer of n tokens takes n steps, the prompt's own included.

    step       0        1        2        3
    a 20 + 3   20       21       ends
    b 31 + 4   31       32       33       ends
    c 16 + 2            16       ends
    blocks     2 + 2    2+2+1    3        0
    """
    rows = (
        Row(timestamp=0, input_length=20, output_length=3),
        Row(timestamp=0, input_length=31, output_length=4),
        Row(timestamp=50, input_length=16, output_length=2),
    )
    done = replay_requests(requests_of(*rows), open_requests())
    assert done.violations == ()
    assert done.timeline.steps.tolist() == [0, 1, 2, 3]
    assert column(done, "live_blocks") == [4, 5, 3, 0]
    assert column(done, "running") == [2, 3, 1, 0]
    assert column(done, "waiting") == [0, 0, 0, 0]
    assert column(done, "arrived") == [2, 1, 0, 0]
    assert column(done, "finished") == [0, 0, 2, 1]
    assert column(done, "logical") == [51, 69, 33, 0]
    assert done.final_lengths.tolist() == [23, 18, 35]
    assert [(o.arrived_step, o.first_token_step, o.ended_step) for o in done.outcomes] == [
        (0, 0, 2),
        (0, 0, 3),
        (1, 1, 2),
    ]


def test_what_only_a_scheduler_knows_is_absent(open_requests: Open, requests_of: Requests) -> None:
    done = replay_requests(requests_of((20, 3)), open_requests(prefix_cache=True))
    for name in ("hit", "preempted", "admitted", "written", "allocated", "reactivated", "evicted"):
        assert set(column(done, name)) == {ABSENT}
    assert [outcome.hit_tokens for outcome in done.outcomes] == [None]
    alone = replay_requests(requests_of((20, 3)), open_requests(prefix_cache=False))
    assert column(alone, "allocated") == [2, 0, 0]


def test_numbers_alone_leave_every_category_absent(open_requests: Open, requests_of: Requests) -> None:
    done = replay_requests(requests_of((20, 3)), open_requests(Counted))
    assert column(done, "live_blocks") == [2, 2, 0]
    for name in ("payload", "slack", "free", "cached", "logical"):
        assert set(column(done, name)) == {ABSENT}
    assert {law.invariant for law in done.not_judged} == {"content", "closure"}


def test_what_a_step_does_is_not_shown_and_so_not_charged_for(
    open_requests: Open, requests_of: Requests
) -> None:
    costs = StepCosts(base_us=100)
    with pytest.raises(ConfigError, match="schedules by itself"):
        replay_requests(requests_of((20, 3)), open_requests(), SchedulerConfig(costs=costs))


def test_idle_steps_are_left_out(open_requests: Open, requests_of: Requests) -> None:
    rows = (Row(timestamp=at, input_length=5, output_length=2) for at in (0, 500))
    done = replay_requests(requests_of(*rows), open_requests(), SchedulerConfig(step_us=50_000))
    assert done.timeline.steps.tolist() == [0, 1, 10, 11]


def test_clients_leave_when_the_trace_says(open_requests: Open, requests_of: Requests) -> None:
    """At 120 ms: before step 3. After 4 tokens, seen after step 3: before step 4. After none: step 1."""
    rows = (
        Row(request_id="time", timestamp=0, input_length=5, output_length=30, cancel_at=120),
        Row(request_id="tokens", timestamp=0, input_length=5, output_length=30, cancel_after=4),
        Row(request_id="none", timestamp=0, input_length=5, output_length=30, cancel_after=0),
    )
    done = replay_requests(requests_of(*rows), open_requests())
    assert [(o.ending, o.ended_step, o.generated_tokens) for o in done.outcomes] == [
        (Ending.CANCELLED, 3, 3),
        (Ending.CANCELLED, 4, 4),
        (Ending.CANCELLED, 1, 1),
    ]
    assert column(done, "cancelled") == [0, 1, 0, 1, 1]


def test_a_cancellation_after_tokens_that_cannot_be_seen_is_named(
    open_requests: Open, requests_of: Requests
) -> None:
    class Silent(Counted):
        def observe(self) -> Observation:
            from dataclasses import replace

            return replace(super().observe(), generated={})

    row = Row(timestamp=0, input_length=5, output_length=30, cancel_after=4)
    done = replay_requests(requests_of(row), open_requests(Silent))
    assert done.violations == ()
    assert done.dropped == {UNSEEN: 1}
    assert done.outcomes[0].ending is Ending.FINISHED
    assert done.outcomes[0].generated_tokens is None
    assert done.final_lengths.tolist() == []


@pytest.mark.parametrize(
    ("num_answers", "held"),
    [(1, [3, 3, 3, 3, 0]), (3, [3, 5, 5, 5, 0])],
    ids=["one answer", "three answers"],
)
def test_answers_share_the_prompt_and_copy_their_tail(
    open_requests: Open, requests_of: Requests, num_answers: int, held: list[int]
) -> None:
    """A prompt of 40 tokens: 2 full blocks and a tail of 8, which each answer copies with its first token."""
    rows = [Row(request_id="r", timestamp=0, input_length=40, output_length=5)]
    rows += [
        Row(
            request_id=f"r{k}",
            timestamp=0,
            input_length=40,
            output_length=5,
            parent="r",
            fork="sample",
            fork_at=40,
        )
        for k in range(1, num_answers)
    ]
    done = replay_requests(requests_of(*rows), open_requests())
    assert done.violations == ()
    assert column(done, "live_blocks") == held
    assert column(done, "logical") == [num_answers * tokens for tokens in (40, 41, 42, 43)] + [0]
    assert len(done.outcomes) == 1
    assert (done.changed, done.dropped) == ({}, {})


def test_a_spawned_request_starts_when_its_parent_answers(open_requests: Open, requests_of: Requests) -> None:
    rows = (
        Row(request_id="parent", timestamp=0, input_length=20, output_length=5),
        Row(
            request_id="child",
            timestamp=0,
            input_length=5,
            output_length=2,
            parent="parent",
            fork="spawn",
            fork_at=0,
        ),
        Row(request_id="gone", timestamp=0, input_length=9000, output_length=5),
        Row(
            request_id="orphan",
            timestamp=0,
            input_length=5,
            output_length=2,
            parent="gone",
            fork="spawn",
            fork_at=0,
        ),
    )
    done = replay_requests(requests_of(*rows), open_requests())
    assert [(o.ending, o.arrived_step) for o in done.outcomes] == [
        (Ending.FINISHED, 0),
        (Ending.FINISHED, 1),
        (Ending.REJECTED, 0),
        (Ending.ORPHANED, None),
    ]
    assert list(done.refused) == ["gone"]


def child(name: str, parent: str, *, at: int, output: int = 5, **more: int) -> Row:
    return Row(
        request_id=name,
        timestamp=0,
        input_length=40,
        output_length=output,
        parent=parent,
        fork="sample" if at == 40 else "beam",
        fork_at=at,
        **more,  # type: ignore[arg-type]
    )


def test_what_cannot_be_asked_for_is_named(requests_of: Requests) -> None:
    trace = requests_of(
        Row(request_id="r", timestamp=0, input_length=40, output_length=5),
        child("same", "r", at=40),
        child("longer", "r", at=40, output=9),
        child("leaves", "r", at=40, cancel_after=2),
        child("beam", "r", at=42),
        child("of the beam", "beam", at=43),
        Row(request_id="none", timestamp=0, input_length=8, output_length=0),
    )
    asked = asked_trace(trace, samples=True)
    assert [(one.request.request_id, one.num_answers, one.max_tokens) for one in asked.requests] == [
        ("r", 4, 5),
        ("none", 1, 1),
    ]
    assert asked.changed == {LENGTH: 1, NO_TOKEN: 1}
    assert asked.dropped == {ANSWER_LEAVES: 1, BEAM: 1, ORPHAN: 1}
    single = asked_trace(trace, samples=False)
    assert [one.num_answers for one in single.requests] == [1, 1]
    assert single.dropped == {ONE_ANSWER: 3, BEAM: 1, ORPHAN: 1}


def test_several_answers_are_asked_only_of_who_gives_them(open_requests: Open, requests_of: Requests) -> None:
    class OneAnswer(RequestsEngine):
        def __init__(self, config: object) -> None:
            from dataclasses import replace

            super().__init__(config)  # type: ignore[arg-type]
            claims = self._spec.capabilities - {Capability.SAMPLES}
            self._spec = replace(self._spec, capabilities=claims)

    rows = (Row(request_id="r", timestamp=0, input_length=40, output_length=5), child("s", "r", at=40))
    done = replay_requests(requests_of(*rows), open_requests(OneAnswer))
    assert done.violations == ()
    assert max(column(done, "live_blocks")) == 3
    assert done.dropped == {ONE_ANSWER: 1}
