"""What a case may rely on when other workers run beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

CASES = """
import os
import sys
import time

import pytest


@pytest.mark.parametrize("n", range(4))
def test_card(engine_name, n, summary_line):
    time.sleep(0.3)
    assert "torch" not in sys.modules
    assert os.environ["OMP_NUM_THREADS"] == "1"
    worker, card = (os.environ[name] for name in ("PYTEST_XDIST_WORKER", "CUDA_VISIBLE_DEVICES"))
    summary_line(f"{worker} sees {card}")


@pytest.mark.timing
def test_time(engine_name):
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""


def test_one_card_one_thread_no_torch_and_no_timing(
    project: pytest.Pytester, add_case: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    add_case(CASES)
    beside = project.runpytest_subprocess("--engine=acme", "cases/conformance/test_more.py", "-n", "2")
    beside.assert_outcomes(passed=4)
    assert {line for line in beside.outlines if " sees " in line} == {"gw0 sees 2", "gw1 sees 5"}
    beside.stdout.fnmatch_lines(["timing: not run (1 case, which runs alone: *)"])


def test_timing_runs_alone(project: pytest.Pytester, add_case: Callable[..., None]) -> None:
    add_case(CASES)
    alone = project.runpytest("--engine=acme", "-k", "test_time", "-m", "timing")
    alone.assert_outcomes(passed=1, deselected=9)
    assert "timing: not run" not in alone.stdout.str()
