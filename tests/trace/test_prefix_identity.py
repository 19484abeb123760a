"""Prefix identity at any block size against token sequences written out, and the trie it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.trace.model import ABSENT, ForkKind, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent
from kvsuite.trace.trie import build_nodes

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.rows import Tail
    from kvsuite.trace.trie import RawId

SOURCE = TraceSource("test", "test")


@st.composite
def made_rows(draw: st.DrawFn) -> tuple[list[Row], int, Tail]:
    """Rows with ids from three symbols, so that prefixes recur, and forks of every kind."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    tail: Tail = draw(st.sampled_from(["ceil", "floor"]))
    rows: list[Row] = []
    for index in range(draw(st.integers(2, 6))):
        forked = index > 0 and draw(st.booleans())
        prompt, output = draw(st.integers(1, 20)), draw(st.integers(0, 8))
        row = Row(request_id=f"r{index}", timestamp=0, input_length=prompt, output_length=output)
        if forked:
            parent = draw(st.sampled_from(rows))
            row.parent, row.input_length = parent.request_id, parent.input_length
            row.fork_at = parent.input_length + draw(st.integers(0, parent.output_length))
            row.fork = "sample" if row.fork_at == parent.input_length else "beam"
            row.output_length = row.fork_at - row.input_length + output
        elif draw(st.booleans()):
            finished = draw(st.booleans())
            covered = prompt + output if finished else prompt
            count = -(-covered // size) if tail == "ceil" else covered // size
            ids: list[RawId] = draw(st.lists(st.sampled_from([0, 1, 2]), min_size=count, max_size=count))
            row.output_hash_ids, row.hash_ids = (ids, None) if finished else (None, ids)
        rows.append(row)
    return rows, size, tail


def written_out(rows: list[Row], index: int, size: int, tail: Tail, length: int) -> list[object]:
    """Return a request's tokens one by one: each names the raw ids up to it, or its request alone."""
    row = rows[index]
    if row.parent is not None:
        parent = next(k for k, other in enumerate(rows) if other.request_id == row.parent)
        assert row.fork_at is not None
        shared = written_out(rows, parent, size, tail, row.fork_at)
        return (shared + [("own", index, at) for at in range(row.fork_at, length)])[:length]
    finished = row.output_hash_ids is not None
    ids = (row.output_hash_ids if finished else row.hash_ids) or []
    covered = row.input_length + (row.output_length if finished else 0)
    if tail == "floor":
        covered -= covered % size
    tokens: list[object] = []
    for at in range(length):
        block = at // size
        if not ids or at >= covered:
            tokens.append(("own", index, at))
        elif (block + 1) * size <= covered:
            tokens.append(("full", ids[block], at))
        else:
            tokens.append(("part", ids[block], covered % size, at))
    return tokens


@given(made_rows(), st.integers(1, 9))
def test_blocks_share_an_identity_exactly_when_their_prefixes_are_the_same_tokens(
    made: tuple[list[Row], int, Tail], engine_block: int
) -> None:
    rows, size, tail = made
    trace = trace_of(rows, SOURCE, block_size=size, tail=tail)
    blocks = []
    for index, row in enumerate(rows):
        length = row.input_length + row.output_length
        tokens = written_out(rows, index, size, tail, length)
        keys = trace.content(index).block_keys(engine_block, length // engine_block)
        blocks += [(key, tokens[: (k + 1) * engine_block]) for k, key in enumerate(keys)]

    for key, tokens in blocks:
        for other, others in blocks:
            assert (key == other) == (tokens == others)


@given(made_rows())
def test_equal_tags_are_equal_tokens(made: tuple[list[Row], int, Tail]) -> None:
    rows, size, tail = made
    trace = trace_of(rows, SOURCE, block_size=size, tail=tail)
    contents = [
        (written_out(rows, k, size, tail, length), trace.content(k).tags(0, length))
        for k, row in enumerate(rows)
        if (length := row.input_length + row.output_length)
    ]

    for tokens, tags in contents:
        for others, other_tags in contents:
            shared = min(len(tokens), len(others))
            same = [tokens[: at + 1] == others[: at + 1] for at in range(shared)]
            np.testing.assert_array_equal(tags[:shared] == other_tags[:shared], same)


def test_nodes_by_hand() -> None:
    # 10 tokens at 4 a block: two full, one partial of 2; the same ids with a tail of 1; another root.
    offsets, nodes = build_nodes(
        [[70, 71, 72], [70, 71, 72], [70, 71, 72], [71], [70], []],
        [10, 10, 9, 4, 4, 0],
        4,
        [0, 0, 0, 0, 1, 0],
    )

    assert offsets.tolist() == [0, 3, 6, 9, 10, 11, 11]
    assert nodes.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 5]


def test_number_and_text_are_different_ids() -> None:
    _, nodes = build_nodes([[7], ["7"]], [4, 4], 4, [0, 0])

    assert nodes.tolist() == [0, 1]


def two_requests() -> Trace:
    rows = [
        Row(request_id="p", timestamp=0, input_length=6, output_length=6, hash_ids=[1, 2]),
        Row(request_id="q", timestamp=0, input_length=8, output_length=0, hash_ids=[1, 3]),
        Row(timestamp=0, input_length=6, output_length=5, parent="p", fork="beam", fork_at=9),
    ]
    return trace_of(rows, SOURCE, block_size=4)


def test_content_by_hand() -> None:
    trace = two_requests()

    # Nodes: 0 = id 1, 1 = id 2 of 2 tokens after it, 2 = id 3; private keys follow from 3.
    assert trace.num_nodes == 3
    assert (trace.content(0).keys, trace.content(0).ends) == ((0, 1, 3), (4, 6))
    assert (trace.content(1).keys, trace.content(1).ends) == ((0, 2, 4), (4, 8))
    assert (trace.content(2).keys, trace.content(2).ends) == ((0, 1, 3, 5), (4, 6, 9))
    assert trace.hashed_tokens.tolist() == [6, 8, ABSENT]
    assert trace.fork_kind.tolist() == [ABSENT, ABSENT, ForkKind.BEAM]
    assert trace.children == {0: (2,)}


def test_a_prompt_is_a_run_of_its_content() -> None:
    trace = two_requests()
    first, second = trace.prompt(0), trace.prompt(1)

    assert (len(first), len(second)) == (6, 8)
    assert first.block_keys(4) == second.block_keys(4)[:1]
    assert first.tags()[:4].tolist() == second.tags()[:4].tolist()
    assert not set(first.tags()[4:].tolist()) & set(second.tags()[4:].tolist())
    ids = first.token_ids(50)
    assert ids.min() >= 0
    assert ids.max() < 50
    assert ids[:4].tolist() == second.token_ids(50)[:4].tolist()


@pytest.mark.parametrize(
    ("at", "keys", "ends"),
    [
        (0, (91,), ()),
        (3, (3, 91), (3,)),
        (8, (3, 91), (8,)),
        (9, (3, 4, 91), (8, 9)),
        (20, (3, 4, 90, 91), (8, 12, 20)),
    ],
)
def test_a_fork_keeps_what_lies_before_it(at: int, keys: tuple[int, ...], ends: tuple[int, ...]) -> None:
    content = TokenContent((3, 4, 90), (8, 12)).forked(at, 91)

    assert (content.keys, content.ends) == (keys, ends)


def test_segments_without_their_ends_are_refused() -> None:
    with pytest.raises(ValueError, match="2 segment keys need 1 ends, got 0"):
        TokenContent((1, 2), ())
