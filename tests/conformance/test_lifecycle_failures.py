"""A drawn lifecycle that fails ends with a trace file and a command, and the command shows the same fault."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASE = "cases/conformance/test_lifecycles.py"


@pytest.mark.parametrize("fault", ["stale-key", "hits-promised-twice"])
def test_the_smallest_lifecycle_is_printed_and_replays(fault: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    words = [sys.executable, "-m", "pytest", CASE, f"--engine=mutant:{fault}", "-q", "--tb=short"]
    ran = subprocess.run(
        [*words, "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    said = [line.removeprefix("E   ") for line in ran.stdout.splitlines() if line.startswith("E   ")]
    at = next(number for number, line in enumerate(said) if "to be saved as lifecycle.jsonl" in line)
    rows = [line for line in said[at + 1 :] if line.startswith("{")]
    assert 2 <= len(rows) <= 6, "a header and a few requests"
    violation = next(line for line in said[:at] if " in pool " in line).rpartition("Violation: ")[2]
    invariant = violation.partition(" ")[0]
    (tmp_path / "lifecycle.jsonl").write_text("".join(f"{row}\n" for row in rows))
    command = next(line for line in said if line.startswith("replay it: ")).removeprefix("replay it: ")
    program, *arguments = shlex.split(command)
    assert program == "kvsuite"
    run_main = "from kvsuite.cli.main import main; main()"
    again = subprocess.run(
        [sys.executable, "-c", run_main, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"VIOLATED {invariant} " in again.stdout
