"""The kill matrix: what every broken engine was killed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.report.units import plural

if TYPE_CHECKING:
    from kvsuite.record.schema import MatrixLine, MatrixRow

BY_GOLDEN = "golden"
"""Declared where every law holds and only the comparison with a golden shows a difference."""


@dataclass(frozen=True, slots=True)
class MatrixView:
    """One kill matrix, survivors first."""

    anchor: str
    line: MatrixLine
    rows: tuple[MatrixRow, ...]
    sentences: tuple[str, ...]


def matrix_view(line: MatrixLine, anchor: str) -> MatrixView:
    """Return what the page says of a kill matrix."""
    judged = [row for row in line.rows if row.declared != BY_GOLDEN]
    killed = [row for row in judged if row.killers]
    kept = len(line.rows) - len(judged)
    sets = len({frozenset(row.invariants) for row in killed})
    counted = sum(row.counter_only for row in line.rows)
    sentences = [
        f"{len(killed):,} of {plural(len(judged), 'mutant')} killed by a named invariant, "
        f"in {plural(sets, 'distinct set')} of invariants, over {plural(line.functions, 'test function')}.",
        f"Rejected control: a check that only counts blocks sees {counted:,} of {len(line.rows):,}.",
    ]
    if kept:
        sentences.insert(1, f"{plural(kept, 'mutant')} kept for goldens: every law holds on such an engine.")
    return MatrixView(anchor, line, tuple(sorted(line.rows, key=_rank)), tuple(sentences))


def survived(row: MatrixRow) -> bool:
    """Return whether a mutant that a law must kill was killed by none."""
    return row.declared != BY_GOLDEN and not row.killers


def _rank(row: MatrixRow) -> tuple[bool, str, str]:
    return not survived(row), row.kind, row.mutant
