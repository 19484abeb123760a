"""The controller's side: gathers notes from reports, then writes goldens, record and report.

Only this process writes. A worker that dies takes its notes with it and leaves nothing half-written.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from kvsuite.errors import KvsuiteError
from kvsuite.plugin.case_id import ROOT_NAME
from kvsuite.plugin.notes import ATTRIBUTE
from kvsuite.plugin.options import SETTINGS, command_line, on_worker
from kvsuite.plugin.selection import COLLECTED, STRICT_PASS
from kvsuite.plugin.summary import write_summary
from kvsuite.plugin.timing import named, not_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.record.schema import AnyLine, CaseLine, GoldenLine

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


@dataclass
class Seen:
    """One item: its outcome so far, its notes as they came with the latest report."""

    outcome: Outcome = "passed"
    duration_s: float = 0.0
    notes: dict[str, Any] | None = None


@dataclass
class Ending:
    """What was written, and what could not be."""

    written: int = 0
    observed: int = 0
    report: str | None = None
    problems: list[str] = field(default_factory=list)


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder, on the controller alone."""
    if not on_worker(config):
        config.pluginmanager.register(Recorder(config), "kvsuite-recorder")


class Recorder:
    """Listens to reports and writes at the end of the session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = config.stash[SETTINGS]
        self.seen: dict[str, Seen] = {}
        self.ending = Ending()
        self.timing_left_out = 0
        self._started_at = ""

    def pytest_sessionstart(self) -> None:
        """Take the settings as they were checked, and the time."""
        from kvsuite.record.provenance import utc_now

        self.settings = self.config.stash[SETTINGS]
        self._started_at = utc_now()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather outcome and notes of one phase."""
        notes: dict[str, Any] | None = getattr(report, ATTRIBUTE, None)
        if notes is None and report.nodeid not in self.seen and not _is_crash(report):
            return
        seen = self.seen.setdefault(report.nodeid, Seen())
        seen.notes = notes or seen.notes
        seen.duration_s += report.duration
        outcome = _outcome(report)
        if outcome != "passed":
            seen.outcome = outcome
        if _is_crash(report):
            unknown = {"case": report.nodeid.removeprefix(f"{ROOT_NAME}/"), "engine": ""}
            seen.notes = {**(seen.notes or unknown), "message": str(report.longrepr)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a worker what it left out because of the others."""
        self.timing_left_out = max(
            self.timing_left_out, getattr(node, "workeroutput", {}).get("kvsuite_timing", 0)
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write everything; a file that cannot be written fails a run that passed."""
        if COLLECTED in self.config.stash:
            self.timing_left_out = max(self.timing_left_out, self.config.stash[COLLECTED].timing_left_out)
        if self.timing_asked_for and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = exitstatus = pytest.ExitCode.USAGE_ERROR
        if not self.seen or self.config.option.collectonly:
            return
        self._attempt(self._write_goldens if self.settings.update else self._leave_observed)
        if self.settings.report is not None:
            status = 1 if self.ending.problems and exitstatus == 0 else int(exitstatus)
            self._attempt(lambda: self._write_record(status))
        if self.ending.problems and exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how goldens stand, and what cases had to say."""
        write_summary(terminalreporter, self)

    @property
    def timing_asked_for(self) -> bool:
        """Whether timing cases were left out that ``-m`` names: there were workers."""
        return self.timing_left_out > 0 and named(self.config, "timing")

    def goldens(self) -> Iterator[tuple[Seen, GoldenLine, dict[str, Any]]]:
        """Yield every check of a golden: the case, the line of the record, and the packed entry."""
        from kvsuite.record.schema import GoldenLine

        for seen in self.seen.values():
            for entry in (seen.notes or {}).get("goldens", ()):
                yield seen, msgspec.json.decode(entry["line"], type=GoldenLine), entry

    def devices(self) -> Counter[str]:
        """Return how many cases ran where."""
        return Counter(
            seen.notes.get("device", "cpu")
            for seen in self.seen.values()
            if seen.notes and seen.outcome != "skipped"
        )

    def _attempt(self, write: Any) -> None:
        try:
            write()
        except KvsuiteError as error:
            self.ending.problems.append(str(error))

    def _write_goldens(self) -> None:
        from kvsuite.golden.store import GoldenStore, Parcel

        store = GoldenStore(Path(self.settings.goldens))
        for seen, _, entry in self.goldens():
            if entry["parcel"] is not None and seen.outcome == "passed":
                store.save(Parcel(**entry["parcel"]))
                self.ending.written += 1

    def _leave_observed(self) -> None:
        from kvsuite.golden.files import MANIFEST, write
        from kvsuite.golden.store import Parcel

        root = Path(self.settings.observed)
        for older in root.glob(f"*/*/{MANIFEST}"):
            shutil.rmtree(older.parent, ignore_errors=True)
        for _, _, entry in self.goldens():
            if entry["parcel"] is None:
                continue
            parcel = Parcel(**entry["parcel"])
            write(root / parcel.path, parcel.text)
            write(root / parcel.folder / MANIFEST, parcel.manifest)
            self.ending.observed += 1

    def _write_record(self, exit_status: int) -> None:
        from kvsuite.device.select import device_name
        from kvsuite.record.provenance import run_header, utc_now
        from kvsuite.record.reader import read_record
        from kvsuite.record.writer import RecordWriter
        from kvsuite.report.html import render

        page = Path(str(self.settings.report))
        record = page.with_name("run.jsonl")
        device = self.settings.device
        header = run_header(
            command_line(),
            device=device.partition(":")[0],
            device_name=device_name(device),
            started_at=self._started_at,
        )
        with RecordWriter(record) as writer:
            writer.write(header)
            for line in self._lines():
                writer.write(line)
            writer.end(finished_at=utc_now(), exit_status=exit_status)
        render(read_record(record), page)
        self.ending.report = str(page)

    def _lines(self) -> Iterator[AnyLine]:
        from kvsuite.record.schema import AnyLine as Union
        from kvsuite.record.schema import LedgerLine, NoteLine, TraceLine

        decoder = msgspec.json.Decoder(Union)
        cases = [seen for seen in self.seen.values() if seen.notes]
        lines = [decoder.decode(text) for seen in cases for text in (seen.notes or {}).get("lines", ())]
        layouts: dict[str, set[str]] = {}
        for line in lines:
            if isinstance(line, LedgerLine):
                layouts.setdefault(line.engine, set()).add(str(line.recipe.get("layout", "")))
        yield from self._engine_lines(layouts)
        traces = {line.ref: line for line in reversed(lines) if isinstance(line, TraceLine)}
        yield from traces.values()
        yield from (line for line in lines if not isinstance(line, TraceLine))
        for seen in cases:
            yield _case_line(seen)
        for _, golden, _ in self.goldens():
            yield golden
        for name, reason in self.settings.unavailable.items():
            yield NoteLine(text=f"{name}: {reason}", level="warning")
        if self.timing_left_out:
            yield NoteLine(text=not_run(self.timing_left_out), level="warning")

    def _engine_lines(self, layouts: dict[str, set[str]]) -> Iterator[AnyLine]:
        from kvsuite.golden.key import PER_OPENING, engine_hash
        from kvsuite.plugin.subjects import subjects_of
        from kvsuite.record.build import engine_line

        for name in self.settings.available:
            spec = subjects_of(self.config).spec(name)
            shapes = layouts.get(name) or {spec.layout}
            line = engine_line(spec, ref=name, engine_hash=engine_hash(spec))
            own = {key: value for key, value in line.effective.items() if key not in PER_OPENING}
            layout = next(iter(shapes)) if len(shapes) == 1 else f"{len(shapes)} layouts, as each ledger says"
            yield msgspec.structs.replace(line, effective=own, layout=layout)


def _case_line(seen: Seen) -> CaseLine:
    from kvsuite.record.schema import CaseLine

    notes = seen.notes or {}
    return CaseLine(
        case=notes["case"],
        engine=notes["engine"],
        outcome=seen.outcome,
        duration_s=round(seen.duration_s, 6),
        device=notes.get("device", "cpu"),
        worker=notes.get("worker", ""),
        message=notes.get("message", ""),
        invariants=notes.get("invariants", []),
        not_judged=notes.get("not_judged", []),
        capability=notes.get("capability"),
        deviation=notes.get("deviation"),
    )


def _outcome(report: pytest.TestReport) -> Outcome:
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    if report.passed:
        return "xpassed" if expected else "passed"
    if str(report.longrepr).startswith(STRICT_PASS):
        return "xpassed"
    return "failed" if report.when == "call" else "error"


def _is_crash(report: pytest.TestReport) -> bool:
    """Whether pytest-xdist reports a worker that died over this item."""
    return report.when not in {"setup", "call", "teardown"} and report.failed
