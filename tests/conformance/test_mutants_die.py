"""Every mutant is killed by the case and the invariant it declares; the full matrix is a slow run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.mutants import MUTANTS
from kvsuite.mutants.table import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path

Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def killed(kill_runs: Any) -> Results:
    """What the declared killers say: one session for all of them, shared by the workers of this run."""
    plan: dict[str, list[str] | None] = {
        name: [mutant.killer] for name, mutant in MUTANTS.items() if mutant.killer is not None
    }
    cases = sorted({f"cases/{case[0].partition('::')[0]}" for case in plan.values() if case})

    def run(folder: Path) -> None:
        kill_runs.run_plan(plan, folder, *cases)

    found: Results = kill_runs.read(kill_runs.once("kills", run))
    return found


@pytest.mark.parametrize(
    "fault", sorted(name for name, mutant in MUTANTS.items() if mutant.caught_by != GOLDEN)
)
def test_a_mutant_is_killed_by_what_it_declares(fault: str, killed: Results, kill_runs: Any) -> None:
    entries = killed[fault]
    assert entries, f"{MUTANTS[fault].killer} did not run on mutant:{fault}"
    crashes = [
        e for e in entries if e["error"] not in {None, "InvariantViolation", "AssertionError", "Skipped"}
    ]
    assert not crashes, (
        f"a crash is no kill: {crashes[0]['case']}: {crashes[0]['error']} {crashes[0]['message']}"
    )
    named = set().union(*(kill_runs.invariants(entry) for entry in entries))
    assert MUTANTS[fault].caught_by in named, f"{MUTANTS[fault].killer} names {sorted(named)}"


def test_there_are_many_mutants_of_every_kind() -> None:
    kinds = {mutant.kind for mutant in MUTANTS.values()}
    assert len(MUTANTS) >= 60
    assert len(kinds - {None}) == 15
