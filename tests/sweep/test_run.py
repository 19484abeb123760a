"""Cells that fail, workers that die, and what is left of a sweep that was stopped."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import ConfigError, RecordError
from kvsuite.sweep.executors import Processes, Threads
from kvsuite.sweep.results import CellFailure, CellResult
from kvsuite.sweep.run import run_cells
from kvsuite.sweep.store import CellStore
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.options import TraceOptions
from tests.sweep.conftest import CULPRIT, SIZES, Probes, cells_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.sweep.cells import Cell


class Inline(Executor):
    """Runs what is submitted at once, in this thread; ``before`` may break it or raise in its place."""

    def __init__(self, before: Callable[[Cell], None] = lambda cell: None) -> None:
        self.before = before
        self.ran: list[str] = []
        self.ended: list[bool] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self.before(args[0])
            self.ran.append(args[0].name)
            future.set_result(fn(*args, **kwargs))
        except BrokenExecutor:
            raise
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.ended.append(wait)


def spawned_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


def figures(outcome: CellResult | CellFailure) -> tuple[object, ...]:
    assert isinstance(outcome, CellResult)
    row = outcome.row
    return (row.option, row.slack_share, row.hit_tokens, row.steps, outcome.digest)


def test_a_killed_worker_costs_one_retry_of_the_cell_it_ran(boundary: TraceRef, probes: Probes) -> None:
    cells = cells_of(boundary, "probe-dies-once")
    results = run_cells(cells, partial(Processes, 2))
    assert results.failures == ()
    assert results.retried == ("block 16",)
    assert probes.openings() == {size: 2 if size == CULPRIT else 1 for size in SIZES}
    sound = run_cells(cells_of(boundary, core="step"), Inline)
    assert [figures(outcome) for outcome in results.outcomes] == [figures(o) for o in sound.outcomes]


def test_a_cell_that_always_dies_is_named_and_the_others_stand(boundary: TraceRef, probes: Probes) -> None:
    results = run_cells(cells_of(boundary, "probe-dies"), partial(Processes, 2))
    (failure,) = results.failures
    assert (failure.row.option, failure.error, failure.attempts) == ("block 16", "its worker died", 2)
    assert failure.row.failed == "its worker died"
    assert [row.option for row in results.rows if row.failed is None] == [
        "block 4",
        "block 8",
        "block 32",
        "contiguous-exact",
    ]
    assert probes.openings() == {size: 2 if size == CULPRIT else 1 for size in SIZES}


def test_a_pool_that_breaks_as_a_whole_loses_no_cell_but_the_one_that_broke_it(
    boundary: TraceRef, probes: Probes
) -> None:
    results = run_cells(cells_of(boundary, "probe-dies"), spawned_pool)
    assert [failure.row.option for failure in results.failures] == ["block 16"]
    assert [row.steps is not None for row in results.rows] == [True, True, False, True, True]
    assert probes.openings()[CULPRIT] == 2


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_an_exception_of_the_cell_itself_is_retried_and_named(
    retries: int, boundary: TraceRef, probes: Probes
) -> None:
    results = run_cells(cells_of(boundary, "probe-raises"), partial(Threads, 2), retries=retries)
    (failure,) = results.failures
    assert "the probe has lost its way" in failure.error
    assert failure.attempts == 1 + retries
    assert failure.exit_code == 2
    assert probes.openings() == {size: 1 + retries if size == CULPRIT else 1 for size in SIZES}
    assert [row.steps is not None for row in results.rows] == [True, True, False, True, True]


def test_an_executor_that_takes_nothing_any_more_is_replaced(boundary: TraceRef) -> None:
    made: list[Inline] = []

    def breaks_at_the_third(cell: Cell) -> None:
        if len(made) == 1 and len(made[0].ran) == 2:
            raise BrokenExecutor

    def make() -> Inline:
        made.append(Inline(breaks_at_the_third))
        return made[-1]

    results = run_cells(cells_of(boundary), make)
    assert [executor.ran for executor in made] == [
        ["block 4", "block 8"],
        ["block 16", "block 32", "contiguous-exact"],
    ]
    assert (results.failures, [executor.ended for executor in made]) == ((), [[False], [True]])


def test_an_executor_that_cannot_be_made_ends_the_sweep(boundary: TraceRef) -> None:
    def make() -> Executor:
        raise ConfigError("no cluster there")

    with pytest.raises(ConfigError, match="no cluster there"):
        run_cells(cells_of(boundary), make)


def test_results_come_in_the_order_of_the_cells(boundary: TraceRef) -> None:
    class Backwards(Inline):
        def __init__(self) -> None:
            super().__init__()
            self.waiting: list[tuple[Future[Any], Any, Any]] = []

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            self.waiting.append((future, fn, args))
            if len(self.waiting) == len(SIZES) + 1:
                for late, call, given in reversed(self.waiting):
                    self.ran.append(given[0].name)
                    late.set_result(call(*given))
            return future

    executor = Backwards()
    results = run_cells(cells_of(boundary), lambda: executor)
    assert executor.ran == ["contiguous-exact", "block 32", "block 16", "block 8", "block 4"]
    assert [row.option for row in results.rows] == executor.ran[::-1]
    assert results.outcomes == run_cells(cells_of(boundary), Inline).outcomes


def test_a_second_run_takes_what_is_done_and_runs_the_rest(
    boundary: TraceRef, probes: Probes, tmp_path: Path
) -> None:
    store = CellStore(tmp_path / "cells")
    first = run_cells(cells_of(boundary, "probe-steady", (4, 8)), Inline, store=store)
    assert (first.from_store, probes.openings()) == (0, {4: 1, 8: 1})
    both = run_cells(cells_of(boundary, "probe-steady"), Inline, store=store)
    assert both.from_store == 3
    assert probes.openings() == dict.fromkeys(SIZES, 1)
    assert both.outcomes == run_cells(cells_of(boundary, "probe-steady"), Inline).outcomes
    nothing_left = partial(pytest.fail, "nothing is left to run")
    everything = run_cells(cells_of(boundary, "probe-steady"), nothing_left, store=store)
    assert (everything.from_store, everything.outcomes) == (5, both.outcomes)
    other = tuple(replace(cell, watermark_blocks=1) for cell in cells_of(boundary, "probe-steady", (4,)))
    assert run_cells(other, Inline, store=store).from_store == 0


def test_a_damaged_file_is_named_and_its_cell_runs_again(
    boundary: TraceRef, probes: Probes, tmp_path: Path
) -> None:
    store, cells = CellStore(tmp_path / "cells"), cells_of(boundary, "probe-steady")
    first = run_cells(cells, Inline, store=store)
    path = store.path(cells[1])
    path.write_bytes(path.read_bytes()[:-40])
    again = run_cells(cells, Inline, store=store)
    assert again.from_store == 4
    assert len(again.damaged) == 1
    assert str(path) in again.damaged[0]
    assert probes.openings() == {4: 1, 8: 2, 16: 1, 32: 1}
    assert again.outcomes == first.outcomes
    assert run_cells(cells, Inline, store=store).from_store == 5


def test_an_interrupt_keeps_what_is_done(boundary: TraceRef, tmp_path: Path) -> None:
    def interrupt(cell: Cell) -> None:
        if cell.block_size == CULPRIT:
            raise KeyboardInterrupt

    executor, store = Inline(interrupt), CellStore(tmp_path / "cells")
    cells = cells_of(boundary)
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, lambda: executor, store=store)
    assert executor.ended == [False], "nobody waits for what still runs"
    assert [store.read(cell) is not None for cell in cells] == [True, True, False, True, True]
    results = run_cells(cells, Inline, store=store)
    assert results.from_store == 4
    assert results.outcomes == run_cells(cells, Inline).outcomes


def test_progress_counts_cells_and_names_those_that_run(boundary: TraceRef) -> None:
    told: list[tuple[int, int, tuple[str, ...]]] = []
    results = run_cells(cells_of(boundary), partial(Threads, 1), progress=lambda *said: told.append(said))
    assert results.failures == ()
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert (told[0], told[-1]) == ((0, 5, ()), (5, 5, ()))
    assert all(len(running) <= 1 for _, _, running in told)


def test_a_changed_trace_file_is_named(tmp_path: Path) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    path = tmp_path / "trace.csv"
    path.write_text(header + "0,5,1\n", encoding="utf-8")
    trace = TraceRef.read(str(path), TraceOptions())
    path.write_text(header + "0,6,1\n", encoding="utf-8")
    (failure, _) = run_cells(cells_of(trace, sizes=(16,)), partial(Processes, 1)).failures
    assert trace.content_hash in failure.error
    assert TraceRef.read(str(path), TraceOptions()).content_hash in failure.error


class Odd(Inline):
    """Gives something else than a future, or a future of something else."""

    def __init__(self, given: object) -> None:
        super().__init__()
        self.given = given

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.given  # type: ignore[return-value]


def ended(result: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(result)
    return future


class Full(Inline):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("full")


def test_an_executor_that_takes_nothing_is_bad_input(boundary: TraceRef) -> None:
    with pytest.raises(ConfigError, match="takes no cell: RuntimeError: full"):
        run_cells(cells_of(boundary), Full)
    with pytest.raises(ConfigError, match="returned a str, expected"):
        run_cells(cells_of(boundary), partial(Odd, "future"))


def test_a_result_that_is_none_is_a_failed_cell(boundary: TraceRef) -> None:
    (failure,) = run_cells(cells_of(boundary, sizes=(8,)), lambda: Odd(ended("done"))).failures
    assert "returned a str for the cell" in failure.error


class CannotEnd(Inline):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        raise RuntimeError("cannot end")


def test_an_executor_that_cannot_end_costs_nothing(boundary: TraceRef) -> None:
    assert run_cells(cells_of(boundary), CannotEnd).failures == ()


def test_a_store_that_cannot_be_written_is_told_before_any_cell_runs(
    boundary: TraceRef, tmp_path: Path
) -> None:
    (tmp_path / "cells").touch()
    inline = Inline()
    with pytest.raises(RecordError, match="choose another folder"):
        run_cells(cells_of(boundary), lambda: inline, store=CellStore(tmp_path / "cells"))
    assert inline.ran == []
