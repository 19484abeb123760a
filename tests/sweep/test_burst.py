"""The largest divergence burst, worked out by hand on requests that all run together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.sweep import burst as bursts
from kvsuite.sweep.burst import largest_burst
from kvsuite.sweep.fullest import Rows
from kvsuite.sweep.lifecycle import eventful
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from tests.sweep.stretches import bears, stretch, together

if TYPE_CHECKING:
    import pytest


def test_a_burst_takes_a_block_a_sample() -> None:
    """Three requests of 6 + 4 tokens in blocks of 4: 2 blocks each, and 3 from the ninth token on.

    The pool of 14 is fullest when the ninth token is there: 9 blocks. So 5 are spare. A sample that forks
    then shares all nine tokens and diverges at the tenth, in the third block, which it copies: one token.
    """
    burst = bears(stretch(together(3, 6, 4), 14))
    assert (burst.largest, burst.bound, burst.spare_blocks, burst.running) == (5, "blocks", 5, 3)
    assert burst.copied_tokens == 5


def test_who_ends_at_the_fullest_step_leaves_its_blocks_to_the_samples() -> None:
    """Of two requests in a pool of 9 the shorter ends with its ninth token, when both hold 3 blocks.

    3 blocks are spare in that step and 6 in the next, in which the samples diverge.
    """
    rows = [
        Row(request_id=name, timestamp=0, input_length=6, output_length=output)
        for name, output in (("short", 3), ("long", 6))
    ]
    trace = trace_of(rows, TraceSource("invented", "two"), block_size=0)
    burst = bears(stretch(trace, 9))
    assert (burst.largest, burst.bound, burst.spare_blocks) == (6, "blocks", 3)


def test_children_that_come_anyway_take_seats() -> None:
    """The beam comes after the ninth token, in the fullest step: of 5 seats 2 run and 1 is its own."""
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=6),
        Row(
            request_id="a.b1",
            timestamp=0,
            input_length=6,
            output_length=4,
            parent="a",
            fork="beam",
            fork_at=9,
        ),
        Row(request_id="c", timestamp=0, input_length=6, output_length=3),
    ]
    trace = trace_of(rows, TraceSource("invented", "beam"), block_size=0)
    burst = bears(stretch(trace, 60, seats=5))
    assert (burst.largest, burst.bound) == (2, "seats")
    assert burst.copied_tokens == 2  # the beam's own token apart


def test_who_has_its_first_token_at_the_fullest_step_is_forked() -> None:
    """The ninth token is the first of three answers, and takes a third block."""
    burst = bears(stretch(together(3, 8, 2), 14))
    assert (burst.largest, burst.copied_tokens) == (5, 5)


def test_one_sample_is_asked_for_where_there_is_one_seat() -> None:
    assert bears(stretch(together(3, 6, 4), 40, seats=4)).largest == 1


def test_samples_are_dealt_out_among_those_that_decode() -> None:
    """In the fullest step 9 and 10 tokens are there: two samples copy one token each, and two copy two."""
    rows = [
        Row(request_id=name, timestamp=0, input_length=prompt, output_length=4)
        for name, prompt in (("a", 6), ("b", 7))
    ]
    burst = bears(stretch(trace_of(rows, TraceSource("invented", "two"), block_size=0), 10))
    assert (burst.largest, burst.copied_tokens) == (4, 2 * 1 + 2 * 2)


def test_a_child_that_decodes_is_forked_at_its_own_length() -> None:
    """Both are 13 tokens long when they take a fourth block; two are shared, and 6 are held of 10."""
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=8),
        Row(
            request_id="a.b1",
            timestamp=0,
            input_length=6,
            output_length=8,
            parent="a",
            fork="beam",
            fork_at=9,
        ),
    ]
    burst = bears(stretch(trace_of(rows, TraceSource("invented", "beam"), block_size=0), 10))
    assert (burst.largest, burst.spare_blocks, burst.copied_tokens) == (4, 4, 4)


def test_an_engine_that_copies_as_it_forks_denies_what_the_step_has_no_room_for() -> None:
    """As above, but a sample takes its block in the fullest step, when the shorter still holds its own."""
    rows = [
        Row(request_id=name, timestamp=0, input_length=6, output_length=output)
        for name, output in (("short", 3), ("long", 6))
    ]
    trace = trace_of(rows, TraceSource("invented", "two"), block_size=0)
    assert bears(stretch(trace, 9, engine="reference-eager")).largest == 3


def test_who_gives_way_without_the_burst_too_is_not_held_against_it() -> None:
    """``d``, ``a`` and ``b`` take a third block in step 1, for which ``c`` gives its one: 9 of 9 are held.

    ``d`` ends in it and leaves 3 blocks, and ``c`` waits behind the samples.
    """
    rows = [
        Row(request_id=name, timestamp=0, input_length=prompt, output_length=output)
        for name, prompt, output in (("d", 8, 1), ("a", 8, 4), ("b", 8, 4), ("c", 3, 5))
    ]
    asked = stretch(trace_of(rows, TraceSource("invented", "four"), block_size=0), 9)
    calm = asked.rows()
    assert (calm.fullest, int(calm.column("preempted")[1])) == (1, 1)
    burst = bears(asked)
    assert (burst.largest, burst.spare_blocks) == (3, 0)


def test_a_block_that_a_hit_takes_up_again_was_there_for_samples() -> None:
    """In the step of the burst a third request finds a block of the one that ended: 6 were to be had."""
    rows = [
        Row(request_id="short", timestamp=0, input_length=6, output_length=3, hash_ids=[1, 2]),
        Row(request_id="long", timestamp=0, input_length=6, output_length=6, hash_ids=[3, 4]),
        Row(request_id="late", timestamp=4, input_length=6, output_length=2, hash_ids=[1, 5]),
    ]
    asked = stretch(trace_of(rows, TraceSource("invented", "hit"), block_size=4), 9)
    calm = asked.rows()
    assert int(calm.column("reactivated")[calm.fullest + 1]) == 1
    assert bears(asked).largest == 6


def test_tokens_that_come_after_the_burst_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at the first answer, 7 tokens in 2 blocks each of 8; later one gives way and comes again."""
    monkeypatch.setattr(Rows, "fullest", property(lambda _: 1))
    asked = stretch(together(2, 6, 12), 8)
    assert asked.rows().column("preempted").sum() > 0
    burst = bears(asked)
    assert (burst.largest, burst.copied_tokens) == (4, 4 * 3)


