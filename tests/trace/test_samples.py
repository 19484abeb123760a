"""Samples that are grafted onto a trace, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.model import ABSENT, ForkKind, Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.samples import with_samples


def family() -> Trace:
    """Return ``a`` (8 prompt tokens in two prefix blocks, 5 answers), its beam ``b``, and ``c``."""
    return trace_of(
        [
            Row(request_id="a", timestamp=0, input_length=8, output_length=5, hash_ids=[1, 2], scope="x"),
            Row(
                request_id="b",
                timestamp=0,
                input_length=8,
                output_length=5,
                parent="a",
                fork="beam",
                fork_at=9,
                scope="x",
            ),
            Row(request_id="c", timestamp=4, input_length=3, output_length=2, hash_ids=[3], cancel_at=9),
        ],
        TraceSource("test", "t"),
        block_size=4,
    )


def test_samples_stand_after_their_parents_and_go_one_token_further() -> None:
    trace = with_samples(family(), np.array([2, 0, 0]), np.array([4, 10, 11]))

    assert [str(name).partition("/")[0] for name in trace.request_ids] == ["a", "a", "a", "b", "c", "c"]
    assert len(set(trace.request_ids)) == 6
    assert trace.parent.tolist() == [ABSENT, 0, 0, 0, ABSENT, 4]
    assert trace.fork_kind.tolist()[1:4] == [ForkKind.SAMPLE, ForkKind.SAMPLE, ForkKind.BEAM]
    assert trace.fork_at.tolist() == [ABSENT, 10, 11, 9, ABSENT, 4]
    # Shared answers are 10 - 8, 11 - 8 and 4 - 3, and one is its own.
    assert trace.output_tokens.tolist() == [5, 3, 4, 5, 2, 2]
    assert trace.prompt_tokens.tolist() == [8, 8, 8, 8, 3, 3]
    assert trace.cancel_at_us.tolist() == [ABSENT] * 4 + [9000, ABSENT]
    assert trace.arrival_us.tolist() == [0, 0, 0, 0, 4000, 4000]
    assert trace.scopes == ("x", "x", "x", "x", "", "")
    assert (trace.rows_added, trace.rows_read) == (3, 3)


def test_prefix_nodes_stay_with_those_that_had_them() -> None:
    before, trace = family(), with_samples(family(), np.array([0]), np.array([10]))

    assert trace.node_offsets.tolist() == [0, 2, 2, 2, 3]
    assert trace.nodes.tolist() == before.nodes.tolist()
    assert trace.hashed_tokens.tolist() == [8, ABSENT, ABSENT, 3]
    parent, sample = before.content(0).tags(0, 11), trace.content(1).tags(0, 11)
    assert sample[:10].tolist() == parent[:10].tolist()
    assert sample[10] != parent[10]


def test_those_that_stand_behind_samples_keep_their_parents_and_clients() -> None:
    """``early`` has a sample, so that ``late`` and its beam stand one place further down."""
    trace = trace_of(
        [
            Row(request_id="early", timestamp=0, input_length=4, output_length=3, cancel_after=2),
            Row(request_id="late", timestamp=1, input_length=4, output_length=3),
            Row(
                request_id="beam",
                timestamp=1,
                input_length=4,
                output_length=3,
                parent="late",
                fork="beam",
                fork_at=5,
            ),
        ],
        TraceSource("test", "t"),
        block_size=0,
    )
    found = with_samples(trace, np.array([0]), np.array([5]))
    assert found.parent.tolist() == [ABSENT, 0, ABSENT, 2]
    assert found.cancel_after.tolist() == [2, ABSENT, ABSENT, ABSENT]


def test_without_samples_it_is_the_same_trace() -> None:
    none = np.zeros(0, np.int64)
    trace = with_samples(family(), none, none)
    assert trace.request_ids == family().request_ids
    assert trace.fork_at.tolist() == family().fork_at.tolist()


def test_a_point_before_the_answer_is_refused() -> None:
    with pytest.raises(TraceError, match="fork_at 7 of parent a must lie between the shared prompt"):
        with_samples(family(), np.array([0]), np.array([7]))
