"""What a case leaves behind for record, goldens and summary, on its way to the controller.

A worker writes notes on the item; the report of a phase carries them, as builtins only, because that is
all that travels between processes. The controller reads them off the report.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kvsuite.errors import KvsuiteError
from kvsuite.plugin.case_id import case_id, cases_root, engine_of
from kvsuite.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator

    from kvsuite.golden.store import Parcel
    from kvsuite.record.schema import AnyLine, GoldenLine

ATTRIBUTE = "kvsuite"
"""Name of the attribute of a report that carries `Notes.packed`."""
MAX_MESSAGE = 4000
_FIXTURES = frozenset({"engine_name", "open_engine", "kv_replay", "kv_requests", "golden"})


@dataclass
class Notes:
    """What is known of one case so far."""

    case: str
    engine: str
    device: str = "cpu"
    worker: str = ""
    deviation: str | None = None
    capability: str | None = None
    message: str = ""
    invariants: list[str] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """Lines of the run record, as JSON."""
    goldens: list[dict[str, Any]] = field(default_factory=list)
    """One entry a check: the record's line as JSON, whether it may pass, and the parcel to write."""
    summary: list[str] = field(default_factory=list)
    """What the last words of the run say if the case passes."""

    def add_line(self, line: AnyLine) -> None:
        """Note one line of the record."""
        self.lines.append(msgspec.json.encode(line).decode())

    def add_golden(self, line: GoldenLine, *, passes: bool, parcel: Parcel | None) -> None:
        """Note how one ledger stands to its golden."""
        packed = None if parcel is None else asdict(parcel)
        self.goldens.append({"line": msgspec.json.encode(line).decode(), "passes": passes, "parcel": packed})

    def packed(self) -> dict[str, Any]:
        """Return the notes as builtins."""
        return asdict(self)


NOTES = pytest.StashKey[Notes]()
CALL_PASSED = pytest.StashKey[bool]()


def is_case(item: pytest.Item) -> bool:
    """Return whether an item is a case: below a cases root, or a test that uses what cases use."""
    return cases_root(item.path) is not None or bool(_FIXTURES & set(getattr(item, "fixturenames", ())))


def notes_of(item: pytest.Item) -> Notes:
    """Return the notes of a case, made when first asked for."""
    if NOTES not in item.stash:
        device = (
            item.config.stash[SETTINGS].device if "device" in getattr(item, "fixturenames", ()) else "cpu"
        )
        item.stash[NOTES] = Notes(case_id(item), engine_of(item) or "", device.partition(":")[0])
    return item.stash[NOTES]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the notes of a case on its report."""
    report = yield
    if not is_case(item):
        return report
    notes = notes_of(item)
    if call.when == "call":
        item.stash[CALL_PASSED] = report.passed
    if call.excinfo is not None and not report.passed:
        error = call.excinfo.value
        said = str(error) if isinstance(error, KvsuiteError) else f"{type(error).__name__}: {error}"
        notes.message = said[:MAX_MESSAGE]
    elif report.failed:
        notes.message = str(report.longrepr)[:MAX_MESSAGE]
    setattr(report, ATTRIBUTE, notes.packed())
    return report
