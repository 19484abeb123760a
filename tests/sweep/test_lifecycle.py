"""The life that a size must survive, on sound engines and on broken ones."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.ledger.invariants import Violation
from kvsuite.sweep import lifecycle
from kvsuite.sweep.lifecycle import eventful, lived_through
from kvsuite.trace.model import ABSENT, TraceSource
from kvsuite.trace.rows import Row, trace_of
from tests.sweep.stretches import stretch, together


def test_half_of_those_under_way_leave_at_the_fullest_step() -> None:
    """16 requests under way, one of them a parent drawn by the fork rule and one by the beam rule or none."""
    trace, leaving = eventful(stretch(together(16, 6, 8), 200, seats=64), seed=1)
    assert trace.rows_added == 1  # one of 16 forks; fewer than 24 are left for beams
    gone = np.flatnonzero(trace.cancel_at_us != ABSENT)
    assert len(gone) == leaving == round(17 / 2)
    assert len(set(trace.cancel_at_us[gone].tolist())) == 1


def test_who_ends_in_the_fullest_step_cannot_leave_in_it() -> None:
    """Three have their last token in it, and half of the two others go."""
    rows = [
        Row(request_id=f"r{k}", timestamp=0, input_length=6, output_length=output)
        for k, output in enumerate((3, 3, 3, 6, 6))
    ]
    trace, leaving = eventful(stretch(trace_of(rows, TraceSource("invented", "ends"), block_size=0), 200), 1)
    assert leaving == 1
    assert np.flatnonzero(trace.cancel_at_us != ABSENT)[0] >= 3


def test_clients_that_go_anyway_are_no_part_of_the_burst() -> None:
    """Of four two go by themselves, one after its fourth answer of six and one at 900 ms: one more goes."""
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=6, cancel_after=4),
        Row(request_id="b", timestamp=0, input_length=6, output_length=6, cancel_at=900),
        Row(request_id="c", timestamp=0, input_length=6, output_length=6),
        Row(request_id="d", timestamp=0, input_length=6, output_length=6),
    ]
    trace, leaving = eventful(stretch(trace_of(rows, TraceSource("invented", "go"), block_size=0), 200), 1)
    assert leaving == 1
    assert trace.cancel_at_us.tolist()[:2] == [ABSENT, 900_000]
    assert trace.cancel_after.tolist() == [4, ABSENT, ABSENT, ABSENT]


def test_a_child_that_never_comes_cannot_leave() -> None:
    """Its parent goes after five answers, and has seven when it would fork: half of one stays none."""
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=8, cancel_after=5),
        Row(
            request_id="a.s1",
            timestamp=0,
            input_length=6,
            output_length=8,
            parent="a",
            fork="sample",
            fork_at=13,
        ),
        Row(request_id="b", timestamp=0, input_length=6, output_length=6),
    ]
    asked = stretch(trace_of(rows, TraceSource("invented", "orphan"), block_size=0), 200)
    assert eventful(asked, 1)[1] == 0


def test_a_sound_engine_survives() -> None:
    life = lived_through(stretch(together(48, 6, 8), 60, seats=64))
    assert life.broken is None
    assert life.requests == 48 + 3 + 3  # three forks; one of the 45 that are left goes on as four beams
    assert life.left_at_once > 0
    assert life.preempted > 0
    assert life.tokens_read > 48 * 6


@pytest.mark.parametrize(
    ("engine", "law"),
    [
        ("mutant:leak-on-cancel", "closure"),
        ("mutant:copy-skipped", "content"),
        ("mutant:fork-forgets-reference", "closure"),
    ],
)
def test_a_broken_engine_does_not(engine: str, law: str) -> None:
    life = lived_through(stretch(together(48, 6, 8), 60, seats=64, engine=engine))
    assert life.broken is not None
    assert life.broken.startswith(law)


def test_who_does_not_end_as_it_must_has_not_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    starves = [
        Violation("endings", None, "pool", "r3 did not end"),
        Violation("endings", 9, "pool", "r4 too"),
    ]
    monkeypatch.setattr(lifecycle, "endings", lambda _trace, _done: iter(starves))
    life = lived_through(stretch(together(48, 6, 8), 60, seats=64))
    assert life.broken == f"{starves[0]} (and 1 more)"
