"""Runs of many broken engines in child processes, shared by the workers of one test run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
Results = dict[str, list[dict[str, Any]]]


class KillRuns:
    """Runs plans of mutants and cases, each once a test run, in folders below ``base``."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def once(self, name: str, run: Callable[[Path], None]) -> Path:
        """Return the folder of that name, filled by ``run`` in whichever worker came first."""
        folder = self.base / name
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                run(folder)
                (folder / "done").touch()
        return folder

    def run_plan(self, plan: dict[str, list[str] | None], folder: Path, *cases: str) -> None:
        """Run the planned pairs in one session with goldens off; what became of each stands in ``folder``."""
        folder.mkdir(exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(plan))
        results = folder / "results.jsonl"
        results.touch()
        environment = {
            **os.environ,
            "KILL_PLAN": str(folder / "plan.json"),
            "KILL_RESULTS": str(results),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
        }
        environment.pop("PYTEST_XDIST_WORKER", None)
        plugins = ("-p", "kill_plan", "-p", "no:cacheprovider", "-p", "no:xdist")
        words = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rN", *plugins]
        words += [f"--engine=mutant:{name}" for name in plan]
        words += [f"--goldens={folder / 'goldens'}", *cases]
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000, check=False
        )
        assert done.returncode in {0, 1}, done.stdout[-3000:] + done.stderr[-3000:]

    @staticmethod
    def read(folder: Path) -> Results:
        """Return what became of each mutant."""
        found: Results = defaultdict(list)
        for line in (folder / "results.jsonl").read_text().splitlines():
            entry = json.loads(line)
            found[entry["mutant"]].append(entry)
        return found

    @staticmethod
    def invariants(entry: dict[str, Any]) -> set[str]:
        """Return the invariants that one failed case names."""
        if entry["error"] != "InvariantViolation":
            return set()
        lines = [line for line in entry["message"].splitlines() if " in pool " in line]
        return {line.split(" ", 1)[0].rstrip(":") for line in lines}


@pytest.fixture(scope="session")
def kill_runs(tmp_path_factory: pytest.TempPathFactory) -> KillRuns:
    base = tmp_path_factory.getbasetemp()
    return KillRuns(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)
