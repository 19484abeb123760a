from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError
from kvsuite.sweep import cells as cells_module
from kvsuite.sweep import executors
from kvsuite.sweep.executors import Dask, Processes, Threads, executor_maker
from kvsuite.sweep.run import run_cells
from kvsuite.sweep.stopping import Stopped, raise_if_stopped
from tests.sweep.conftest import SIZES, cells_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.sweep.traces import TraceRef


PATIENCE_S = 60
"""After which a test fails rather than hangs."""


def own_executor() -> Executor:
    return ThreadPoolExecutor(1)


def no_executor() -> object:
    return object()


@pytest.mark.parametrize("make", [Threads, Processes])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_results(
    make: Callable[[int], Executor], count: int, boundary: TraceRef
) -> None:
    cells = (*cells_of(boundary), *cells_of(boundary, "reference-eager", (8,), core="step"))
    results = run_cells(cells, partial(make, count))
    assert results.failures == ()
    assert results.retried == ()
    alone = run_cells(cells, partial(ThreadPoolExecutor, 1))
    assert results.outcomes == alone.outcomes
    assert len({outcome.digest for outcome in alone.outcomes}) == len(SIZES) + 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("threads:3", partial(Threads, 3)),
        ("processes:2", partial(Processes, 2)),
        ("threads", partial(Threads, 5)),
        ("dask", partial(Dask, None, 5)),
        ("dask:2", partial(Dask, None, 2)),
        ("dask:tcp://host:8786", partial(Dask, "tcp://host:8786")),
    ],
)
def test_a_text_names_an_executor(
    spec: str, made: partial[Executor], boundary: TraceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "cpu_count", lambda: 64)
    found = executor_maker(spec, cells_of(boundary))
    assert isinstance(found, partial)
    assert (found.func, found.args) == (made.func, made.args)


@pytest.mark.parametrize(
    "spec", ["", "threads:0", "threads:x", "processes:", "dask:", "dask:0", "fork:2", "nowhere", "os:nothing"]
)
def test_a_text_that_names_none_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"expected threads:N, processes:N, dask"):
        executor_maker(spec, ())


def test_a_callable_returns_an_executor_or_is_refused(boundary: TraceRef) -> None:
    make = executor_maker(f"{__name__}:own_executor", ())
    assert run_cells(cells_of(boundary), make).failures == ()
    with pytest.raises(ConfigError, match=r"returned a object, expected a concurrent\.futures\.Executor"):
        run_cells(cells_of(boundary), executor_maker(f"{__name__}:no_executor", ()))


def test_without_a_text_engines_run_on_processes(boundary: TraceRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells_module, "has_numba", lambda: True)
    monkeypatch.setattr(executors, "cpu_count", lambda: 3)
    compiled, mixed = cells_of(boundary, controls=()), cells_of(boundary)
    for cells, kind in ((compiled, Threads), (mixed, Processes)):
        found = executor_maker(None, cells)
        assert isinstance(found, partial)
        assert (found.func, found.args) == (kind, (3,))
    found = executor_maker(None, compiled[:1])
    assert isinstance(found, partial)
    assert found.args == (1,), "no more workers than cells"


@pytest.fixture
def processes() -> Iterator[Processes]:
    executor = Processes(2)
    yield executor
    executor.shutdown()


def test_a_process_that_dies_breaks_its_own_call_alone(processes: Processes) -> None:
    other = processes.submit(time.sleep, 0.3)
    dead = processes.submit(_end_this_process)
    assert isinstance(dead.exception(), BrokenExecutor)
    assert other.exception() is None
    slept = [processes.submit(_asleep) for _ in range(4)]
    assert os.getpid() not in {call.result() for call in slept}
    assert len({call.result() for call in slept}) == 2, "the slot of the dead one has another"


def _asleep() -> int:
    time.sleep(0.2)
    return os.getpid()


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_threads_that_nobody_waits_for_stop_at_their_next_report() -> None:
    executor, begun, released = Threads(1), threading.Event(), threading.Event()

    def endless() -> None:
        while not released.wait(0.01):
            begun.set()
            raise_if_stopped(0, 1)

    running = executor.submit(endless)
    begun.wait()
    assert not running.done()
    executor.shutdown(wait=False)
    try:
        assert isinstance(running.exception(PATIENCE_S), Stopped)
    finally:
        released.set()


def test_processes_that_nobody_waits_for_are_ended() -> None:
    executor = Processes(1)
    running = executor.submit(time.sleep, 2 * PATIENCE_S)
    while not executor._slots[0]._processes:
        time.sleep(0.01)
    executor.shutdown(wait=False)
    assert isinstance(running.exception(PATIENCE_S), BrokenExecutor)


def test_an_interrupt_of_the_group_is_left_to_the_parent(processes: Processes) -> None:
    pid = processes.submit(os.getpid).result()
    processes.submit(os.kill, pid, signal.SIGINT).result()
    assert processes.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_IGN


def raises() -> Executor:
    raise RuntimeError("no cluster today")


def leaves() -> Executor:
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (":x", "expected threads:N"),
        (".a:b", "expected threads:N"),
        ("threads:-1", "expected threads:N"),
        ("processes:many", "expected threads:N"),
    ],
)
def test_a_text_that_names_no_executor_says_what_does(spec: str, says: str, boundary: TraceRef) -> None:
    with pytest.raises(ConfigError, match=says):
        executor_maker(spec, cells_of(boundary))


@pytest.mark.parametrize(
    ("function", "says"), [("raises", "RuntimeError: no cluster today"), ("leaves", "SystemExit: 7")]
)
def test_a_call_that_raises_is_bad_input(function: str, says: str, boundary: TraceRef) -> None:
    make = executor_maker(f"{__name__}:{function}", cells_of(boundary))
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_process_ends_with_the_program_that_began_it() -> None:
    script = (
        "import os, signal, time\n"
        "from kvsuite.sweep.executors import Processes\n"
        "if __name__ == '__main__':\n"
        "    print(Processes(1).submit(os.getpid).result(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(script)
        file.flush()
        ran = subprocess.run([sys.executable, file.name], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    worker = int(ran.stdout)
    until = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{worker}/cmdline").exists() and Path(f"/proc/{worker}/cmdline").read_bytes():
        assert time.monotonic() < until, f"worker {worker} is still there"
        time.sleep(0.05)
