"""What the device said, grouped by who owns the bytes and who saw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsuite.record.reader import Record
    from kvsuite.record.schema import MemoryLine

_PARTS = (
    "pool_bytes",
    "tables_bytes",
    "workspace_bytes",
    "rounding_bytes",
    "reserve_bytes",
    "unattributed_bytes",
)


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The readings of one case by one observer; ``fullest`` stands for them in the table."""

    case: str
    owner: str
    observer: str
    readings: tuple[MemoryLine, ...]

    @property
    def fullest(self) -> MemoryLine:
        """The reading with the most bytes."""
        return max(
            self.readings, key=lambda line: (line.committed_bytes or 0, line.observed_bytes or 0, -line.step)
        )

    @property
    def open_readings(self) -> int:
        """Readings whose parts do not add up, or leave more unattributed than the bound."""
        return sum(closes(line) is False for line in self.readings)

    @property
    def unjudged_readings(self) -> int:
        """Readings of which a part was not observed."""
        return sum(closes(line) is None for line in self.readings)

    @property
    def reconciled(self) -> bool:
        """Whether these are an engine's own bytes and every reading of them closes."""
        return self.owner == "engine" and not self.open_readings and not self.unjudged_readings


def closes(line: MemoryLine) -> bool | None:
    """Return whether a reading adds up within its bound; ``None`` where a part was not observed."""
    parts = [getattr(line, name) for name in _PARTS]
    if line.observed_bytes is None or line.unattributed_bytes is None or None in parts:
        return None
    adds_up = sum(parts) == line.observed_bytes
    return adds_up and abs(line.unattributed_bytes) <= line.unattributed_bound_bytes


def memory_views(record: Record) -> tuple[MemoryView, ...]:
    """Return the readings by case, owner and observer, engines' own first."""
    keys = dict.fromkeys((line.case, line.owner, line.observer) for line in record.memories)
    views = [
        MemoryView(
            *key, tuple(line for line in record.memories if (line.case, line.owner, line.observer) == key)
        )
        for key in keys
    ]
    return tuple(sorted(views, key=lambda view: (view.owner != "engine", view.case, view.observer)))


def bytes_reconciled(views: tuple[MemoryView, ...]) -> bool:
    """Return whether an engine's own bytes were read and every reading of them closes."""
    own = [view for view in views if view.owner == "engine"]
    return bool(own) and all(view.reconciled for view in own)