def test_an_engine_that_does_not_fork_bears_no_burst() -> None:
    assert largest_burst(stretch(together(3, 6, 4), 40, engine="contiguous-max")) is None


def test_the_driver_finds_the_same_burst_and_life() -> None:
    asked = stretch(together(48, 6, 8), 60, seats=64)
    compiled = bears(asked), eventful(asked, 1)[0].cancel_at_us.tolist()
    stepped = replace(asked, cell=replace(asked.cell, core="step"))
    assert (bears(stepped), eventful(stepped, 1)[0].cancel_at_us.tolist()) == compiled


def test_seats_bound_a_burst_too() -> None:
    burst = bears(stretch(together(3, 6, 4), 40, seats=5))
    assert (burst.largest, burst.bound, burst.spare_blocks) == (2, "seats", 31)


def test_a_full_pool_bears_none() -> None:
    burst = bears(stretch(together(3, 6, 4), 9))
    assert (burst.largest, burst.bound, burst.spare_blocks) == (0, "blocks", 0)


def test_where_nobody_decodes_there_is_nothing_to_fork() -> None:
    burst = bears(stretch(together(2, 9, 0), 20))
    assert (burst.largest, burst.bound) == (0, "no sequence to fork")


def test_what_the_others_need_in_the_same_step_is_not_there_for_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked at a step that is not the fullest, of four requests with 16 tokens each, 4 full blocks of 22.

    6 are spare. In the next step each of the four takes a fifth block, and a sample a block of its own: two
    can. Were nobody asked whether a sequence gave way, six would seem to be borne.
    """
    trace = together(4, 6, 12)
    monkeypatch.setattr(Rows, "fullest", property(lambda _: 16 - 6))
    burst = bears(stretch(trace, 22))
    assert (burst.spare_blocks, burst.largest, burst.bound) == (6, 2, "blocks")
    monkeypatch.setattr(bursts, "_DISTRESS", ())
    assert bears(stretch(trace, 22)).largest == 6
