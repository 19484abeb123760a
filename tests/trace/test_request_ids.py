"""Ids that nobody stores: each sequence is the tuple it stands for."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.model import RequestId, Trace, TraceSource
from kvsuite.trace.request_ids import NumberedIds, PickedIds, RuledIds, TiledIds, are_distinct, picked
from kvsuite.trace.rows import Row, trace_of

GIVEN = (RequestId("a"), RequestId("b~1"), RequestId("b"))
SEQUENCES: dict[str, tuple[RuledIds, tuple[str, ...]]] = {
    "numbered": (NumberedIds(4), ("r0", "r1", "r2", "r3")),
    "none": (NumberedIds(0), ()),
    "picked": (PickedIds(NumberedIds(9), np.array([7, 0, 3])), ("r7", "r0", "r3")),
    "tiled": (TiledIds(GIVEN, 2), ("a~0", "b~1~0", "b~0", "a~1", "b~1~1", "b~1")),
    "tiled twice": (TiledIds(TiledIds(NumberedIds(1), 2), 2), ("r0~0~0", "r0~1~0", "r0~0~1", "r0~1~1")),
    "picked of tiled": (PickedIds(TiledIds(NumberedIds(2), 2), np.array([3, 1])), ("r1~1", "r1~0")),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_is_the_tuple_it_stands_for(name: str) -> None:
    ids, expected = SEQUENCES[name]

    assert ids == expected
    assert expected == ids
    assert (len(ids), list(ids), hash(ids)) == (len(expected), list(expected), hash(expected))
    assert [ids[k] for k in range(-len(ids), len(ids))] == [*expected, *expected]
    assert ids[1:] == expected[1:]
    assert ids[::-2] == expected[::-2]
    assert pickle.loads(pickle.dumps(ids)) == ids
    assert ids != (*expected, "x")
    assert ids != (*expected[:-1], "x")
    assert ids.distinct
    for beyond in (len(ids), -len(ids) - 1):
        with pytest.raises(IndexError):
            ids[beyond]


def test_ids_that_stand_twice_are_known_without_making_them() -> None:
    numbers = NumberedIds(5)

    assert not PickedIds(numbers, np.array([3, 1, 3])).distinct
    assert not TiledIds((*GIVEN, GIVEN[0]), 2).distinct
    assert not PickedIds(TiledIds(GIVEN, 2), np.array([4, 4])).distinct
    assert are_distinct(GIVEN)
    assert not are_distinct((*GIVEN, GIVEN[2]))


def test_what_is_picked_of_picked_ids_holds_on_to_the_first_alone() -> None:
    again = picked(PickedIds(NumberedIds(9), np.array([7, 0, 3])), np.array([2, 0]))

    assert isinstance(again, PickedIds)
    assert isinstance(again.ids, NumberedIds)
    assert tuple(again) == ("r3", "r7")
    assert picked(GIVEN, np.array([2, 0])) == ("b", "a")


def rows(*names: str | None) -> Trace:
    made = [Row(request_id=name, timestamp=0, input_length=1, output_length=0) for name in names]
    return trace_of(made, TraceSource("test", "t"), block_size=0)


def test_ids_are_stored_only_where_one_is_not_that_of_its_row() -> None:
    assert rows(None, "r1", None).request_ids == NumberedIds(3)
    assert isinstance(rows(None, "r1", None).request_ids, NumberedIds)
    assert rows(None, None, "q").request_ids == ("r0", "r1", "q")


def test_an_id_that_takes_that_of_another_row_is_refused() -> None:
    with pytest.raises(TraceError, match=r"request r2 @ line 2: its id stands twice"):
        rows(None, "r2", None)


def test_a_selection_of_numbered_requests_keeps_their_names() -> None:
    trace = rows(*[None] * 6)
    part = trace.select(np.array([5, 2])).select(np.array([1]))

    assert part.request_ids == ("r2",)
    assert trace.head(2).request_ids == ("r0", "r1")
    with pytest.raises(TraceError, match=r"request r2 \(row 1\): its id stands twice"):
        trace.select(np.array([2, 2]))
    assert replace(trace, request_ids=tuple(trace.request_ids)).request_ids == trace.request_ids
