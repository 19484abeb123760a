"""Seeded rules: what they add, where, and that the content hash pins them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ABSENT, Fill, ForkKind, Trace, TraceSource
from kvsuite.trace.overlay import apply_overlay, rule_names
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.writer import write_trace

if TYPE_CHECKING:
    from pathlib import Path


def base(count: int = 100, output: int = 20) -> Trace:
    rows = [
        Row(
            request_id=f"q{k}",
            timestamp=k // 3,
            input_length=10 + k,
            output_length=output,
            hash_ids=[1, *((k + 2,) * ((9 + k) // 8))],
        )
        for k in range(count)
    ]
    return trace_of(rows, TraceSource("test", "t"), block_size=8, dropped={"zero_prompt": 2})


def test_samples_follow_their_parent_and_share_its_prompt() -> None:
    trace = apply_overlay(base(), "fork:every=10,n=3", seed=5)
    children = np.flatnonzero(trace.parent != ABSENT)

    assert (len(trace), len(children), trace.rows_added) == (120, 20, 20)
    assert (trace.rows_read, trace.dropped) == (102, {"zero_prompt": 2})
    assert trace.filled == (Fill("fork", "fork:every=10,n=3", 5),)
    for child in children.tolist():
        parent = int(trace.parent[child])
        assert parent in (child - 1, child - 2)
        assert trace.fork_kind[child] == ForkKind.SAMPLE
        assert trace.fork_at[child] == trace.prompt_tokens[parent] == trace.prompt_tokens[child]
        assert 1 <= trace.output_tokens[child] <= trace.output_tokens[parent]
        assert trace.arrival_us[child] == trace.arrival_us[parent]
    # One of every ten, at a drawn place.
    places = [int(name[1:]) for k, name in enumerate(trace.request_ids) if k in trace.children]
    assert [place // 10 for place in places] == list(range(10))
    assert len({place % 10 for place in places}) > 1


def test_beams_fork_after_generated_tokens() -> None:
    trace = apply_overlay(base(), "beam:every=50,width=4,after=7")
    children = np.flatnonzero(trace.parent != ABSENT)

    assert len(children) == 2 * 3
    assert set(trace.fork_kind[children].tolist()) == {ForkKind.BEAM}
    assert (trace.fork_at[children] == trace.prompt_tokens[children] + 7).all()
    assert (trace.output_tokens[children] == 20).all()


def test_a_beam_needs_an_answer_that_is_longer() -> None:
    assert len(apply_overlay(base(output=7), "beam:every=1,after=7")) == 100
    assert len(apply_overlay(base(output=8), "beam:every=1,after=7")) == 200


def test_cancels_and_caps() -> None:
    trace = apply_overlay(base(), "cancel:every=5", "cap:tokens=8", "cancel:every=8,after=0")
    drawn = trace.cancel_after[trace.cancel_after != ABSENT]

    # 20 of 100, then 10 of the 80 that were left.
    assert len(drawn) == 30
    assert (drawn == 0).sum() >= 10
    assert len(set(drawn.tolist())) > 5
    assert drawn.max() <= 20
    assert set(trace.max_output_tokens.tolist()) == {20}
    assert set(apply_overlay(base(), "cap:tokens=64,every=2").max_output_tokens.tolist()) == {ABSENT, 64}


def test_cancelled_and_forked_requests_are_left_alone() -> None:
    trace = apply_overlay(base(), "cancel:every=1", "fork:every=1")
    assert (trace.parent == ABSENT).all()

    forked = apply_overlay(base(), "fork:every=1", "cancel:every=1")
    parents = list(forked.children)
    assert (forked.cancel_after[parents] == ABSENT).all()
    assert (np.delete(forked.cancel_after, parents) != ABSENT).all()


def test_the_hash_pins_rule_and_seed() -> None:
    rules = ("fork:every=10", "cancel:every=7")
    hashes = {content_hash(apply_overlay(base(), *rules, seed=seed)) for seed in range(4)}

    assert len(hashes) == 4
    assert content_hash(apply_overlay(base(), *rules, seed=2)) in hashes
    assert content_hash(apply_overlay(base(), *reversed(rules), seed=2)) not in hashes
    assert content_hash(apply_overlay(base())) == content_hash(base())


def test_rules_one_by_one_give_what_they_give_together() -> None:
    together = apply_overlay(base(), "fork:every=10", "cancel:every=7", seed=3)
    one_by_one = apply_overlay(apply_overlay(base(), "fork:every=10", seed=3), "cancel:every=7", seed=3)

    assert content_hash(one_by_one) == content_hash(together)
    assert one_by_one.filled == together.filled


def test_what_was_added_survives_a_file(tmp_path: Path) -> None:
    trace = apply_overlay(base(), "fork:every=10", "cap:tokens=30", seed=9)
    write_trace(trace, tmp_path / "trace.jsonl")
    found = load_trace(tmp_path / "trace.jsonl")

    assert (found.filled, found.rows_added, found.rows_read) == (trace.filled, 10, 102)
    assert content_hash(found) == content_hash(trace)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("clone:every=5", "unknown overlay rule 'clone': the rules are fork, beam, cancel, cap, slow, fast"),
        ("fork", r"overlay rule 'fork': every is missing; fork takes every=N, \[n=N\], whole numbers"),
        ("fork:n=2", "every is missing"),
        ("fork:every=0", "every must be at least 1"),
        ("fork:every=5,m=2", "cannot read 'm=2'"),
        ("fork:every=-5", "cannot read 'every=-5'"),
        ("fork:every", "cannot read 'every'"),
        ("cancel:every=2.5", "cannot read 'every=2.5'"),
        ("cap:every=2", "tokens is missing"),
        ("slow:times=0", "times must be at least 1; slow takes times=N, whole numbers"),
        ("fast", "times is missing"),
        ("slow:times=2,every=2", "cannot read 'every=2'"),
        ("cancel:every=1,every=2", "every stands twice"),
        ("cancel:every=9999999999999999", "cannot read 'every=9999999999999999'"),
        ("fork:every=1,n=4097", "n is 4097, at most 4096 children a request"),
        ("beam:every=1,width=100000", "width is 100000, at most 4096"),
    ],
)
def test_rules_that_cannot_be_read_say_what_they_take(rule: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        apply_overlay(base(3), rule)


def test_a_seed_out_of_range_is_refused() -> None:
    with pytest.raises(TraceError, match="overlay seed -1: expected 0 to 4294967295"):
        apply_overlay(base(3), "fork:every=1", seed=-1)


def test_the_rules() -> None:
    assert rule_names() == ("fork", "beam", "cancel", "cap", "slow", "fast")


def paced() -> Trace:
    """Return one, a parent that forks, its child, and one that goes away at 7 ms; at 0, 1, 1 and 5 ms."""
    rows = [
        Row(request_id="z", timestamp=0, input_length=4, output_length=3),
        Row(request_id="a", timestamp=1, input_length=4, output_length=3),
        Row(
            request_id="b", timestamp=1, input_length=4, output_length=3, parent="a", fork="sample", fork_at=4
        ),
        Row(request_id="c", timestamp=5, input_length=4, output_length=3, cancel_at=7),
    ]
    return trace_of(rows, TraceSource("test", "t"), block_size=0)


def test_a_pace_moves_every_time_and_nothing_else() -> None:
    slow, fast = apply_overlay(paced(), "slow:times=20"), apply_overlay(paced(), "fast:times=3")

    assert slow.arrival_us.tolist() == [0, 20_000, 20_000, 100_000]
    assert slow.cancel_at_us.tolist() == [ABSENT, ABSENT, ABSENT, 140_000]
    assert fast.arrival_us.tolist() == [0, 333, 333, 1_667]  # 5,000 / 3 = 1,666.7
    assert fast.cancel_at_us.tolist() == [ABSENT, ABSENT, ABSENT, 2_333]
    for trace in (slow, fast):
        assert trace.parent.tolist() == paced().parent.tolist()
        assert trace.output_tokens.tolist() == [3, 3, 3, 3]
        assert (trace.rows_added, content_hash(trace) == content_hash(paced())) == (0, False)
    assert slow.filled == (Fill("slow", "slow:times=20", 0),)


def test_a_pace_beyond_time_is_refused() -> None:
    with pytest.raises(TraceError, match="timestamp out of range"):
        apply_overlay(paced(), "slow:times=999999999999999")
