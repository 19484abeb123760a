"""The run record as a page would tell it: plain values, no HTML."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvsuite.report.cases import (
    FAILING_VERDICTS,
    OUTCOMES,
    VERDICTS,
    Anchors,
    CaseView,
    SkipGroup,
    case_views,
    loose_goldens,
    skip_groups,
    tally,
)
from kvsuite.report.decisions import DecisionView, decision_view
from kvsuite.report.drift import DriftView, drift_view
from kvsuite.report.ledgers import LedgerView, ledger_view
from kvsuite.report.matrix import MatrixView, matrix_view
from kvsuite.report.memory import MemoryView, bytes_reconciled, memory_views
from kvsuite.report.studies import ComparisonView, SweepView, comparison_view, sweep_view
from kvsuite.report.units import count, plural

if TYPE_CHECKING:
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import EngineLine, GoldenLine, Header, NoteLine, TraceLine

MAX_DRAWN = 8
"""Ledgers whose pictures are drawn; the rest keep their row in the overview."""
MAX_DRAWN_ROWS = 3000
"""Rows that all pictures of ledgers share, so that the page stays near 5 MB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The page in one line."""

    status: Literal["good", "bad", "cut"]
    headline: str
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Everything the page shows."""

    header: Header
    finished_at: str | None
    exit_status: int | None
    verdict: Verdict
    outcomes: tuple[tuple[str, int], ...]
    verdicts: tuple[tuple[str, int], ...]
    devices: tuple[tuple[str, int], ...]
    """How many cases ran where."""
    engines: tuple[EngineLine, ...]
    traces: tuple[TraceLine, ...]
    cases: tuple[CaseView, ...]
    loose_goldens: tuple[GoldenLine, ...]
    ledgers: tuple[LedgerView, ...]
    drawn: tuple[LedgerView, ...]
    """The ledgers with pictures."""
    comparisons: tuple[ComparisonView, ...]
    sweeps: tuple[SweepView, ...]
    decisions: tuple[DecisionView, ...]
    drifts: tuple[DriftView, ...]
    matrices: tuple[MatrixView, ...]
    memory: tuple[MemoryView, ...]
    bytes_reconciled: bool
    skips: tuple[SkipGroup, ...]
    deviations: tuple[CaseView, ...]
    not_judged: tuple[tuple[str, int], ...]
    """Invariants that could not be judged, and in how many cases."""
    notes: tuple[NoteLine, ...]

    @property
    def listed_cases(self) -> tuple[CaseView, ...]:
        """Cases that a person should look at."""
        return tuple(case for case in self.cases if case.listed)

    @property
    def quiet_cases(self) -> tuple[CaseView, ...]:
        """Cases that passed or were skipped, and need no look."""
        return tuple(case for case in self.cases if not case.listed)


def build_view(record: Record) -> View:
    """Return what the page shows.

    **Raises:** `RecordError` when a figure would have to be printed without its trace hash, configuration,
    observation window or control.
    """
    anchors = Anchors()
    cases = case_views(record)
    ledgers = tuple(ledger_view(record, line, anchors.take("ledger", line.ref)) for line in record.ledgers)
    memory = memory_views(record)
    return View(
        header=record.header,
        finished_at=None if record.end is None else record.end.finished_at,
        exit_status=None if record.end is None else record.end.exit_status,
        verdict=_verdict(record, cases, ledgers),
        outcomes=tally((case.outcome for case in record.cases), OUTCOMES),
        verdicts=tally((golden.verdict for golden in record.goldens), VERDICTS),
        devices=tuple(sorted(Counter(case.device for case in record.cases).items())),
        engines=record.engines,
        traces=record.traces,
        cases=cases,
        loose_goldens=loose_goldens(record),
        ledgers=ledgers,
        drawn=_drawn(cases, ledgers),
        comparisons=tuple(
            comparison_view(record, line, anchors.take("comparison", line.case))
            for line in record.comparisons
        ),
        sweeps=tuple(sweep_view(record, line, anchors.take("sweep", line.trace)) for line in record.sweeps),
        decisions=tuple(
            decision_view(record, line, anchors.take("decision", line.trace)) for line in record.decisions
        ),
        drifts=tuple(drift_view(record, line, anchors.take("drift", line.trace)) for line in record.drifts),
        matrices=tuple(matrix_view(line, anchors.take("matrix", "")) for line in record.matrices),
        memory=memory,
        bytes_reconciled=bytes_reconciled(memory),
        skips=skip_groups(record),
        deviations=tuple(case for case in cases if case.line.deviation),
        not_judged=tuple(sorted(Counter(name for case in record.cases for name in case.not_judged).items())),
        notes=record.notes,
    )


