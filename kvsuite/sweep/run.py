"""Cells through any `concurrent.futures.Executor`: retried, named when they fail, never lost once done.

Results come in the order of the cells, whatever the order in which they were done and by how many workers.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError, KvsuiteError, RecordError
from kvsuite.sweep.cells import run_cell
from kvsuite.sweep.results import CellFailure, CellResult, failed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from kvsuite.record.schema import SweepRow
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.store import CellStore

    Progress = Callable[[int, int, tuple[str, ...]], None]
    """Cells done, cells in all, and the names of those known to run now."""

GLANCE_S = 0.25
"""How often it is looked at what runs now, where somebody watches."""
BAD_INPUT = KvsuiteError.exit_code


@dataclass(frozen=True, slots=True)
class Results:
    """What the cells of a sweep came to, one a cell, in the order of the cells."""

    outcomes: tuple[CellResult | CellFailure, ...]
    from_store: int = 0
    """Cells that had been done before."""
    retried: tuple[str, ...] = ()
    """Cells that ran more than once, by name."""
    damaged: tuple[str, ...] = ()
    """Files of the store that could not be read, each with the reason; their cells ran again."""

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """The row of every cell."""
        return tuple(outcome.row for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[CellFailure, ...]:
        """The cells that came to nothing."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, CellFailure))


def run_cells(
    cells: Sequence[Cell],
    make_executor: Callable[[], Executor],
    *,
    store: CellStore | None = None,
    retries: int = 1,
    progress: Progress | None = None,
) -> Results:
    """Run every cell that ``store`` does not hold.

    A cell fails when its worker dies, when the way to it breaks, or by an exception of its own code. When
    all others are done, each that failed is tried again by itself, up to ``retries`` times: an executor that
    breaks as a whole takes innocent cells with it, and alone a cell breaks only its own. A broken executor is
    replaced. What still fails is a `CellFailure`, and the others stand.

    An interrupt stops what runs and is raised; ``store`` has the cells that were done.

    **Raises:** whatever ``make_executor`` raises, and `RecordError` when the store cannot be written.
    """
    if store is not None:
        store.check()
    sweep = _Sweep(cells, make_executor, store, progress)
    try:
        failed = sweep.run_all([index for index in range(len(cells)) if sweep.outcomes[index] is None])
        for index in failed:
            for _ in range(retries):
                if not sweep.run_all([index]):
                    break
    except BaseException:
        sweep.stop()
        raise
    sweep.end()
    return sweep.results()


@dataclass
class _Sweep:
    cells: Sequence[Cell]
    make_executor: Callable[[], Executor]
    store: CellStore | None
    progress: Progress | None
    executor: Executor | None = None
    from_store: int = 0
    attempts: list[int] = field(default_factory=list)
    outcomes: list[CellResult | CellFailure | None] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    pending: dict[Future[CellResult], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attempts = [0] * len(self.cells)
        self.outcomes = [self._stored(cell) for cell in self.cells]
        self.from_store = len(self.cells) - self.outcomes.count(None)
        self._tell()

    def run_all(self, indices: Iterable[int]) -> list[int]:
        """Run cells side by side and return those that failed."""
        indices = list(indices)
        for index in indices:
            self._submit(index)
        glance_s = None if self.progress is None else GLANCE_S
        while self.pending:
            done, _ = wait(self.pending, glance_s, FIRST_COMPLETED)
            for future in done:
                self._take(self.pending.pop(future), future)
            self._tell()
        return [index for index in indices if isinstance(self.outcomes[index], CellFailure)]

    def stop(self) -> None:
        """Give up what waits and stop what runs; what is done already is kept."""
        try:
            for future, index in self.pending.items():
                if not future.cancel() and future.done() and future.exception() is None:
                    self._take(index, future)
        finally:
            self._leave(wait_for_it=False)

    def end(self) -> None:
        """Let the executor go."""
        self._leave(wait_for_it=True)

    def results(self) -> Results:
        outcomes = tuple(outcome for outcome in self.outcomes if outcome is not None)
        retried = [cell.name for cell, count in zip(self.cells, self.attempts, strict=True) if count > 1]
        return Results(outcomes, self.from_store, tuple(retried), tuple(self.damaged))

    def _stored(self, cell: Cell) -> CellResult | None:
        if self.store is None:
            return None
        try:
            return self.store.read(cell)
        except RecordError as damage:
            self.damaged.append(str(damage))
            return None

    def _submit(self, index: int) -> None:
        """Hand a cell to the executor, or to another where the old one takes nothing any more."""
        self.attempts[index] += 1
        if self.executor is not None:
            try:
                self.pending[self.executor.submit(run_cell, self.cells[index])] = index
            except Exception:  # whatever an executor of somebody else's raises when it is broken
                self._leave(wait_for_it=False)
            else:
                return
        self.executor = self.make_executor()
        try:
            future = self.executor.submit(run_cell, self.cells[index])
        except Exception as error:
            raise ConfigError(
                f"the executor takes no cell: {type(error).__name__}: {error}; give other --workers"
            ) from error
        if not isinstance(future, Future):
            raise ConfigError(
                f"the executor returned a {type(future).__name__}, expected a concurrent.futures.Future"
            )
        self.pending[future] = index

    def _take(self, index: int, future: Future[CellResult]) -> None:
        cell = self.cells[index]
        try:
            result = future.result()
            if not isinstance(result, CellResult):
                raise TypeError(f"the executor returned a {type(result).__name__} for the cell")
        except (Exception, CancelledError, SystemExit) as error:
            self.outcomes[index] = _failure(cell, error, self.attempts[index])
            return
        self.outcomes[index] = result
        if self.store is not None:
            self.store.write(cell, result)

    def _leave(self, *, wait_for_it: bool) -> None:
        if self.executor is not None:
            executor, self.executor = self.executor, None
            with suppress(Exception):  # one of somebody else's: what is done is done
                executor.shutdown(wait=wait_for_it)

    def _tell(self) -> None:
        if self.progress is not None:
            done = sum(outcome is not None for outcome in self.outcomes)
            running = tuple(
                self.cells[index].name for future, index in self.pending.items() if future.running()
            )
            self.progress(done, len(self.cells), running)


def _failure(cell: Cell, error: BaseException, attempts: int) -> CellFailure:
    if isinstance(error, BrokenExecutor):
        said = "its worker died"
    elif isinstance(error, KvsuiteError):
        said = str(error)
    else:
        said = f"{type(error).__name__}: {error}"
    exit_code = error.exit_code if isinstance(error, KvsuiteError) else BAD_INPUT
    return CellFailure(failed_row(cell, said), said, exit_code, attempts)
