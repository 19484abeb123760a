"""A trace again and again: what shifts, what stays apart, and what a reader is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.errors import TraceError
from kvsuite.trace.identity import canonical_text, content_hash
from kvsuite.trace.load import hit_tokens, load_trace
from kvsuite.trace.model import ABSENT, Fill, Trace, TraceSource
from kvsuite.trace.overlay import apply_overlay
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tile import tiled
from kvsuite.trace.writer import write_trace

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = TraceSource("test", "t")


def sample() -> Trace:
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=6, hash_ids=[1, 2], session_id="s"),
        Row(timestamp=0, input_length=6, output_length=5, parent="a", fork="beam", fork_at=9),
        Row(timestamp=2, input_length=8, output_length=0, hash_ids=[1, 3], session_id="t", scope="x"),
        Row(timestamp=3, input_length=3, output_length=2, cancel_at=4, session_id="s", priority=2),
    ]
    return trace_of(rows, SOURCE, block_size=4, dropped={"zero_prompt": 2})


def test_three_copies_by_hand() -> None:
    trace = tiled(sample(), 3)

    # 3000 us from first to last, and a mean gap of 1000: a copy every 4000 us.
    starts = [0, 4000, 8000]
    assert trace.arrival_us.tolist() == [start + at for start in starts for at in (0, 0, 2000, 3000)]
    assert trace.cancel_at_us.tolist() == [-1, -1, -1, 4000, -1, -1, -1, 8000, -1, -1, -1, 12000]
    assert trace.parent.tolist() == [-1, 0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1]
    assert trace.nodes.tolist() == [0, 1, 0, 2, 3, 4, 3, 5, 6, 7, 6, 8]
    assert trace.node_offsets.tolist() == [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12]
    assert trace.session.tolist() == [0, -1, 1, 0, 2, -1, 3, 2, 4, -1, 5, 4]
    assert trace.priority.tolist() == [0, 0, 0, 2] * 3
    assert trace.fork_at.tolist() == [-1, 9, -1, -1] * 3
    assert trace.scopes == ("", "", "x", "") * 3
    assert trace.request_ids == tuple(f"{name}~{k}" for k in range(3) for name in ("a", "r1", "r2", "r3"))
    assert trace.filled == (Fill("repeat", "repeat:copies=3", 0),)
    assert (trace.rows_read, trace.rows_added, trace.dropped) == (6, 8, {"zero_prompt": 2})
    assert trace.children == {0: (1,), 4: (5,), 8: (9,)}


def test_one_copy_is_the_trace_itself() -> None:
    trace = sample()

    assert tiled(trace, 1) is trace


def test_every_number_of_copies_hashes_apart() -> None:
    trace = sample()

    assert len({content_hash(tiled(trace, copies)) for copies in range(1, 6)}) == 5


def test_the_first_copy_asks_what_the_trace_asks() -> None:
    trace = sample()

    assert content_hash(tiled(trace, 4).head(len(trace))) == content_hash(trace)
    for copy in range(4):
        rows = np.arange(len(trace)) + copy * len(trace)
        assert canonical_text(tiled(trace, 4).select(rows)) == canonical_text(trace)


@pytest.mark.parametrize("copies", [0, -1])
def test_less_than_a_copy_is_refused(copies: int) -> None:
    with pytest.raises(TraceError, match=f"{copies} copies of a trace: expected 1 or more"):
        tiled(sample(), copies)


def test_time_that_runs_out_is_refused() -> None:
    with pytest.raises(TraceError, match=r"copies of 4000 us each reach beyond .*give fewer copies"):
        tiled(sample(), 2**62 // 4000 + 1)


@pytest.mark.parametrize(
    ("times_ms", "period_us"),
    [([0], 1), ([0, 0], 1), ([0, 0.001, 0.001, 0.001], 2), ([0, 5], 10_000), ([0, 1, 1.005], 1005 + 502)],
)
def test_a_copy_begins_a_mean_gap_after_the_last(times_ms: list[float], period_us: int) -> None:
    """The gap is rounded half to even, 502.5 to 502, and is at least 1 us."""
    rows = [Row(timestamp=time, input_length=1, output_length=0) for time in times_ms]
    trace = tiled(trace_of(rows, SOURCE, block_size=0), 3)

    assert trace.arrival_us[:: len(rows)].tolist() == [0, period_us, 2 * period_us]


@given(st.sampled_from(["churn", "chat", "shared-prompts", "cancel-burst"]), st.integers(2, 4))
def test_copies_have_no_prefix_and_no_session_in_common(name: str, copies: int) -> None:
    trace = load_trace(name, limit=40)
    again = tiled(trace, copies)
    nodes = [
        set(again.nodes[again.node_offsets[k] : again.node_offsets[k + len(trace)]].tolist())
        for k in range(0, len(again), len(trace))
    ]
    sessions = [set(part[part != ABSENT].tolist()) for part in np.split(again.session, copies)]

    for sets in (nodes, sessions):
        assert len(set().union(*sets)) == sum(map(len, sets))
    assert hit_tokens(again) == copies * hit_tokens(trace)
    assert (np.diff(again.arrival_us) >= 0).all()


def test_a_tiled_trace_is_written_and_read(tmp_path: Path) -> None:
    trace = tiled(apply_overlay(load_trace("chat", limit=30), "fork:every=5,n=3", seed=1), 3)
    write_trace(trace, tmp_path / "tiled.jsonl")
    again = load_trace(tmp_path / "tiled.jsonl")

    assert content_hash(again) == content_hash(trace)
    assert [fill.name for fill in again.filled] == [fill.name for fill in trace.filled]
    assert (again.rows_read, again.rows_added) == (trace.rows_read, trace.rows_added)
    assert tuple(again.request_ids) == tuple(trace.request_ids)


def test_tiles_of_tiles() -> None:
    twice = tiled(tiled(sample(), 2), 3)

    assert (len(twice), twice.request_ids[-1], twice.rows_read) == (24, "r3~1~2", 6)
    assert [fill.rule for fill in twice.filled] == ["repeat:copies=2", "repeat:copies=3"]
