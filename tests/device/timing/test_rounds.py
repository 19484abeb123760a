"""Tasks in rounds: every round whole, in an order of its own."""

from __future__ import annotations

import pytest

from kvsuite.device.timing.grid import CPU_GRID, CUDA_GRID, SMALL_GRID, Grid
from kvsuite.device.timing.rounds import Load, Task, What, in_rounds
from kvsuite.errors import ConfigError


def tasks(called: list[int], count: int = 5) -> list[Task]:
    def task(number: int) -> Task:
        def measure() -> tuple[float, float]:
            called.append(number)
            return float(len(called)), -float(number)

        load = Load(sequences=number)
        return Task((What(part="first", load=load), What(part="second", load=load)), measure)

    return [task(number) for number in range(count)]


def test_every_round_is_whole_and_has_its_own_order() -> None:
    called: list[int] = []
    in_rounds(tasks(called), 9)
    rounds = [tuple(called[start : start + 5]) for start in range(0, 45, 5)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in rounds)
    assert len(set(rounds)) > 5


def test_a_timing_has_its_own_rounds_in_order() -> None:
    called: list[int] = []
    timings = in_rounds(tasks(called, 3), 4)
    assert [(timing.what.part, timing.what.load.sequences) for timing in timings] == [
        (part, number) for number in range(3) for part in ("first", "second")
    ]
    for timing in timings:
        number = timing.what.load.sequences
        places = [float(place + 1) for place, who in enumerate(called) if who == number]
        assert list(timing.rounds_us) == (places if timing.what.part == "first" else [-number] * 4)


def test_the_same_seed_gives_the_same_order_and_progress_counts_to_the_end() -> None:
    first: list[int] = []
    again: list[int] = []
    other: list[int] = []
    told: list[tuple[int, int]] = []
    in_rounds(tasks(first), 3, seed=1, progress=lambda done, total: told.append((done, total)))
    in_rounds(tasks(again), 3, seed=1)
    in_rounds(tasks(other), 3, seed=2)
    assert first == again != other
    assert told == [(done, 15) for done in range(1, 16)]


@pytest.mark.parametrize("grid", [CPU_GRID, CUDA_GRID, SMALL_GRID])
def test_grids_that_come_along_have_nine_rounds_or_more(grid: Grid) -> None:
    assert grid.rounds >= 9


@pytest.mark.parametrize(
    "odd",
    [
        {"rounds": 8},
        {"points": ((2, 64), (2, 128))},
        {"points": ((1, 64), (2, 64))},
        {"batches": (4, 4)},
        {"chunks": ((8, 0), (16, 0))},
        {"tables": ((1, 8), (2, 8))},
    ],
)
def test_a_grid_that_cannot_tell_costs_apart_is_refused(odd: dict[str, object]) -> None:
    sound: dict[str, object] = {
        "points": ((1, 64), (2, 128)),
        "batches": (1, 4),
        "chunks": ((8, 0), (16, 0), (8, 8)),
        "tables": ((1, 8), (2, 8), (1, 16)),
    }
    Grid(**sound)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rounds|apart"):
        Grid(**(sound | odd))  # type: ignore[arg-type]
