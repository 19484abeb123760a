"""Known deviations: the engine author's own list, kept beside the engine and never beside the cases.

[[deviation]]
case = "conformance/test_eviction.py::test_least_recently_used_goes_first"
kind = "by_design"                  # not_yet | upstream | by_design
reason = "evicts the most recently freed block first"
issue = "https://..."               # needed for not_yet and upstream
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Literal

import msgspec

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. ``case`` without parameters stands for all of them; ``engine`` narrows it to one engine."""

    case: str
    kind: Literal["not_yet", "upstream", "by_design"]
    reason: str
    issue: str = ""
    engine: str | None = None

    def covers(self, case: str, engine: str | None) -> bool:
        """Return whether this entry is about ``case`` on ``engine``."""
        return self.case in {case, case.partition("[")[0]} and self.engine in {None, engine}

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" + (f" ({self.issue})" if self.issue else "")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deviation: list[Deviation] = []


def read_deviations(path: Path) -> tuple[Deviation, ...]:
    """Return the entries of a file.

    **Raises:** `ConfigError` for a file that cannot be read, an unknown key or kind, a blank reason, a
    missing issue, or a case named twice.
    """
    try:
        with path.open("rb") as file:
            found = msgspec.convert(tomllib.load(file), _File).deviation
    except OSError as error:
        raise ConfigError(f"cannot read deviations {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"deviations {path} are no TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"deviations {path}: {error}") from error
    for number, entry in enumerate(found, 1):
        where = f"deviations {path}, entry {number} ({entry.case})"
        if not entry.reason.strip():
            raise ConfigError(f"{where}: the reason is blank: say why the engine deviates")
        if entry.kind != "by_design" and not entry.issue.strip():
            raise ConfigError(
                f"{where}: kind {entry.kind} needs an issue: give the address where it is tracked"
            )
        if any((other.case, other.engine) == (entry.case, entry.engine) for other in found[: number - 1]):
            raise ConfigError(f"{where}: the case stands there twice: keep one entry")
    return tuple(found)
