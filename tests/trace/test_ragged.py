"""Work on whole columns, against the loop over requests that it stands for."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.trace import ragged
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import ABSENT
from kvsuite.trace.ragged import (
    constant,
    dense,
    first_appearance,
    offsets_of,
    ragged_rows,
    repeated,
    row_chunks,
    taken,
)

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import Int64Array

RUNS = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=9)
VALUES = st.lists(st.one_of(st.integers(0, 6), st.integers(-(2**60), 2**60)))


def column(values: list[int]) -> Int64Array:
    return np.array(values, np.int64)


def parted(runs: list[list[int]]) -> tuple[Int64Array, Int64Array]:
    return offsets_of(column([len(run) for run in runs])), column([value for run in runs for value in run])


def nodes_of(trace: Trace, row: int) -> list[int]:
    found: list[int] = trace.nodes[trace.node_offsets[row] : trace.node_offsets[row + 1]].tolist()
    return found


@given(RUNS, st.data())
def test_rows_of_a_ragged_column(runs: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(runs) - 1)))
    offsets, values = ragged_rows(*parted(runs), column(rows))

    found = [values[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]
    assert found == [runs[row] for row in rows]


@given(VALUES, st.integers(1, 4))
def test_numbers_by_first_appearance(values: list[int], chunk: int) -> None:
    numbers: dict[int, int] = {}
    expected = [numbers.setdefault(value, len(numbers)) for value in values]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "CHUNK", chunk)
        assert first_appearance(column(values)).tolist() == expected


@given(VALUES)
def test_dense_numbers_are_equal_where_values_are(values: list[int]) -> None:
    numbers, bound = dense(column(values))

    assert all(0 <= number < bound for number in numbers.tolist())
    assert first_appearance(numbers).tolist() == first_appearance(column(values)).tolist()


@given(RUNS, st.integers(1, 5))
def test_chunks_of_rows_are_all_rows_and_no_more_than_asked(runs: list[list[int]], chunk: int) -> None:
    offsets, _ = parted(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "CHUNK", chunk)
        found = list(row_chunks(offsets))

    assert [row for start, stop in found for row in range(start, stop)] == list(range(len(runs)))
    for start, stop in found:
        assert stop - start <= chunk
        assert stop - start == 1 or offsets[stop] - offsets[start] <= chunk


def test_a_constant_column_stays_one_and_takes_nothing() -> None:
    many = constant(10**12, ABSENT)

    assert (len(many), many[7]) == (10**12, ABSENT)
    assert taken(many, column([5, 9])).tolist() == [ABSENT, ABSENT]
    assert taken(many, column([5, 9])).strides == (0,)
    assert len(repeated(many, 3)) == 3 * 10**12
    assert repeated(column([1, 2]), 2).tolist() == [1, 2, 1, 2]
    assert pickle.loads(pickle.dumps(constant(3, 4))).tolist() == [4, 4, 4]
    assert (taken(constant(0, 1), column([])).tolist(), offsets_of(constant(2, 0)).tolist()) == (
        [],
        [0, 0, 0],
    )


@given(st.lists(st.integers(0, 199), max_size=30, unique=True), st.sampled_from(["churn", "chat"]))
def test_a_selection_is_its_requests_one_by_one(rows: list[int], name: str) -> None:
    trace = load_trace(name)
    kept = {row for row in rows if row < len(trace)}
    kept = {row for row in kept if trace.parent[row] == ABSENT or int(trace.parent[row]) in kept}
    kept = {row for row in kept if trace.parent[row] == ABSENT or int(trace.parent[row]) in kept}
    order = sorted(kept)
    part = trace.select(column(order))

    for place, row in enumerate(order):
        old, new = trace[row], part[place]
        parent = None if old.parent is None else order.index(old.parent)
        assert (new.index, new.parent) == (place, parent)
        names = ("request_id", "arrival_us", "prompt_tokens", "output_tokens", "max_output_tokens", "scope")
        more = ("fork_kind", "fork_at", "cancel_after", "cancel_at_us", "session", "turn", "priority")
        for field in (*names, *more):
            assert getattr(new, field) == getattr(old, field), field
        assert nodes_of(part, place) == nodes_of(trace, row)
