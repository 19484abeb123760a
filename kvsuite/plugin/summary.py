"""The last words of a run: how goldens stand, what to do about it, and what cases had to say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvsuite.golden.judge import Verdict
from kvsuite.plugin.timing import not_run

if TYPE_CHECKING:
    import pytest

    from kvsuite.plugin.recorder import Recorder

_LISTED = (
    Verdict.FOOTPRINT,
    Verdict.REGRESSION,
    Verdict.DRIFT,
    Verdict.MISSING,
    Verdict.SUITE_CHANGED,
    Verdict.UNBLESSED,
    Verdict.UNRECORDED,
)
"""Verdicts that are listed one by one, in this order."""
_MAX_LISTED = 20


def write_summary(terminal: pytest.TerminalReporter, recorder: Recorder) -> None:
    """Write the section ``kvsuite``, where there is anything to say."""
    lines = [
        *_golden_lines(recorder),
        *_ending_lines(recorder),
        *_claim_lines(recorder),
        *_case_lines(recorder),
    ]
    if not lines:
        return
    terminal.section("kvsuite")
    for text, colour in lines:
        terminal.write_line(text, **({colour: True} if colour else {}))


def _golden_lines(recorder: Recorder) -> list[tuple[str, str]]:
    found = [(golden, entry["passes"]) for _, golden, entry in recorder.goldens()]
    counts = Counter(golden.verdict for golden, _ in found)
    if not counts:
        return []
    order = [verdict.value for verdict in _LISTED]
    names = sorted(counts, key=lambda name: order.index(name) if name in order else len(order))
    lines = [("goldens: " + ", ".join(_counted(name, counts[name], recorder) for name in names), "")]
    for name in (name for name in names if name in order):
        group = [pair for pair in found if pair[0].verdict == name]
        if name == Verdict.UNRECORDED.value:
            lines.append(
                (f"unrecorded: {len(group)} ledgers have no golden; invariants alone judged them", "yellow")
            )
            continue
        for golden, passes in group[:_MAX_LISTED]:
            said = f"{name} {golden.path}"
            said += f": {golden.first_divergence}" if golden.first_divergence else ""
            lines.append((said, "yellow" if passes else "red"))
        if len(group) > _MAX_LISTED:
            lines.append((f"and {len(group) - _MAX_LISTED} more {name}", ""))
    accept = next((golden.accept for golden, _ in found if golden.accept), None)
    if accept is not None and not recorder.settings.update:
        lines.append((f"accept one: {accept}", ""))
    return lines


def _counted(verdict: str, count: int, recorder: Recorder) -> str:
    if verdict == "written" and recorder.ending.problems:
        return f"{recorder.ending.written} of {count} written"
    return f"{count} {verdict}"


def _ending_lines(recorder: Recorder) -> list[tuple[str, str]]:
    ending, settings = recorder.ending, recorder.settings
    lines = [(f"not written: {problem}", "red") for problem in ending.problems]
    if ending.written:
        lines.append((f"{ending.written} goldens written below {settings.goldens}", ""))
    if ending.observed:
        copy = f"cp -r {settings.observed}/. {settings.goldens}/"
        lines.append((f"accept all: {ending.observed} observed ledgers are left to be copied: {copy}", ""))
    if ending.report is not None:
        lines.append((f"report: {ending.report}", ""))
    return lines


def _claim_lines(recorder: Recorder) -> list[tuple[str, str]]:
    """Say what engines do not claim, which laws were set apart, and which known deviations are mended."""
    unclaimed = Counter((seen.notes or {}).get("capability") for seen in recorder.seen.values())
    named = ", ".join(f"{unclaimed[name]} for {name}" for name in sorted(filter(None, unclaimed)))
    lines = [(f"skipped, not claimed: {named}", "yellow")] if named else []
    passed = [seen.notes for seen in recorder.seen.values() if seen.notes and seen.outcome == "passed"]
    apart = Counter(tuple(notes["set_apart"]) for notes in passed if notes.get("set_apart"))
    for laws, count in sorted(apart.items()):
        lines.append((f"set apart: {', '.join(laws)} in {count} cases, as known deviations", "yellow"))
    mended = [seen.notes or {} for seen in recorder.seen.values() if seen.outcome == "xpassed"]
    if mended:
        files = " and ".join(sorted({str(notes.get("deviation_file", "")) for notes in mended}))
        entries = f"delete their entries from {files}"
        lines.append((f"mended: {len(mended)} known deviations did not occur; {entries}", "red"))
    return lines


def _case_lines(recorder: Recorder) -> list[tuple[str, str]]:
    lines = []
    if recorder.devices().keys() - {"cpu"}:
        ran = ", ".join(f"{count} on {device}" for device, count in sorted(recorder.devices().items()))
        lines.append((f"cases: {ran}", ""))
    for seen in recorder.seen.values():
        if seen.outcome == "passed" and seen.notes:
            lines += [(text, "green") for text in seen.notes.get("summary", ())]
    if recorder.timing_left_out:
        text = not_run(recorder.timing_left_out, asked_for=recorder.timing_asked_for)
        lines.append((text, "red" if recorder.timing_asked_for else ""))
    return lines
