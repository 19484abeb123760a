"""Relations between two runs that need no oracle: what must come out alike, whatever the right value is.

    commute    finish orders commute
    chunked    chunked prefill = one-shot prefill
    resumed    preempt + resume = uninterrupted, recomputing apart
    sharing    prefix cache on and off give equal logical payload, and never more unique payload
    repeat     trace, reset, trace again = the same ledger
    cancelled  cancel at any point = finish at that point
    undone     fork, then cancel the child = nothing

The names are those of the violations. Source: the metamorphic relations of the fault catalogue, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.invariants import Violation
from kvsuite.ledger.row import COLUMN_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.ledger.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Standing:
    """How a pool stands, ids apart: what two runs can be asked to agree on."""

    pool: str
    lengths: tuple[int, ...]
    tables: tuple[int, ...]
    """Entries of each live table."""
    unique_blocks: int
    room: int
    """Free and cached blocks: what is cached follows from what is found afterwards."""
    quarantined: int
    found: tuple[int, ...]
    """Hit tokens of prompts asked for afterwards."""


def standing(snapshot: PoolSnapshot, found: Mapping[str, int] | None = None) -> Standing:
    """Return how a full snapshot stands; ``found`` are hit tokens by prompt."""
    return Standing(
        pool=str(snapshot.key),
        lengths=tuple(sorted(snapshot.lengths.tolist())),
        tables=tuple(sorted(np.diff(snapshot.table_offsets).tolist())),
        unique_blocks=len(np.setdiff1d(snapshot.table_blocks, snapshot.null_ids)),
        room=len(snapshot.free) + len(snapshot.cached),
        quarantined=len(snapshot.quarantined),
        found=tuple((found or {}).values()),
    )


def agree(relation: str, what: str, one: Standing, other: Standing) -> Iterator[Violation]:
    """Yield how the second of two runs stands otherwise than the first; ``what`` names the pair."""
    differs = [
        field.name for field in fields(Standing) if getattr(one, field.name) != getattr(other, field.name)
    ]
    if differs:
        said = ", ".join(f"{name} {getattr(one, name)} and {getattr(other, name)}" for name in differs)
        yield Violation(relation, None, one.pool, f"{what} differ: {said}; expected the same")


def same_ledger(relation: str, what: str, one: Timeline, other: Timeline) -> Iterator[Violation]:
    """Yield the first row and columns in which two timelines differ, pool by pool."""
    for first, second in zip(one.pools, other.pools, strict=True):
        pool = str(first.spec.key)
        if len(first.rows) != len(second.rows):
            message = f"{what} differ: {len(first.rows)} steps and {len(second.rows)}; expected the same"
            yield Violation(relation, None, pool, message)
            continue
        rows, columns = np.nonzero(first.rows != second.rows)
        if len(rows):
            row = int(rows[0])
            said = ", ".join(
                f"{COLUMN_NAMES[column]} {first.rows[row, column]} and {second.rows[row, column]}"
                for column in columns[rows == row].tolist()
            )
            yield Violation(relation, int(one.steps[row]), pool, f"{what} differ: {said}; expected the same")


def sharing_costs_nothing(shared: Timeline, private: Timeline) -> Iterator[Violation]:
    """Yield steps at which the prefix cache changed the logical payload, or raised the unique one."""
    for on, off in zip(shared.pools, private.pools, strict=True):
        steps = min(len(on.rows), len(off.rows))
        logical, unique = (
            (on.column(name)[:steps], off.column(name)[:steps]) for name in ("logical", "payload")
        )
        wrong = np.flatnonzero((logical[0] != logical[1]) | (unique[0] > unique[1]))
        if len(wrong) or len(on.rows) != len(off.rows):
            row = int(wrong[0]) if len(wrong) else steps - 1
            message = (
                f"with and without a prefix cache {logical[0][row]} and {logical[1][row]} logical tokens "
                f"lie in {unique[0][row]} and {unique[1][row]} slots: expected the same logical payload, and "
                "no more slots"
            )
            yield Violation("sharing", int(shared.steps[row]), str(on.spec.key), message)
