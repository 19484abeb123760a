"""The catalogue of public faults: every report has a case, and what it names exists."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvsuite.mutants import MUTANTS

CASES = Path(__file__).parents[2] / "cases"
CATALOGUE = CASES / "conformance" / "reports"
COUNTS = {
    "ADMIT": 9,
    "BYTES": 6,
    "EARLY": 6,
    "EDGE": 8,
    "FRAG": 5,
    "GAUGE": 8,
    "GROUP": 8,
    "KEY": 8,
    "LEAK": 12,
    "POOL": 14,
    "RANGE": 8,
    "SHARE": 9,
    "SPEC": 5,
    "TIER": 12,
    "UNIT": 8,
}
"""Reports of each kind in the catalogue: 126 in all."""
PARTED = {"ADMIT": ["admit_pressure"], "GROUP": ["group_cost"]}
"""Kinds whose cases are in more than one file: the others."""


def entries(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((CATALOGUE / f"{kind}.toml").read_text())["report"]
    return found


def functions(path: Path) -> set[str]:
    """Test functions of one case file."""
    tree = ast.parse(path.read_text())
    return {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def case_exists(case: str) -> bool:
    file, _, name = case.partition("::")
    return (CASES / file).is_file() and name in functions(CASES / file)


def test_the_catalogue_has_126_reports() -> None:
    assert sum(COUNTS.values()) == 126
    assert {path.stem for path in CATALOGUE.glob("*.toml")} == set(COUNTS)


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_every_report_of_a_kind_is_there_once(kind: str) -> None:
    assert sorted(entry["id"] for entry in entries(kind)) == sorted(
        f"{kind}-{number}" for number in range(1, COUNTS[kind] + 1)
    )


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_every_report_is_played_or_says_why_not(kind: str) -> None:
    for entry in entries(kind):
        assert entry["upstream"], entry["id"]
        assert entry["fault"], entry["id"]
        if "reason" in entry:
            assert "case" not in entry, entry["id"]
            assert "needs a" in entry["reason"], f"{entry['id']}: only a device or a kernel is a reason"
        else:
            assert case_exists(entry["case"]), f"{entry['id']} names {entry['case']}, which is no case"
            assert entry["right"] != entry["wrong"], entry["id"]
            assert "mutant" not in entry or entry["mutant"] in MUTANTS, (
                f"{entry['id']}: {entry.get('mutant')}"
            )


@pytest.mark.parametrize("fault", sorted(MUTANTS))
def test_every_mutant_names_its_kind_and_a_case_that_exists(fault: str) -> None:
    mutant = MUTANTS[fault]
    assert mutant.kind in COUNTS, f"{fault} has kind {mutant.kind}"
    assert mutant.killer is not None
    assert case_exists(mutant.killer), f"{fault} names {mutant.killer}, which is no case"


@pytest.mark.parametrize("kind", sorted(COUNTS))
def test_every_case_of_a_kind_plays_a_report_or_kills_a_mutant(kind: str) -> None:
    files = [f"conformance/test_{name}.py" for name in (kind.lower(), *PARTED.get(kind, ()))]
    named = {entry["case"] for name in COUNTS for entry in entries(name) if "case" in entry}
    named |= {mutant.killer for mutant in MUTANTS.values()}
    cases = {f"{file}::{name}" for file in files for name in functions(CASES / file)}
    idle = sorted(cases - named)
    assert not idle, f"cases that nothing asks for and nothing fails: {', '.join(idle)}"
