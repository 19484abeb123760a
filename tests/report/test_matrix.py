"""The kill matrix in the page: survivors first, and nothing where there is none."""

from __future__ import annotations

from typing import Any

from kvsuite.record.schema import MatrixLine, MatrixRow
from kvsuite.report.html import page_text
from kvsuite.report.view import build_view


def row(mutant: str, **more: Any) -> MatrixRow:
    fields: dict[str, Any] = {
        "kind": "LEAK",
        "fault": "A <block> is lost.",
        "declared": "drain",
        "killers": 3,
        "invariants": ["closure", "drain"],
        "counter_only": False,
    }
    return MatrixRow(mutant=mutant, **(fields | more))


LINE = MatrixLine(
    functions=1200,
    left_out=["test_long.py: too long"],
    rows=[
        row("killed"),
        row("killed alike", counter_only=True),
        row("killed otherwise", kind="KEY", invariants=["content"], declared="content"),
        row("survivor", kind="TIER", killers=0, invariants=[]),
        row("for goldens", kind="POOL", declared="golden", killers=0, invariants=[]),
    ],
)


def test_survivors_stand_first_and_the_sums_are_said(build: Any) -> None:
    (view,) = build_view(build.record(LINE)).matrices
    assert [r.mutant for r in view.rows] == [
        "survivor",
        "killed otherwise",
        "killed",
        "killed alike",
        "for goldens",
    ]
    assert view.sentences == (
        "3 of 4 mutants killed by a named invariant, in 2 distinct sets of invariants, "
        "over 1,200 test functions.",
        "1 mutant kept for goldens: every law holds on such an engine.",
        "Rejected control: a check that only counts blocks sees 1 of 5.",
    )


def test_the_page_prints_the_matrix(build: Any, parse: Any) -> None:
    page = parse(page_text(build_view(build.record(LINE))))
    text = page.text("mutants")
    assert "survivor TIER A <block> is lost. drain ✕ none blind" in text
    assert "killed alike LEAK A <block> is lost. drain 3 closure, drain sees it" in text
    assert "for goldens POOL A <block> is lost. golden 0 blind" in text
    assert "Left out: test_long.py: too long" in text
    assert "<block>" not in page.source
    assert ("a", {"href": "#mutants"}) in page.tags


def test_a_run_without_a_matrix_has_no_such_section(build: Any, parse: Any) -> None:
    assert "mutants" not in parse(page_text(build_view(build.record()))).ids
