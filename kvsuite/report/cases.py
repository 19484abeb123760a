"""Cases and goldens, worst first, with what to do about them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.record.reader import Record
    from kvsuite.record.schema import CaseLine, GoldenLine

VERDICTS = (
    "regression",
    "drift",
    "missing",
    "suite changed",
    "footprint",
    "unblessed",
    "unrecorded",
    "written",
    "match",
)
"""Verdicts of goldens, worst first."""
FAILING_VERDICTS = frozenset({"regression", "drift", "missing"})
OUTCOMES = ("error", "failed", "xpassed", "xfailed", "skipped", "passed")
FAILING_OUTCOMES = frozenset({"error", "failed", "xpassed"})
_QUIET_VERDICTS = frozenset({"match", "written", "unrecorded"})
_RANKS = {"error": 0, "failed": 1, "xpassed": 2, "xfailed": 4, "passed": 5, "skipped": 6}
_LISTED_PASS = 3
NO_CAPABILITY = "for another reason"


@dataclass(frozen=True, slots=True)
class CaseView:
    """One case with its goldens."""

    anchor: str
    line: CaseLine
    goldens: tuple[GoldenLine, ...]

    @property
    def message(self) -> str:
        """What the case said, empty where a golden's own block says it again."""
        said = self.line.message
        told = any(said.startswith(f"golden {golden.verdict} {golden.path}") for golden in self.goldens)
        return "" if told else said

    @property
    def failing(self) -> bool:
        """Whether the case, or a golden of it, fails the run."""
        return self.line.outcome in FAILING_OUTCOMES or any(
            g.verdict in FAILING_VERDICTS for g in self.goldens
        )

    @property
    def listed(self) -> bool:
        """Whether a person should look: it fails, was expected to, or a golden passes with a difference."""
        return self.rank[0] < _RANKS["passed"]

    @property
    def rank(self) -> tuple[int, int, int, str, str]:
        """Sort key: the worst case is the smallest."""
        rank = _RANKS[self.line.outcome]
        worst = min((VERDICTS.index(golden.verdict) for golden in self.goldens), default=len(VERDICTS))
        if rank > _LISTED_PASS and any(golden.verdict not in _QUIET_VERDICTS for golden in self.goldens):
            rank = _RANKS["failed"] if self.failing else _LISTED_PASS
        return rank, worst, -len(self.line.invariants), self.line.case, self.line.engine


@dataclass(frozen=True, slots=True)
class SkipGroup:
    """Cases skipped because an engine does not claim a capability."""

    capability: str
    definition: str
    cases: tuple[CaseLine, ...]


def case_views(record: Record) -> tuple[CaseView, ...]:
    """Return every case, worst first, with anchors that are unique in the page."""
    anchors = Anchors()
    several = len({case.engine for case in record.cases}) > 1
    views = [
        CaseView(
            anchor=anchors.take("case", f"{case.case} {case.engine}" if several else case.case),
            line=case,
            goldens=tuple(g for g in record.goldens if (g.case, g.engine) == (case.case, case.engine)),
        )
        for case in record.cases
    ]
    return tuple(sorted(views, key=lambda view: view.rank))


def loose_goldens(record: Record) -> tuple[GoldenLine, ...]:
    """Return goldens that no case line speaks for, worst first."""
    spoken_for = {(case.case, case.engine) for case in record.cases}
    loose = [golden for golden in record.goldens if (golden.case, golden.engine) not in spoken_for]
    return tuple(sorted(loose, key=lambda golden: (VERDICTS.index(golden.verdict), golden.case)))


def skip_groups(record: Record) -> tuple[SkipGroup, ...]:
    """Return skipped cases by the capability that was not claimed."""
    skipped = [case for case in record.cases if case.outcome == "skipped"]
    names = sorted({case.capability or NO_CAPABILITY for case in skipped})
    definitions = {capability.name: capability.value for capability in Capability}
    return tuple(
        SkipGroup(
            capability=name,
            definition=definitions.get(name.upper(), ""),
            cases=tuple(case for case in skipped if (case.capability or NO_CAPABILITY) == name),
        )
        for name in names
    )


def tally(values: Iterable[str], order: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Return how often each value stands, in ``order``, zeros left out."""
    counted = Counter(values)
    return tuple((name, counted[name]) for name in order if counted[name])


class Anchors:
    """Hands out ids of the page, each once.

    >>> anchors = Anchors()
    >>> anchors.take("case", "a/b.py::t[x]"), anchors.take("case", "a/b.py::t(x)")
    ('case-a-b.py-t-x', 'case-a-b.py-t-x-2')
    """

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, kind: str, text: str) -> str:
        """Return an id made of ``text``, letters and digits only."""
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")
        base = f"{kind}-{slug}" if slug else kind
        self._taken[base] += 1
        number = self._taken[base]
        return base if number == 1 else self.take(kind, f"{slug}-{number}")
