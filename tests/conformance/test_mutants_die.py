"""Every mutant is killed by the case and the invariant it declares; the full matrix is a slow run."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvsuite.mutants import MUTANTS
from kvsuite.mutants.table import GOLDEN

ROOT = Path(__file__).parents[2]
Results = dict[str, list[dict[str, Any]]]


def run_plan(plan: dict[str, list[str] | None], folder: Path, *cases: str) -> None:
    """Run the planned pairs in one session with goldens off; what became of each stands in ``folder``."""
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
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "kill_plan",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    words += [f"--engine=mutant:{name}" for name in plan]
    words += [f"--goldens={folder / 'goldens'}", *cases]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode in {0, 1}, done.stdout[-3000:] + done.stderr[-3000:]


def read_results(folder: Path) -> Results:
    """Return what became of each mutant."""
    found: Results = defaultdict(list)
    for line in (folder / "results.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found[entry["mutant"]].append(entry)
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Results:
    """What the declared killers say: one session for all of them, shared by the workers of this run."""
    plan: dict[str, list[str] | None] = {
        name: [mutant.killer] for name, mutant in MUTANTS.items() if mutant.killer is not None
    }
    cases = sorted({f"cases/{case[0].partition('::')[0]}" for case in plan.values() if case})
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "kills"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            run_plan(plan, folder, *cases)
            (folder / "done").touch()
    return read_results(folder)


def violations(entry: dict[str, Any]) -> set[str]:
    """Invariants that one failed case names."""
    if entry["error"] != "InvariantViolation":
        return set()
    heads = (
        line.split(" ", 1)[0].rstrip(":") for line in entry["message"].splitlines() if " in pool " in line
    )
    return set(heads)


@pytest.mark.parametrize(
    "fault", sorted(name for name, mutant in MUTANTS.items() if mutant.caught_by != GOLDEN)
)
def test_a_mutant_is_killed_by_what_it_declares(fault: str, killed: Results) -> None:
    entries = killed[fault]
    assert entries, f"{MUTANTS[fault].killer} did not run on mutant:{fault}"
    crashes = [
        e for e in entries if e["error"] not in {None, "InvariantViolation", "AssertionError", "Skipped"}
    ]
    assert not crashes, (
        f"a crash is no kill: {crashes[0]['case']}: {crashes[0]['error']} {crashes[0]['message']}"
    )
    named = set().union(*(violations(entry) for entry in entries))
    assert MUTANTS[fault].caught_by in named, f"{MUTANTS[fault].killer} names {sorted(named)}"


def test_there_are_many_mutants_of_every_kind() -> None:
    kinds = {mutant.kind for mutant in MUTANTS.values()}
    assert len(MUTANTS) >= 60
    assert len(kinds - {None}) == 15
