"""Whether a refused operation left everything as it was (I4)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot


@dataclass(frozen=True, slots=True)
class StateDigest:
    """What can be seen of an engine's state, order included, for comparison only."""

    tables: tuple[object, ...]
    lengths: tuple[object, ...]
    ref_counts: tuple[object, ...]
    free_list: tuple[object, ...]
    cached: tuple[object, ...]
    quarantined: tuple[object, ...]
    pinned: tuple[object, ...]

    def differences(self, other: StateDigest) -> list[str]:
        """Return the names of what differs."""
        return [
            field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)
        ]


def state_digest(snapshots: tuple[PoolSnapshot, ...]) -> StateDigest:
    """Return the digest of full snapshots: tables, lengths, reference counts, free and eviction order."""

    def gather(name: str) -> tuple[object, ...]:
        arrays = (getattr(snapshot, name) for snapshot in snapshots)
        return tuple(None if array is None else tuple(array.tolist()) for array in arrays)

    tables = tuple(
        (
            snapshot.request_ids,
            tuple(tuple(snapshot.table(c).tolist()) for c in range(len(snapshot.table_rows))),
        )
        for snapshot in snapshots
    )
    return StateDigest(
        tables=tables,
        lengths=gather("lengths"),
        ref_counts=(gather("ref_count_ids"), gather("ref_counts")),
        free_list=gather("free"),
        cached=gather("cached"),
        quarantined=gather("quarantined"),
        pinned=gather("pinned"),
    )
