"""Block size and tail rule from counts of ids, against trying every size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.readers.blocks import IdCounts, settle_blocks, settle_tail
from kvsuite.trace.rows import LABELS, TAILS, Tail


def counts(pairs: list[tuple[int, int]]) -> IdCounts:
    return IdCounts(
        LABELS,
        "hash_ids",
        np.arange(1, len(pairs) + 1),
        np.array([tokens for tokens, _ in pairs], np.int64),
        np.array([ids for _, ids in pairs], np.int64),
    )


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=3))
def test_fitting_sizes_are_those_that_trying_finds(pairs: list[tuple[int, int]]) -> None:
    sizes = [1 << k for k in range(21)]

    for tail in TAILS:
        tried = [
            size
            for size in sizes
            if all(ids == (-(-tokens // size) if tail == "ceil" else tokens // size) for tokens, ids in pairs)
        ]
        assert counts(pairs).fitting_sizes(tail) == tried


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    st.sampled_from([1, 16, 64, 512]),
    st.sampled_from(TAILS),
)
def test_what_is_settled_is_true_of_every_file(lengths: list[int], size: int, tail: Tail) -> None:
    pairs = [(n, -(-n // size) if tail == "ceil" else n // size) for n in lengths]
    pairs = [(tokens, ids) for tokens, ids in pairs if ids]
    try:
        found = settle_blocks(counts(pairs), 512, None) if pairs else (512, "ceil")
    except AmbiguousTrace:
        return

    # Either the truth, or (where every length is a multiple) the rule that says the same of it.
    assert found[0] == 512
    if pairs:
        assert size == 512
        assert found[1] == tail or all(tokens % 512 == 0 for tokens, _ in pairs)


def test_whole_blocks_only_leave_no_rule_to_doubt() -> None:
    assert settle_blocks(counts([(1024, 2), (5120, 10)]), 512, None) == (512, "ceil")
    assert settle_tail(counts([(1024, 2), (5120, 10)]), 512, None) == "ceil"


@pytest.mark.parametrize("tail", TAILS)
def test_the_rule_that_rows_tell_apart_is_named(tail: Tail) -> None:
    good = (1000, 2) if tail == "ceil" else (1000, 1)

    with pytest.raises(
        TraceError, match=rf"7 ids for 1000 tokens @ line 3 .*\(512 tokens an id, {tail} rule\)"
    ):
        settle_tail(counts([(1024, 2), good, (1000, 7)]), 512, None)
