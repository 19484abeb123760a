"""The toy engine of another package is found by its entry point and passes; its faults are told in full."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvsuite.plugin.deviations import read_deviations

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "toy_engine"
DEVIATIONS = TOY / "deviations.toml"
LIFECYCLES = "cases/conformance/test_lifecycles.py"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Lay the package down with its metadata, as an installer leaves it."""
    project = tomllib.loads((TOY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    (tmp_path / name).symlink_to(TOY / name, target_is_directory=True)
    metadata = tmp_path / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(installed: Path, *words: str, module: str = "pytest") -> subprocess.CompletedProcess[str]:
    """Run a command where the toy engine is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    environment |= {"COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def cases(installed: Path, engine: str, *files: str) -> subprocess.CompletedProcess[str]:
    """Run some of the cases on one of the package's engines."""
    quiet = ("-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist")
    deviations = f"--deviations={DEVIATIONS}"
    return run(installed, *files, f"--engine={engine}", deviations, *quiet)


def test_the_engine_passes_cases_it_claims_and_deviates_where_it_says_so(installed: Path) -> None:
    entries = read_deviations(DEVIATIONS)
    files = {f"cases/{entry.case.partition('::')[0]}" for entry in entries}
    ran = cases(installed, "toypages", *files, LIFECYCLES, "cases/conformance/test_divergence.py", "-rx")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    deviating = [line for line in ran.stdout.splitlines() if line.startswith("XFAIL ")]
    for entry in entries:
        name = entry.case.partition("::")[2].partition("[")[0]
        assert any(f"::{name}[toypages-" in line and entry.reason in line for line in deviating), ran.stdout


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        (
            "toypages-leaky",
            "partition at step 0 in pool device/g0/r0: block 1 is in no list and in no table, "
            "expected exactly one state",
        ),
        (
            "toypages-late-block",
            "slack at step 1 in pool device/g0/r0: r0 holds 2 tokens in 1 slots: slack -1, expected 0 to 0",
        ),
    ],
)
def test_a_planted_fault_is_told_in_one_paragraph(installed: Path, engine: str, found: str) -> None:
    """What was found, where, and what was expected; then the smallest lifecycle, which replays the fault."""
    ran = cases(installed, engine, f"{LIFECYCLES}::test_any_lifecycle_keeps_every_law")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    told = [line.removeprefix("E   ") for line in ran.stdout.splitlines() if line.startswith("E   ")]
    at = told.index("the smallest lifecycle found, to be saved as lifecycle.jsonl:")
    assert any(found in line for line in told[:at]), told
    assert all(" at step " in line and " in pool device/g0/r0: " in line for line in told[:at]), told
    header, request, replay = told[at + 1 : at + 4]
    assert '"requests":1' in header
    assert '"input_length":1,' in request
    assert replay.startswith(f"replay it: kvsuite replay lifecycle.jsonl --engine {engine} --model tiny ")
    assert len(told) <= 12, told


def test_a_fault_does_not_hide_behind_the_deviations_of_the_package(installed: Path) -> None:
    """The entry that excuses the sound engine is about another case: the leak is told all the same."""
    ran = cases(installed, "toypages-leaky", "cases/conformance/test_leak.py")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "drain at step" in ran.stdout
