"""Cells on a real Dask cluster of two processes on this machine."""

from __future__ import annotations

import importlib
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError
from kvsuite.sweep import executors
from kvsuite.sweep.executors import Dask
from kvsuite.sweep.run import run_cells
from tests.sweep.conftest import CULPRIT, SIZES, Probes, cells_of

if TYPE_CHECKING:
    from kvsuite.sweep.traces import TraceRef


def test_a_cluster_gives_the_same_results_and_bears_a_worker_that_dies(
    boundary: TraceRef, probes: Probes
) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: kvsuite[dask] brings it")
    cells = (*cells_of(boundary), *cells_of(boundary, "probe-dies-once", controls=()))
    results = run_cells(cells, partial(Dask, None, 2))
    assert results.failures == ()
    assert results.outcomes[:5] == run_cells(cells[:5], partial(executors.Threads, 1)).outcomes
    digests = [outcome.digest for outcome in results.outcomes]  # type: ignore[union-attr]
    assert digests[5:] == digests[:4]
    openings = probes.openings()
    assert openings[CULPRIT] >= 2, "Dask ran the cell of the dead worker again"
    assert set(openings) == set(SIZES)


def test_an_address_where_nothing_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: kvsuite[dask] brings it")
    dask = importlib.import_module("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(ConfigError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
    ):
        Dask("tcp://127.0.0.1:9")


def test_without_dask_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        ConfigError, match=r"Dask is asked for and distributed is not installed.*kvsuite\[dask\]"
    ):
        Dask()


def test_nobody_imports_dask_who_does_not_ask_for_it() -> None:
    probe = "import sys, kvsuite.sweep.executors, kvsuite.sweep.run; print('distributed' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