def _drawn(cases: tuple[CaseView, ...], ledgers: tuple[LedgerView, ...]) -> tuple[LedgerView, ...]:
    """Return the ledgers worth a picture, with the rows to be drawn, in record order.

    Those that do not close come first, then those of failing cases, then the longest.
    """
    failing = {(case.line.case, case.line.engine) for case in cases if case.failing}
    drawable = [view for view in ledgers if view.context is not None]
    drawable.sort(
        key=lambda v: (not v.closes, (v.line.case, v.line.engine) in failing, v.line.steps_total),
        reverse=True,
    )
    chosen = {view.anchor for view in drawable[:MAX_DRAWN]}
    share = MAX_DRAWN_ROWS // max(len(chosen), 1)
    return tuple(view.drawn_with(share) for view in ledgers if view.anchor in chosen)


def _verdict(record: Record, cases: tuple[CaseView, ...], ledgers: tuple[LedgerView, ...]) -> Verdict:
    problems = _problems(record, cases, ledgers)
    news = _good_news(record, ledgers)
    if record.cut_short:
        return Verdict("cut", "Cut short: the run ended before its record was complete", (*problems, *news))
    if problems:
        return Verdict("bad", problems[0][:1].upper() + problems[0][1:], (*problems[1:], *news))
    if record.end is not None and record.end.exit_status != 0:
        return Verdict("bad", f"The run ended with exit status {record.end.exit_status}", news)
    return Verdict("good", "Every check that could be made passed", news)


def _problems(record: Record, cases: tuple[CaseView, ...], ledgers: tuple[LedgerView, ...]) -> list[str]:
    failing = sum(case.failing for case in cases)
    bad = sum(golden.verdict in FAILING_VERDICTS for golden in record.goldens)
    gaps = sum(view.closes is False for view in ledgers)
    drifted = sum(row.verdict == "drift" for line in record.drifts for row in line.rows)
    gating = [line for line in record.decisions if not line.projected]
    unreachable = sum(line.result == "SLO unreachable on this device" for line in gating)
    changed = sum(line.compared not in (None, "same") for line in gating)
    mismatches = sum(content.mismatches for content in record.contents)
    found = [
        (failing, f"{count(failing)} of {plural(len(cases), 'case')} failed"),
        (bad, f"{plural(bad, 'golden')} {'differs or is' if bad == 1 else 'differ or are'} missing"),
        (gaps, f"{plural(gaps, 'ledger does', 'ledgers do')} not close"),
        (unreachable, "the SLO is unreachable on this device"),
        (changed, "the stored decision no longer holds"),
        (drifted, f"{plural(drifted, 'engine')} drifted from the one before"),
        (mismatches, f"{plural(mismatches, 'token')} read back wrong"),
    ]
    return [text for number, text in found if number]


def _good_news(record: Record, ledgers: tuple[LedgerView, ...]) -> tuple[str, ...]:
    closed = [view for view in ledgers if view.closes]
    news = [line.sentence for line in record.decisions if line.result == "ship"]
    if closed and len(closed) == len(ledgers):
        steps = sum(view.line.steps_total for view in closed)
        news.append(
            f"{plural(len(closed), 'ledger closes', 'ledgers close')} at every one of {plural(steps, 'step')}"
        )
    read = sum(content.tokens_read for content in record.contents)
    if read and not any(content.mismatches for content in record.contents):
        news.append(f"{plural(read, 'token')} read back as written")
    news += [
        f"{plural(number, 'golden')} {said}"
        for verdict, said in (("footprint", "with another footprint"), ("unblessed", "not yet accepted"))
        if (number := sum(golden.verdict == verdict for golden in record.goldens))
    ]
    unjudged = sum(view.closes is None for view in ledgers)
    if unjudged:
        news.append(f"{plural(unjudged, 'ledger')} not judged: a category was not observed")
    return tuple(news)
