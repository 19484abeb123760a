"""Reads a run record back, whole, and refuses what it does not know."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kvsuite.errors import RecordError
from kvsuite.record.schema import (
    SCHEMA,
    SCHEMA_VERSION,
    AnyLine,
    CaseLine,
    ComparisonLine,
    ContentLine,
    DecisionLine,
    DriftLine,
    End,
    EngineLine,
    GoldenLine,
    Header,
    LedgerLine,
    MatrixLine,
    MemoryLine,
    NoteLine,
    SweepLine,
    TraceLine,
)
from kvsuite.record.writer import PARTIAL_SUFFIX, partial_path

if TYPE_CHECKING:
    from pathlib import Path

_AT = re.compile(r"^(?P<what>.*?) - at `(?P<path>\$.*)`$", re.DOTALL)
_LineT = TypeVar("_LineT", bound=AnyLine)


@dataclass(frozen=True, slots=True)
class Record:
    """The lines of one run, by kind, each in the order written."""

    header: Header
    engines: tuple[EngineLine, ...] = ()
    traces: tuple[TraceLine, ...] = ()
    ledgers: tuple[LedgerLine, ...] = ()
    contents: tuple[ContentLine, ...] = ()
    memories: tuple[MemoryLine, ...] = ()
    cases: tuple[CaseLine, ...] = ()
    goldens: tuple[GoldenLine, ...] = ()
    comparisons: tuple[ComparisonLine, ...] = ()
    sweeps: tuple[SweepLine, ...] = ()
    decisions: tuple[DecisionLine, ...] = ()
    drifts: tuple[DriftLine, ...] = ()
    matrices: tuple[MatrixLine, ...] = ()
    notes: tuple[NoteLine, ...] = ()
    end: End | None = None

    @property
    def cut_short(self) -> bool:
        """Whether the run stopped before it could write its end line."""
        return self.end is None

    def engine(self, ref: str) -> EngineLine | None:
        """Return the engine that other lines call ``ref``."""
        return next((line for line in self.engines if line.ref == ref), None)

    def trace(self, ref: str) -> TraceLine | None:
        """Return the trace that other lines call ``ref``."""
        return next((line for line in self.traces if line.ref == ref), None)


def read_record(path: Path) -> Record:
    """Read the record at ``path``.

    A record without its end line is returned with `Record.cut_short` set. In a ``.partial`` file, which a
    killed run leaves behind, a torn last line is where the record was cut and is left out; anywhere else
    a damaged line is an error.

    **Raises:** `RecordError` for a missing or empty file, another schema or major version, a damaged line
    (named ``line N $.path``), or lines out of order.
    """
    lines = _raw_lines(path)
    _check_version(path, lines[0])
    decoder = msgspec.json.Decoder(AnyLine)
    decoded: list[AnyLine] = []
    for number, raw in enumerate(lines, 1):
        try:
            line = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines) > 1 and path.name.endswith(PARTIAL_SUFFIX):
                break
            raise _damaged(path, number, error, lines[0]) from error
        if isinstance(line, LedgerLine):
            _check_shape(path, number, line)
        decoded.append(line)
    return _sorted_by_kind(path, decoded)


def _raw_lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        partial = partial_path(path)
        hint = f": the run was cut short; {partial} holds it up to the cut" if partial.exists() else ""
        raise RecordError(f"{path}: no such run record{hint}") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot read the run record ({error.strerror})") from error
    if not data.strip():
        raise RecordError(f"{path}: empty: expected a header line of {SCHEMA} {SCHEMA_VERSION}")
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return lines


class _Version(msgspec.Struct):
    kind: str
    schema: str
    schema_version: str


def _check_version(path: Path, first: bytes) -> None:
    try:
        found = msgspec.json.decode(first, type=_Version)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path}: not a run record @ line 1 $: expected a header of {SCHEMA} {SCHEMA_VERSION}"
        ) from error
    if found.kind != "header" or found.schema != SCHEMA:
        raise RecordError(
            f"{path}: kind {found.kind!r} of schema {found.schema!r} @ line 1 $.schema: "
            f"expected a header of {SCHEMA!r}"
        )
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise RecordError(
            f"{path}: schema version {found.schema_version} @ line 1 $.schema_version: this kvsuite reads "
            f"{SCHEMA_VERSION.partition('.')[0]}.x; use the kvsuite that wrote the record, or run again"
        )


def _damaged(path: Path, number: int, error: Exception, first: bytes) -> RecordError:
    located = _AT.match(str(error))
    what = located["what"] if located else str(error)
    where = located["path"] if located else "$"
    version = msgspec.json.decode(first, type=_Version).schema_version
    hint = ""
    if version != SCHEMA_VERSION:
        hint = f"; the record is schema {version} and this kvsuite reads {SCHEMA_VERSION}"
    return RecordError(f"{path}: {what[:1].lower()}{what[1:]} @ line {number} {where}{hint}")


def _check_shape(path: Path, number: int, line: LedgerLine) -> None:
    if len(line.rows) != len(line.steps):
        raise RecordError(
            f"{path}: {len(line.rows)} rows for {len(line.steps)} steps @ line {number} $.rows: "
            f"expected one row a step"
        )
    for k, row in enumerate(line.rows):
        if len(row) != len(line.columns):
            raise RecordError(
                f"{path}: {len(row)} values for {len(line.columns)} columns @ line {number} $.rows[{k}]"
            )


def _sorted_by_kind(path: Path, lines: list[AnyLine]) -> Record:
    header = lines[0]
    if not isinstance(header, Header):
        raise RecordError(f"{path}: no header @ line 1 $.kind")
    ends = [number for number, line in enumerate(lines, 1) if isinstance(line, End)]
    if ends and ends[0] != len(lines):
        raise RecordError(f"{path}: lines after the end @ line {ends[0] + 1} $: expected the end to be last")
    if extra := [number for number, line in enumerate(lines, 1) if isinstance(line, Header)][1:]:
        raise RecordError(f"{path}: a second header @ line {extra[0]} $.kind: one record holds one run")

    def of(kind: type[_LineT]) -> tuple[_LineT, ...]:
        return tuple(line for line in lines if isinstance(line, kind))

    last = lines[-1]
    return Record(
        header=header,
        engines=of(EngineLine),
        traces=of(TraceLine),
        ledgers=of(LedgerLine),
        contents=of(ContentLine),
        memories=of(MemoryLine),
        cases=of(CaseLine),
        goldens=of(GoldenLine),
        comparisons=of(ComparisonLine),
        sweeps=of(SweepLine),
        decisions=of(DecisionLine),
        drifts=of(DriftLine),
        matrices=of(MatrixLine),
        notes=of(NoteLine),
        end=last if isinstance(last, End) else None,
    )
