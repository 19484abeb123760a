"""The kill matrix: which broken engine is killed by which test function, and by which laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.record.schema import MatrixRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.mutants.table import Mutant


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one case said of one mutant."""

    mutant: str
    case: str
    """Id of the case, with or without parameters."""
    invariants: frozenset[str]
    """Laws that an `InvariantViolation` named; empty for a pass, a skip, a crash and a plain assertion."""
    counter_only: bool
    """Whether `kvsuite.ledger.counter_only` saw a gap in any full snapshot of that run."""

    @property
    def function(self) -> str:
        """Id of the test function: the case without its parameters."""
        return self.case.partition("[")[0]


def matrix_rows(mutants: Mapping[str, Mutant], verdicts: Iterable[Verdict]) -> list[MatrixRow]:
    """Return one row a mutant, by kind and name; one that nothing killed has no killers and no invariants."""
    by_mutant: dict[str, list[Verdict]] = {name: [] for name in mutants}
    for verdict in verdicts:
        by_mutant[verdict.mutant].append(verdict)
    rows = [_row(name, mutants[name], found) for name, found in by_mutant.items()]
    return sorted(rows, key=lambda row: (row.kind, row.mutant))


def killing_functions(verdicts: Iterable[Verdict]) -> set[str]:
    """Return the test functions that kill at least one mutant."""
    return {verdict.function for verdict in verdicts if verdict.invariants}


def killing_sets(rows: Iterable[MatrixRow]) -> set[frozenset[str]]:
    """Return the distinct sets of laws that kill a mutant; those that nothing killed are left out."""
    return {frozenset(row.invariants) for row in rows if row.invariants}


def _row(name: str, mutant: Mutant, verdicts: list[Verdict]) -> MatrixRow:
    return MatrixRow(
        mutant=name,
        kind=mutant.kind or "",
        fault=mutant.fault.partition("\n")[0],
        declared=mutant.caught_by,
        killers=len(killing_functions(verdicts)),
        invariants=sorted(set().union(*(verdict.invariants for verdict in verdicts))),
        counter_only=any(verdict.counter_only for verdict in verdicts),
    )
