"""When timing cases run, what is kept of them, and that figures of another device are refused."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.device.select import device_name

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKOUT = Path(__file__).parents[2]
DEVICE_TIME = str(CHECKOUT / "cases" / "timing" / "test_device_time.py")
CASES = """
import os

import pytest


class Abacus:
    name, source_hash = "abacus", os.environ.get("ABACUS", "00ff")


@pytest.mark.timing
def test_beads(kv_timing):
    figures = {"block_size": 16, "ratio_to_control": 1.25}
    kv_timing.keep([100.0, 300.0, 200.0], kernel=Abacus(), group="beads", **figures)


@pytest.mark.slow
def test_somebody_elses(benchmark):
    benchmark(lambda: None)


def test_moments(engine_name):
    pass
"""
FILE = "cases/timing/test_beads.py"
ALONE = ("--engine=acme", "-n", "0", FILE)
TIMED = (*ALONE, "-m", "timing")
KEPT = "--benchmark-storage=kept"
COMPARED = (*TIMED, "--benchmark-compare", KEPT)
LEFT_OUT = "timing: not run (1 case, which runs alone: pytest -n 0 -m timing)"
ASKED_FOR = (
    "timing: not run (asked for, but this run has workers: 1 case, which runs alone: pytest -n 0 -m timing)"
)


@pytest.fixture
def timed(project: pytest.Pytester, add_case: Callable[..., None]) -> pytest.Pytester:
    add_case(CASES, "timing/test_beads.py")
    return project


def stored(project: pytest.Pytester) -> Path:
    (path,) = project.path.glob("kept/*/0001_*.json")
    return path


def store(project: pytest.Pytester, change: Callable[[dict[str, Any]], None]) -> None:
    """Run the case, keep its figures, and change what was kept."""
    ended = project.runpytest(*TIMED, "--benchmark-autosave", KEPT)
    ended.assert_outcomes(passed=1, deselected=2)
    content = json.loads(stored(project).read_text())
    change(content)
    stored(project).write_text(json.dumps(content))


def subject(content: dict[str, Any]) -> dict[str, str]:
    (bench,) = content["benchmarks"]
    found: dict[str, str] = bench["extra_info"]["kvsuite"]
    return found


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_does_not_name_timing_leaves_it_out_and_says_so(
    timed: pytest.Pytester, workers: str
) -> None:
    page = "--kv-report=out/report.html"
    ended = timed.runpytest_subprocess("--engine=acme", "-n", workers, FILE, page)
    assert ended.ret == 0
    ended.assert_outcomes(passed=1, deselected=0 if workers == "2" else 2)
    assert LEFT_OUT in ended.outlines
    lines = [json.loads(line) for line in (timed.path / "out" / "run.jsonl").read_text().splitlines()]
    assert LEFT_OUT in [line["text"] for line in lines if line["kind"] == "note"]


def test_workers_run_no_timing_and_a_run_that_asks_for_it_fails(timed: pytest.Pytester) -> None:
    beside = ("--engine=acme", "-n", "2", FILE, "-m")
    alone = timed.runpytest_subprocess(*beside, "timing")
    assert alone.ret == pytest.ExitCode.USAGE_ERROR
    assert ASKED_FOR in alone.outlines
    alone.assert_outcomes()

    among_others = timed.runpytest_subprocess(*beside, "timing or not slow")
    assert among_others.ret == pytest.ExitCode.USAGE_ERROR
    among_others.assert_outcomes(passed=1)

    without = timed.runpytest_subprocess(*beside, "not timing and not slow")
    assert without.ret == 0
    assert "timing: not run" not in without.stdout.str()


@pytest.mark.parametrize(("expression", "warns"), [("not slow", False), ("slow or timing", True)])
def test_workers_are_warned_of_benchmarks_that_run_and_of_no_timing_case(
    timed: pytest.Pytester, expression: str, *, warns: bool
) -> None:
    """pytest-benchmark's own warning: the slow test is a benchmark of somebody else's."""
    ended = timed.runpytest_subprocess("--engine=acme", "-n", "2", FILE, "-m", expression, "-Wdefault")
    ended.assert_outcomes(passed=1)
    assert ("Benchmarks are automatically disabled" in ended.stderr.str()) == warns


def test_it_runs_alone_under_benchmark_skip_and_lifts_nobody_elses(timed: pytest.Pytester) -> None:
    config = timed.path / "pyproject.toml"
    config.write_text(config.read_text().replace('"-ra"', '"-ra", "--benchmark-skip"'))
    ended = timed.runpytest(*ALONE, "-m", "timing or slow")
    ended.assert_outcomes(passed=1, skipped=1, deselected=1)
    assert "timing: not run" not in ended.stdout.str()
    skipped = timed.runpytest(*ALONE, "-m", "slow")
    skipped.assert_outcomes(skipped=1, deselected=2)


def test_what_was_timed_is_kept_with_the_device_and_kernel_it_is_of(timed: pytest.Pytester) -> None:
    """100, 300 and 200 us: the median is 200."""
    found: list[dict[str, Any]] = []
    store(timed, found.append)
    (bench,) = found[0]["benchmarks"]
    named = ("rounds", "min", "median", "max")
    assert [bench["stats"][name] for name in named] == pytest.approx([3, 1e-4, 2e-4, 3e-4])
    assert (bench["group"], bench["options"]["timer"]) == ("beads", "CPU time of one thread")
    assert bench["extra_info"] == {
        "kvsuite": {
            "device": "cpu",
            "device_name": device_name("cpu"),
            "kernel": "abacus",
            "kernel_hash": "00ff",
        },
        "block_size": 16,
        "ratio_to_control": 1.25,
    }


def test_figures_of_this_device_are_compared_with(timed: pytest.Pytester) -> None:
    store(timed, lambda content: None)
    ended = timed.runpytest(*COMPARED)
    ended.assert_outcomes(passed=1, deselected=2)
    rows = {line.split()[1] for line in ended.outlines if line.startswith("test_beads (")}
    assert "(NOW)" in rows
    assert any(row.startswith("(0001_") for row in rows)


def test_another_name_of_the_machine_is_no_other_device(timed: pytest.Pytester) -> None:
    """pytest-benchmark warns of it, and warnings are errors in this project."""
    store(timed, lambda content: content["machine_info"].update(node="elsewhere"))
    ended = timed.runpytest_subprocess(*COMPARED)
    assert ended.ret == 0
    ended.assert_outcomes(passed=1, deselected=2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"device_name": "Abacus 9000"}, "Abacus 9000 (cpu)"),
        ({"device": "cuda", "device_name": "NVIDIA H0"}, "NVIDIA H0 (cuda)"),
    ],
)
def test_figures_of_another_device_end_the_session(
    timed: pytest.Pytester, change: dict[str, str], named: str
) -> None:
    store(timed, lambda content: subject(content).update(change))
    ended = timed.runpytest(*COMPARED)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in ended.errlines if "--benchmark-compare" in line]
    assert f"are of {named}, and this is {device_name('cpu')} (cpu)" in line
    assert " passed" not in ended.stdout.str()


def test_figures_of_another_kernel_fail_the_case(
    timed: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(timed, lambda content: None)
    monkeypatch.setenv("ABACUS", "beef")
    ended = timed.runpytest(*COMPARED)
    ended.assert_outcomes(failed=1, deselected=2)
    ended.stdout.fnmatch_lines(["the stored figures are of kernel abacus 00ff, this run timed abacus beef:*"])


def test_benchmarks_that_are_no_timing_cases_are_left_to_pytest_benchmark(timed: pytest.Pytester) -> None:
    def forget(content: dict[str, Any]) -> None:
        subject(content)["device_name"] = "Abacus 9000"
        del content["benchmarks"][0]["extra_info"]["kvsuite"]

    store(timed, forget)
    timed.runpytest(*COMPARED).assert_outcomes(passed=1, deselected=2)


def test_without_pytest_benchmark_everything_else_runs(timed: pytest.Pytester) -> None:
    ended = timed.runpytest_subprocess(*ALONE, "-p", "no:benchmark")
    assert ended.ret == 0
    ended.assert_outcomes(passed=1, deselected=2)
    assert LEFT_OUT in ended.outlines


def test_tests_of_a_project_that_has_nothing_to_do_with_the_suite_run(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((CHECKOUT / "conftest.py").read_text())
    pytester.makepyfile(
        "import pytest\n\n"
        "@pytest.mark.timing\ndef test_train_leaves_in_time():\n    pass\n\n"
        "@pytest.mark.slow\ndef test_train():\n    pass\n"
    )
    ended = pytester.runpytest("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=2)
    assert "timing: not run" not in ended.stdout.str()


with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def run_device_time(project: pytest.Pytester, *words: str) -> pytest.RunResult:
    """Run the cases themselves, on this CPU."""
    return project.runpytest_subprocess(DEVICE_TIME, "-n", "0", "--device=cpu", "-m", "timing", *words)


@with_torch
def test_without_a_compiler_no_kernel_is_timed_and_the_reason_is_told(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Five block sizes of attention and two of a layer are skipped; three uploads need no kernel."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    ended = run_device_time(project)
    ended.assert_outcomes(passed=3, skipped=7)
    ended.stdout.fnmatch_lines(["SKIPPED*no latency verdict can be given on cpu: *no C compiler*"])


BROKEN = """
import torch

from kvsuite.device.attention.c_kernel import CKernel
from kvsuite.device.timing.upload import TableUpload

right = CKernel.__call__


def in_order(self, query, kv, tables, lengths, **more):
    if tables is not None:
        tables = torch.arange(tables.numel(), dtype=torch.int32).view(tables.shape)
    return right(self, query, kv, tables, lengths, **more)


CKernel.__call__ = in_order
TableUpload.__call__ = lambda self, tables: self._device
"""


@with_torch
def test_a_kernel_or_an_upload_that_ignores_the_table_fails_every_case(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.path / "lib" / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    run_device_time(project, "-p", "broken").assert_outcomes(failed=10)
    run_device_time(project).assert_outcomes(passed=10)
