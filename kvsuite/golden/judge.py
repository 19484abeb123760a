"""The verdict on an observed ledger: what it was held against, how it stands, and whether that may pass."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsuite.golden.diff import Comparison


class Verdict(enum.Enum):
    """How an observed ledger stands to its golden; the values are what records and summaries print."""

    MATCH = "match"
    """Same identity, equal."""
    REGRESSION = "regression"
    """Same identity, differs: allocation changed without a change of version."""
    FOOTPRINT = "footprint"
    """Counts equal; which blocks were used, or in what order, differs."""
    UNBLESSED = "unblessed"
    """Unknown engine hash, equal to the baseline."""
    DRIFT = "drift"
    """Unknown engine hash, differs from the baseline."""
    MISSING = "missing"
    """The engine has goldens, this one is missing."""
    UNRECORDED = "unrecorded"
    """The engine has no goldens at all: only the invariants judge."""
    SUITE_CHANGED = "suite changed"
    """The golden was recorded under another ledger schema or another replay semantics."""


MISMATCHES = frozenset({Verdict.REGRESSION, Verdict.FOOTPRINT, Verdict.DRIFT})
"""Verdicts that say something of the engine when they fail; only these can be a known deviation."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its evidence. ``path`` is below the goldens' root; ``held_against`` too, if any."""

    verdict: Verdict
    path: str
    held_against: str | None = None
    rows_equal: bool = True
    sentence: str = ""
    """First divergence, or what is missing, in one sentence."""
    diff: tuple[str, ...] = ()
    lines_differ: int = 0
    changed_preimage: tuple[str, ...] = ()

    def passes(self, *, strict_footprint: bool = False) -> bool:
        """Return whether a run may pass with this verdict."""
        if self.verdict is Verdict.FOOTPRINT:
            return not strict_footprint
        if self.verdict is Verdict.SUITE_CHANGED:
            return self.rows_equal
        return self.verdict in {Verdict.MATCH, Verdict.UNBLESSED, Verdict.UNRECORDED}

    def text(self, accept: str) -> str:
        """Return the verdict as a failing run shows it; ``accept`` is the command that accepts it."""
        head = f"golden {self.verdict.value} {self.path}"
        if self.held_against and self.held_against != self.path:
            head += f" (held against {self.held_against})"
        lines = [f"{head}: {self.sentence}" if self.sentence else head]
        lines += [f"    {line}" for line in _excerpt(self.diff)]
        if self.lines_differ:
            lines.append(f"    ({self.lines_differ} line{'s' * (self.lines_differ > 1)} differ)")
        lines += [f"    changed: {change}" for change in self.changed_preimage]
        if self.verdict is Verdict.SUITE_CHANGED:
            lines.append("    the suite changed, so this golden does not judge the engine: record it again")
        lines.append(f"accept: {accept}")
        return "\n".join(lines)


def verdict_of(comparison: Comparison, *, known_engine: bool) -> Verdict:
    """Return the verdict on a ledger that has a golden, its own or (for a new engine) the baseline's."""
    if not comparison.suite_equal:
        return Verdict.SUITE_CHANGED
    if not comparison.rows_equal or (known_engine and comparison.changed):
        return Verdict.REGRESSION if known_engine else Verdict.DRIFT
    if not comparison.footprint_equal:
        return Verdict.FOOTPRINT
    return Verdict.MATCH if known_engine else Verdict.UNBLESSED


def _excerpt(diff: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first divergence with one row of context on either side."""
    first = next((place for place, line in enumerate(diff) if line[0] != " "), None)
    if first is None:
        return ()
    after = first + 1
    while after < len(diff) and diff[after - 1][0] != " " and after - first < 3:
        after += 1
    return diff[max(0, first - 1) : after]
