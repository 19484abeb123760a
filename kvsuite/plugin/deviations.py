"""Known deviations: the engine author's own list, kept beside the engine and never beside the cases.

[[deviation]]
case = "conformance/test_eviction.py::test_least_recently_used_goes_first"    # or a list of cases
kind = "by_design"                  # not_yet | upstream | by_design
reason = "evicts the most recently freed block first"
issue = "https://..."               # needed for not_yet and upstream
engine = "acme"                     # this engine alone, in any version; or a list of engines
since = "2.0"                       # from this version on
before = "2.4"                      # and not from this one on
invariants = ["slack"]              # set these laws apart, instead of expecting the case to fail

A real engine's adapter has such a list in its own folder, which is found without being named.
"""

from __future__ import annotations

import importlib.util
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kvsuite.engine.registry import ADAPTERS
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE_NAME = "deviations.toml"
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. ``case`` without parameters stands for all of them; ``engine`` narrows it to one engine.

    ``since`` (included) and ``before`` (not included) narrow it to versions, compared as numbers: 5.9 is
    before 5.10, and 5.18.0rc1 counts as 5.18. An engine whose version begins with no number is in no range.
    """

    case: str
    kind: Literal["not_yet", "upstream", "by_design"]
    reason: str
    issue: str = ""
    engine: str | None = None
    since: str | None = None
    before: str | None = None
    invariants: list[str] | None = None
    """Laws that replays of the case break and that are set apart; without it the case is expected to fail."""

    def concerns(self, engine: str | None, version: str | None) -> bool:
        """Return whether this entry is about an engine, named as it was asked for."""
        if self.engine not in {None, engine, base_name(engine or "")}:
            return False
        if self.since is None and self.before is None:
            return True
        found = None if version is None else _NUMBERS.match(version)
        if found is None:
            return False
        start, stop = self._range()
        return start <= _numbers(found[0]) and (stop is None or _numbers(found[0]) < stop)

    def covers(self, case: str, engine: str | None, version: str | None = None) -> bool:
        """Return whether this entry is about ``case`` on ``engine`` in ``version``."""
        return self.case in {case, case.partition("[")[0]} and self.concerns(engine, version)

    def collides(self, other: Deviation) -> bool:
        """Return whether two entries are about the same case of the same engine in a common version."""
        if (self.case, self.engine) != (other.case, other.engine):
            return False
        (start, stop), (other_start, other_stop) = self._range(), other._range()
        return (other_stop is None or start < other_stop) and (stop is None or other_start < stop)

    def __str__(self) -> str:
        said = f"{self.kind}: {self.reason}" + (f" ({self.issue})" if self.issue else "")
        return f"{said}; set apart: {', '.join(self.invariants)}" if self.invariants else said

    def _range(self) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        return _numbers(self.since or "0"), None if self.before is None else _numbers(self.before)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deviation: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class Known:
    """The deviations of a session: those of the file that was named, and of the adapters under test."""

    named: tuple[Deviation, ...]
    path: Path | None
    adapters: dict[str, tuple[Path, tuple[Deviation, ...]]]
    """By engine, as it was asked for."""

    def find(self, case: str, engine: str | None, version: str | None) -> tuple[Deviation, Path] | None:
        """Return the entry about a case and its file; one of the named file goes before the adapter's."""
        own = (self.path or Path(), self.named)
        for path, entries in (own, self.adapters.get(engine or "", (Path(), ()))):
            for entry in entries:
                if entry.covers(case, engine, version):
                    return entry, path
        return None

    def concerning(self, subjects: Iterable[tuple[str, str | None]]) -> tuple[Deviation, ...]:
        """Return the entries about at least one of the engines, given as name and version."""
        found: dict[int, Deviation] = {}
        for name, version in subjects:
            for entry in (*self.named, *self.adapters.get(name, (Path(), ()))[1]):
                if entry.concerns(name, version):
                    found[id(entry)] = entry
        return tuple(found.values())


