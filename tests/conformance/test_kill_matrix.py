"""The full kill matrix: every mutant on every case; minutes long, so that it runs where ``-m slow`` asks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvsuite.mutants import MUTANTS
from kvsuite.mutants.matrix import Verdict, killing_functions, killing_sets, matrix_rows
from kvsuite.mutants.table import GOLDEN
from kvsuite.record.provenance import run_header, utc_now
from kvsuite.record.reader import read_record
from kvsuite.record.schema import MatrixLine, MatrixRow
from kvsuite.record.writer import RecordWriter
from kvsuite.report.html import render

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CASES = ROOT / "cases" / "conformance"
REPORT = ROOT / "reports" / "kill-matrix"
KINDS = sorted({mutant.kind.lower() for mutant in MUTANTS.values() if mutant.kind})
KIND_FILES = {f"conformance/test_{kind}.py" for kind in (*KINDS, "admit_pressure", "group_cost")}
DECLARED_ONLY = {
    "test_lifecycles.py": "each mutant would be searched by hypothesis for minutes",
    "test_metamorphic.py": "whole workloads, each replayed at least twice",
    "test_tail_slack.py": "searched by hypothesis",
    "test_every_byte.py": "whole workloads, real tensors in every dtype among them",
}
"""Files that run only on mutants which declare a killer in them, and why."""
KILLS_NONE: dict[str, str] = {}
"""Test functions of the kind files that kill no mutant, each with the reason."""
FEWEST_SETS = 45


def _halves(plan_folder: Path, kill_runs: Any) -> None:
    files = [f"cases/conformance/{path.name}" for path in sorted(CASES.glob("test_*.py"))]
    quick = [name for name in files if Path(name).name not in DECLARED_ONLY]
    declared: dict[str, list[str] | None] = {
        name: [mutant.killer]
        for name, mutant in MUTANTS.items()
        if mutant.killer and Path(mutant.killer.partition("::")[0]).name in DECLARED_ONLY
    }
    names = sorted(MUTANTS)
    with ThreadPoolExecutor(2) as pool:
        halves = [
            pool.submit(kill_runs.run_plan, dict.fromkeys(names[k::2]), plan_folder / f"half-{k}", *quick)
            for k in range(2)
        ]
        for half in halves:
            half.result()
    slow_files = [name for name in files if Path(name).name in DECLARED_ONLY]
    kill_runs.run_plan(declared, plan_folder / "declared", *slow_files)


@pytest.fixture(scope="module")
def verdicts(kill_runs: Any) -> list[Verdict]:
    folder = kill_runs.once("matrix", lambda path: _halves(path, kill_runs))
    return [
        Verdict(name, entry["case"], frozenset(kill_runs.invariants(entry)), entry["counter_only"])
        for part in ("half-0", "half-1", "declared")
        for name, entries in kill_runs.read(folder / part).items()
        for entry in entries
    ]


@pytest.fixture(scope="module")
def functions(verdicts: list[Verdict], kill_runs: Any) -> set[str]:
    """Test functions of the kind files that take an engine, what they require claimed by a mutant or not."""
    folder = kill_runs.once("matrix", lambda path: _halves(path, kill_runs))
    texts = [(folder / f"half-{k}" / "functions.json").read_text() for k in range(2)]
    found = {name for text in texts for name in json.loads(text)}
    return {name for name in found if name.partition("::")[0] in KIND_FILES}


@pytest.fixture(scope="module")
def rows(verdicts: list[Verdict]) -> list[MatrixRow]:
    return matrix_rows(MUTANTS, verdicts)


def test_the_matrix_stands_in_a_record_and_a_report(verdicts: list[Verdict], rows: list[MatrixRow]) -> None:
    line = MatrixLine(
        functions=len({verdict.function for verdict in verdicts}),
        left_out=[f"{name}, but for declared killers: {why}" for name, why in DECLARED_ONLY.items()],
        rows=rows,
    )
    started = utc_now()
    with RecordWriter(REPORT / "run.jsonl") as writer:
        command = ["pytest", "-m", "slow", "tests/conformance/test_kill_matrix.py"]
        writer.write(run_header(command, device="cpu", device_name="CPU", started_at=started))
        writer.write(line)
        writer.end(finished_at=utc_now(), exit_status=0)
    render(read_record(REPORT / "run.jsonl"), REPORT / "report.html")
    assert read_record(REPORT / "run.jsonl").matrices == (line,)
    assert [row.mutant for row in rows if f">{row.mutant}<" not in (REPORT / "report.html").read_text()] == []


def test_every_mutant_is_killed_by_a_named_invariant(rows: list[MatrixRow]) -> None:
    assert {row.mutant for row in rows} == set(MUTANTS)
    assert [row.mutant for row in rows if row.declared != GOLDEN and not row.killers] == []


def test_every_mutant_is_killed_by_the_invariant_it_declares(rows: list[MatrixRow]) -> None:
    wrong = {
        row.mutant: row.invariants
        for row in rows
        if row.declared != GOLDEN and row.declared not in row.invariants
    }
    assert wrong == {}


def test_every_law_holds_on_a_mutant_kept_for_goldens(rows: list[MatrixRow]) -> None:
    assert {row.mutant: row.invariants for row in rows if row.declared == GOLDEN and row.killers} == {}


def test_mutants_differ_in_what_kills_them(rows: list[MatrixRow]) -> None:
    assert len(killing_sets(rows)) >= FEWEST_SETS


def test_every_test_function_kills_a_mutant(verdicts: list[Verdict], functions: set[str]) -> None:
    assert {function.partition("::")[0] for function in functions} == KIND_FILES
    assert sorted(functions - killing_functions(verdicts)) == sorted(KILLS_NONE)


def test_counting_alone_sees_few_mutants(rows: list[MatrixRow]) -> None:
    """``free + used = total`` from the engine's own counts, on the very snapshots that the cases saw."""
    homes = {"kvsuite.mutants.misreports", "kvsuite.mutants.behaviour"}
    judged = [row for row in rows if MUTANTS[row.mutant].factory.__module__ in homes]
    seen = [row.mutant for row in judged if row.counter_only]
    assert judged
    assert len(seen) < len(judged) / 3, seen
    assert sum(row.counter_only for row in rows) < len(rows) / 3
