"""What a trace refuses to be, and how requests are cut out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.model import ABSENT, ForkKind, TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace


def sample() -> Trace:
    rows = [
        Row(
            request_id="a",
            timestamp=0,
            input_length=6,
            output_length=6,
            hash_ids=[1, 2],
            session_id="s",
            turn=1,
        ),
        Row(
            request_id="a.1", timestamp=0, input_length=6, output_length=5, parent="a", fork="beam", fork_at=9
        ),
        Row(request_id="b", timestamp=2, input_length=8, output_length=0, hash_ids=[1, 3], priority=4),
        Row(request_id="c", timestamp=3, input_length=3, output_length=2, cancel_at=4, max_output_length=9),
    ]
    return trace_of(rows, TraceSource("test", "test"), block_size=4)


def with_value(column: str, row: int, value: int) -> dict[str, Any]:
    values = getattr(sample(), column).copy()
    values[row] = value
    return {column: values}


def test_a_row_shows_absent_as_none() -> None:
    first, child, _, last = sample()

    assert (first.session, first.turn, first.priority, first.parent) == (0, 1, 0, None)
    assert (child.parent, child.fork_kind, child.fork_at) == (0, ForkKind.BEAM, 9)
    assert (last.cancel_at_us, last.cancel_after, last.arrival_us) == (4000, None, 3000)
    assert (last.max_output_tokens, first.max_output_tokens, last.final_tokens) == (9, None, 5)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (with_value("prompt_tokens", 3, 0), r"request c \(row 3\): prompt_tokens must be at least 1"),
        (with_value("output_tokens", 3, -2), "request c .*output_tokens must not be negative"),
        (with_value("prompt_tokens", 3, 2**31 - 2), "request c .*at most 2147483647 tokens"),
        (with_value("arrival_us", 2, -1), "request b .*arrivals must not go back"),
        (with_value("max_output_tokens", 3, 1), "request c .*must not be less than output_tokens"),
        (with_value("fork_kind", 1, 9), "request a.1 .*fork_kind must be one of .*SAMPLE"),
        (with_value("parent", 1, 2), "request a.1 .*a parent must stand before its child"),
        (with_value("parent", 1, ABSENT), "request a.1 .*both parent and kind"),
        (with_value("fork_at", 1, ABSENT), "request a.1 .*both parent and fork point"),
        (with_value("cancel_after", 3, 1), "request c .*exclude each other"),
        (with_value("cancel_after", 2, 1), "request b .*cancel_after must not be more than output_tokens"),
        (with_value("cancel_at_us", 3, 2999), "request c .*must not precede the arrival"),
        (with_value("turn", 2, 1), "request b .*a turn needs a session"),
        (with_value("hashed_tokens", 2, 9), "request b .*must not cover more than prompt and output"),
        (with_value("hashed_tokens", 1, 0), "request a.1 .*has its parent's prefix nodes"),
        (
            with_value("fork_at", 1, 5),
            "request a.1 .*fork_at 5 of parent a must lie between the shared prompt",
        ),
        (with_value("fork_at", 1, 12), "request a.1 .*fork_at 12 .*shorter of both final lengths .11"),
        (with_value("fork_kind", 1, ForkKind.SPAWN), "request a.1 .*a spawn shares 0"),
        (with_value("prompt_tokens", 1, 7), "request a.1 .*equal prompts"),
        (with_value("hashed_tokens", 2, 4), "request b .*2 prefix nodes of 4 tokens cannot cover 4 tokens"),
        (with_value("hashed_tokens", 3, 2), "request c .*0 prefix nodes of 4 tokens cannot cover 2 tokens"),
        ({"nodes": np.array([0, 1, 1, 2])}, "request b .*prefix node 1 .*one whole prefix"),
        ({"nodes": np.array([0, 1, 0, 1])}, "request b .*prefix node 1 .*one whole prefix"),
        ({"nodes": np.array([0, -1, 0, 2])}, "request a .*prefix node -1"),
        ({"block_size": 0}, "block size 0"),
        ({"priority": np.zeros(3, np.int64)}, r"column priority has shape \(3,\), expected \(4,\)"),
        ({"node_offsets": np.array([0, 2, 2, 4, 3])}, "node_offsets"),
        ({"rows_read": 5}, "5 rows read and 0 added, but 4 kept"),
        ({"rows_added": 1}, "4 rows read and 1 added, but 4 kept"),
        ({"request_ids": ("a", "b", "b", "c")}, r"request b \(row 2\): its id stands twice"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        replace(sample(), **columns)


def test_every_row_is_kept_dropped_or_added() -> None:
    trace = replace(sample(), rows_read=6, rows_added=1, dropped={"zero_prompt": 3})

    assert trace.rows_read == len(trace) - 1 + 3


def test_head_takes_the_first_requests() -> None:
    trace = sample().head(3)

    assert trace.request_ids == ("a", "a.1", "b")
    assert trace.nodes.tolist() == [0, 1, 0, 2]
    assert trace.parent.tolist() == [ABSENT, 0, ABSENT]
    assert (trace.rows_read, len(sample().head(9))) == (3, 4)


def test_selected_parents_are_renumbered() -> None:
    rows = [
        Row(request_id="x", timestamp=0, input_length=2, output_length=2),
        Row(request_id="a", timestamp=0, input_length=2, output_length=2),
        Row(
            request_id="b", timestamp=0, input_length=2, output_length=2, parent="a", fork="sample", fork_at=2
        ),
    ]
    trace = trace_of(rows, TraceSource("test", "test"), block_size=0)

    assert trace.select(np.array([1, 2])).parent.tolist() == [ABSENT, 0]
    with pytest.raises(TraceError, match="request b is selected without its parent a"):
        trace.select(np.array([0, 2]))
