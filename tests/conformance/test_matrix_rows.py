"""What a kill matrix makes of single verdicts, with mutants and verdicts made by hand."""

from __future__ import annotations

from dataclasses import replace

from kvsuite.mutants import MUTANTS
from kvsuite.mutants.matrix import Verdict, killing_functions, killing_sets, matrix_rows
from kvsuite.record.schema import MatrixRow

ANY = next(iter(MUTANTS.values()))
TABLE = {
    "late": replace(ANY, fault="It is late.\n\nVery late.", caught_by="drain", kind="LEAK"),
    "wrong": replace(ANY, fault="It is wrong.", caught_by="content", kind="KEY"),
    "odd": replace(ANY, fault="It is odd.", caught_by="golden", kind=None),
}
VERDICTS = [
    Verdict("late", "conformance/test_a.py::test_x[1]", frozenset({"drain"}), False),
    Verdict("late", "conformance/test_a.py::test_x[2]", frozenset({"drain", "closure"}), True),
    Verdict("late", "conformance/test_a.py::test_y", frozenset({"recount"}), False),
    Verdict("late", "conformance/test_a.py::test_z", frozenset(), False),
    Verdict("wrong", "conformance/test_a.py::test_z", frozenset(), False),
]


def test_a_row_counts_functions_and_gathers_invariants() -> None:
    odd, wrong, late = matrix_rows(TABLE, VERDICTS)
    assert late == MatrixRow(
        mutant="late",
        kind="LEAK",
        fault="It is late.",
        declared="drain",
        killers=2,
        invariants=["closure", "drain", "recount"],
        counter_only=True,
    )
    assert (wrong.mutant, wrong.killers, wrong.invariants, wrong.counter_only) == ("wrong", 0, [], False)
    assert (odd.mutant, odd.kind, odd.killers) == ("odd", "", 0)


def test_a_function_that_fails_by_no_law_kills_nothing() -> None:
    assert killing_functions(VERDICTS) == {
        "conformance/test_a.py::test_x",
        "conformance/test_a.py::test_y",
    }


def test_survivors_make_no_set() -> None:
    rows = matrix_rows(TABLE, VERDICTS)
    assert killing_sets(rows) == {frozenset({"closure", "drain", "recount"})}
    twin = [replace_mutant(row) for row in rows]
    assert len(killing_sets([*rows, *twin])) == 1


def replace_mutant(row: MatrixRow) -> MatrixRow:
    return MatrixRow(
        mutant=f"{row.mutant} again",
        kind=row.kind,
        fault=row.fault,
        declared=row.declared,
        killers=row.killers,
        invariants=row.invariants,
        counter_only=row.counter_only,
    )
