"""Where cells run: threads, processes, a Dask cluster, or any executor that a callable returns.

All are `concurrent.futures.Executor`. One that is shut down without waiting stops what still runs on it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from kvsuite.errors import ConfigError
from kvsuite.sweep.stopping import stop_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvsuite.sweep.cells import Cell

P = ParamSpec("P")
R = TypeVar("R")

EXPECTED = "threads:N, processes:N, dask, dask:N, dask:ADDRESS or package.module:function"


class Threads(ThreadPoolExecutor):
    """Threads of this process. The compiled core holds no lock, so its cells run side by side."""

    def __init__(self, count: int) -> None:
        self._stop = threading.Event()
        super().__init__(count, "kvsuite-cell", initializer=stop_by, initargs=(self._stop,))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End when all is done; without ``wait``, let running cells end at their next report of progress."""
        if not wait:
            self._stop.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


_GRACE_S = 5.0
"""What processes that were told to end are given."""


class Processes(Executor):
    """Slots of one process each: a process that dies costs the cell it ran, and its slot gets another.

    Processes are spawned: a fork would copy locks that other threads hold.
    """

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, "kvsuite-slot")
        self._closed = False
        self._slots = [_slot() for _ in range(count)]
        self._idle: SimpleQueue[int] = SimpleQueue()
        for index in range(count):
            self._idle.put(index)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run ``fn`` in the next process that is idle."""
        return self._threads.submit(self._run, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End when all is done; without ``wait``, end the processes at once."""
        self._closed = True
        self._threads.shutdown(wait, cancel_futures=cancel_futures or not wait)
        for slot in list(self._slots):
            manager = slot._executor_manager_thread
            if not wait:
                _terminate(slot)
            slot.shutdown(wait, cancel_futures=True)
            if manager is not None:
                # Its pipe may not close while the interpreter, on its way out, writes to it (Python 3.11).
                manager.join(_GRACE_S)  # type: ignore[attr-defined]  # typeshed takes the thread for its pipe

    def _run(self, call: Callable[[], R]) -> R:
        index = self._idle.get()
        try:
            return self._slots[index].submit(call).result()
        except BrokenExecutor:
            self._slots[index].shutdown(wait=False)
            if not self._closed:
                self._slots[index] = _slot()
            raise
        finally:
            self._idle.put(index)


class Dask(Executor):
    """The workers of a Dask cluster: that at ``address``, or ``count`` processes of this machine.

    Dask itself runs the cells of a dead worker again, up to its setting ``scheduler.allowed-failures``.

    **Raises:** `ConfigError` where ``distributed`` is not installed, or nothing answers at the address.
    """

    def __init__(self, address: str | None = None, count: int | None = None) -> None:
        try:
            distributed = importlib.import_module("distributed")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"Dask is asked for and {error.name} is not installed: install kvsuite[dask]"
            ) from error
        self._cluster: Any = None
        if address is None:
            self._cluster = distributed.LocalCluster(
                n_workers=count or cpu_count(), threads_per_worker=1, dashboard_address=None
            )
        try:
            self._client: Any = distributed.Client(self._cluster or address)
        except OSError as error:
            raise ConfigError(f"no Dask scheduler answers at {address}: {error}") from error
        # Not pure: Dask would take the result of an equal call that it remembers, and run nothing.
        self._executor: Executor = self._client.get_executor(pure=False)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run ``fn`` on a worker that Dask chooses."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster; one that was made here ends."""
        del cancel_futures
        self._executor.shutdown(wait)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def executor_maker(spec: str | None, cells: Iterable[Cell]) -> Callable[[], Executor]:
    """Return what makes the executor that ``spec`` asks for.

    Without one, cells of the compiled core run on threads; as soon as one cell has an engine that is driven
    step by step, all run on processes. There are as many as CPUs, and no more than cells.

    **Raises:** `ConfigError` for a text that names none.
    """
    cells = tuple(cells)
    count = max(1, min(cpu_count(), len(cells)))
    if spec is None:
        return partial(Threads if all(cell.is_compiled for cell in cells) else Processes, count)
    kind, colon, rest = spec.partition(":")
    local: dict[str, Callable[[int], Executor]] = {"threads": Threads, "processes": Processes}
    asked = count if not colon else int(rest) if rest.isdecimal() else 0
    if kind in local and asked:
        return partial(local[kind], asked)
    if kind == "dask" and asked:
        return partial(Dask, None, asked)
    if kind == "dask" and ":" in rest:
        return partial(Dask, rest)
    if kind and rest and kind not in (*local, "dask"):
        return _own(spec, kind, rest)
    raise ConfigError(f"workers {spec!r}: expected {EXPECTED}")


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own(spec: str, module: str, function: str) -> Callable[[], Executor]:
    try:
        made = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # whatever a module of somebody else's does
        raise ConfigError(f"workers {spec!r}: {_told(error)}; expected {EXPECTED}") from error

    def make() -> Executor:
        try:
            executor = made()
        except (Exception, SystemExit) as error:
            raise ConfigError(f"workers {spec!r}: the call raised {_told(error)}") from error
        if not isinstance(executor, Executor):
            raise ConfigError(
                f"workers {spec!r}: the call returned a {type(executor).__name__}, expected a "
                "concurrent.futures.Executor"
            )
        return executor

    return make


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _slot() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_live_with_the_parent)


def _live_with_the_parent() -> None:
    """Leave interrupts to the parent, and end when it has ended, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after_the_parent, name="kvsuite-parent", daemon=True).start()


def _end_after_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _terminate(slot: ProcessPoolExecutor) -> None:
    # `ProcessPoolExecutor.terminate_workers` came with Python 3.14.
    for process in list((slot._processes or {}).values()):
        process.terminate()
