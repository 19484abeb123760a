"""First fit over holes: by hand, and against a bitmap that is searched slot by slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsuite.engine.contiguous.holes import Holes
from kvsuite.errors import BlockError


def test_the_first_hole_that_fits_is_taken_not_the_best() -> None:
    holes = Holes(12)
    for _ in range(4):
        holes.take(3)
    holes.give_back(0, 3)
    holes.give_back(6, 3)
    holes.give_back(9, 3)
    assert holes.take(2) == 0
    assert holes.take(2) == 6  # the hole 2..3 is too small
    assert list(holes) == [(2, 3), (8, 12)]


@pytest.mark.parametrize("order", [(0, 2, 4), (4, 2, 0), (2, 0, 4), (0, 4, 2)])
def test_neighbours_become_one_hole(order: tuple[int, ...]) -> None:
    holes = Holes(6)
    holes.take(6)
    for start in order:
        holes.give_back(start, 2)
    assert list(holes) == [(0, 6)]
    assert (holes.largest, holes.free_slots) == (6, 6)


def test_a_run_grows_only_into_the_hole_behind_it() -> None:
    holes = Holes(8)
    holes.take(2)
    holes.take(2)
    holes.give_back(0, 2)
    assert holes.take_at(4, 3)
    assert not holes.take_at(7, 2)  # one slot is left there
    assert not holes.take_at(1, 1)  # free, but no hole begins there
    assert not holes.take_at(2, 1)
    assert list(holes) == [(0, 2), (7, 8)]


@pytest.mark.parametrize(("start", "size"), [(0, 1), (1, 2), (3, 3), (4, 1), (-1, 1), (7, 2), (2, 0)])
def test_giving_back_what_is_not_taken_is_refused_and_changes_nothing(start: int, size: int) -> None:
    holes = Holes(8)
    holes.take(8)
    holes.give_back(0, 2)
    holes.give_back(4, 2)
    with pytest.raises(BlockError, match=f"slots {start}..{start + size} of 8 are given back"):
        holes.give_back(start, size)
    assert (list(holes), holes.free_slots) == ([(0, 2), (4, 6)], 4)


def first_fit(free: list[bool], size: int) -> int | None:
    return next((at for at in range(len(free) - size + 1) if all(free[at : at + size])), None)


def longest(free: list[bool]) -> int:
    return max(len(run) for run in "".join("x" if slot else " " for slot in free).split(" "))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 7), st.integers(0, 9)), max_size=40))
@settings(max_examples=120, deadline=None)
def test_it_places_as_a_search_of_every_slot_does(steps: list[tuple[bool, int, int]]) -> None:
    holes, free = Holes(24), [True] * 24
    runs: list[tuple[int, int]] = []
    for takes, size, which in steps:
        if takes:
            start = first_fit(free, size)
            assert holes.take(size) == start
            if start is not None:
                runs.append((start, size))
                free[start : start + size] = [False] * size
        elif runs:
            start, size = runs.pop(which % len(runs))
            holes.give_back(start, size)
            free[start : start + size] = [True] * size
        assert holes.free_slots == sum(free)
        assert holes.largest == longest(free)
        assert [slot for begin, end in holes for slot in range(begin, end)] == [
            slot for slot, is_free in enumerate(free) if is_free
        ]