def known_deviations(path: str | None, engines: Iterable[str]) -> Known:
    """Return what is known: of the file named, if any, and of the adapters among ``engines``.

    **Raises:** `ConfigError`, as `read_deviations`.
    """
    files = {engine: file for engine in engines if (file := adapter_file(engine)) is not None}
    read = {file: read_deviations(file) for file in {*files.values()}}
    return Known(
        named=() if path is None else read_deviations(Path(path)),
        path=None if path is None else Path(path),
        adapters={engine: (file, read[file]) for engine, file in files.items()},
    )


def adapter_file(engine: str) -> Path | None:
    """Return the list that lies beside the adapter of a real engine; ``None`` where there is none."""
    factory = ADAPTERS.get(base_name(engine))
    spec = None if factory is None else importlib.util.find_spec(factory.partition(":")[0])
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(FILE_NAME)
    return path if path.is_file() else None


def base_name(engine: str) -> str:
    """Return ``NAME`` of ``NAME@VERSION``."""
    return engine.partition("@")[0]


def read_deviations(path: Path) -> tuple[Deviation, ...]:
    """Return the entries of a file.

    **Raises:** `ConfigError` for a file that cannot be read, an unknown key or kind, a blank reason, a
    missing issue, versions that are no range, no law to set apart, or a case named twice.
    """
    try:
        with path.open("rb") as file:
            tables = msgspec.convert(tomllib.load(file), _File).deviation
        numbered = [(number, entry) for number, table in enumerate(tables, 1) for entry in _entries(table)]
        lists = [(table.get("case"), table.get("engine")) for table in tables]
    except OSError as error:
        raise ConfigError(f"cannot read deviations {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"deviations {path} are no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"deviations {path}: {error}") from error
    for number in (number for number, listed in enumerate(lists, 1) if [] in listed):
        raise ConfigError(f"deviations {path}, entry {number}: a list of cases or engines is empty: name one")
    found: list[Deviation] = []
    for number, entry in numbered:
        where = f"deviations {path}, entry {number} ({entry.case})"
        _check(entry, where)
        if any(other.collides(entry) for other in found):
            raise ConfigError(f"{where}: the case stands there twice: keep one entry")
        found.append(entry)
    return tuple(found)


def _entries(table: dict[str, Any]) -> list[Deviation]:
    """Return one entry for each case and engine of a table, which may list several of either."""
    spread = [table]
    for key in ("case", "engine"):
        if isinstance(listed := table.get(key), list):
            spread = [{**one, key: value} for one in spread for value in listed]
    return [msgspec.convert(one, Deviation) for one in spread]


def _check(entry: Deviation, where: str) -> None:
    if not entry.reason.strip():
        raise ConfigError(f"{where}: the reason is blank: say why the engine deviates")
    if entry.kind != "by_design" and not entry.issue.strip():
        raise ConfigError(f"{where}: kind {entry.kind} needs an issue: give the address where it is tracked")
    for name, version in (("since", entry.since), ("before", entry.before)):
        if version is not None and not _NUMBERS.fullmatch(version):
            raise ConfigError(
                f"{where}: {name} is {version!r}: expected a version in numbers, such as 5.18.0"
            )
    start, stop = entry._range()
    if stop is not None and start >= stop:
        raise ConfigError(
            f"{where}: no version is since {entry.since or 0} and before {entry.before}: since is the first "
            "version that deviates, before the first that no longer does"
        )
    if entry.invariants is not None and not all(name.strip() for name in entry.invariants or [""]):
        raise ConfigError(
            f"{where}: invariants are {entry.invariants}: name the laws to be set apart, or leave "
            "the key out where the case is expected to fail"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version so that it compares as numbers.

    >>> _numbers("5.18.0") == _numbers("5.18") > _numbers("5.9.1")
    True
    """
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
