"""Do two engines that claim the same semantics hold the same blocks? One trace, two ledgers, step by step.

A sequence of ``n`` tokens that shares nothing holds ``ceil(n / b)`` blocks, whoever allocates them. So two
ledgers of one trace must agree at every step on payload, live blocks and slack, but for what an engine
*declares*:

    null and trash blocks    never allocatable, hence in no live block; the pools compared have to leave as
                             many usable blocks, unless neither comes under pressure
    look-ahead of k tokens   up to ceil(k / b) more blocks a running sequence, every slot of them slack
    copies at the fork       a block more a running child than where the copy waits for the write

Only what is declared is taken away: extra blocks must be accounted for by just the slack, or the payload and
slack, that they bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.row import ABSENT, INDEX

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.timeline import PoolTimeline

SHOWN = ("running", "logical", "payload", "live_blocks", "slack", "over_reserved")
"""Columns of a row that a disagreement shows; all of them are compared."""

PRESSURE = ("rejected", "preempted", "refused_admissions", "refused_growths")


@dataclass(frozen=True, slots=True)
class Declared:
    """What an engine says it holds beyond the blocks of its tokens."""

    lookahead_tokens: int = 0
    copies_at_fork: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """One engine's ledger of the trace."""

    name: str
    steps: Int64Array
    pool: PoolTimeline
    declared: Declared = Declared()


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first step at which two ledgers cannot both be right; a row is ``None`` where a side has none."""

    step: int
    columns: tuple[str, ...]
    """What differs there beyond what is declared."""
    rows: tuple[dict[str, int] | None, dict[str, int] | None]
    names: tuple[str, str]

    def __str__(self) -> str:
        sides = zip(self.names, self.rows, strict=True)
        return f"step {self.step}, {', '.join(self.columns)}: " + "; ".join(
            f"{name}: {_row_text(row)}" for name, row in sides
        )


def first_disagreement(left: Side, right: Side) -> Disagreement | None:
    """Return where two ledgers of one trace first part beyond what is declared; ``None``: they agree.

    Both pools have the same block size; a column that either could not see is a disagreement.

    **Raises:** `ValueError` for pools that cannot be compared: of other block sizes, or of other usable
    blocks where one came under pressure.
    """
    _check_pools(left, right)
    size = left.pool.spec.block_size
    steps = np.union1d(left.steps, right.steps)
    places = [np.searchsorted(side.steps, steps) for side in (left, right)]
    for step, a, b in zip(steps.tolist(), *places, strict=True):
        rows = _row_at(left, step, int(a)), _row_at(right, step, int(b))
        columns = _differing(rows[0], rows[1], left.declared, right.declared, size)
        if columns:
            return Disagreement(step, columns, rows, (left.name, right.name))
    return None


def _check_pools(left: Side, right: Side) -> None:
    specs = left.pool.spec, right.pool.spec
    if specs[0].block_size != specs[1].block_size:
        raise ValueError(
            f"{left.name} has blocks of {specs[0].block_size} tokens, {right.name} of {specs[1].block_size}: "
            "open both with the same"
        )
    pressed = any(side.pool.column(name).any() for side in (left, right) for name in PRESSURE)
    if pressed and specs[0].usable_blocks != specs[1].usable_blocks:
        raise ValueError(
            f"{left.name} has {specs[0].usable_blocks} usable blocks, {right.name} "
            f"{specs[1].usable_blocks}, and they do not suffice: give both as many, null blocks apart"
        )


def _row_at(side: Side, step: int, place: int) -> dict[str, int] | None:
    if place >= len(side.steps) or side.steps[place] != step:
        return None
    row = side.pool.rows[place]
    return {name: int(row[INDEX[name]]) for name in SHOWN}


def _differing(
    left: dict[str, int] | None, right: dict[str, int] | None, a: Declared, b: Declared, size: int
) -> tuple[str, ...]:
    if left is None or right is None:
        return ("rows",)
    names = tuple(name for name in SHOWN if left[name] != right[name] or ABSENT in (left[name], right[name]))
    if not names or not set(names) <= {"payload", "live_blocks", "slack"}:
        return names
    more, fewer, declared, other = (left, right, a, b)
    if left["live_blocks"] < right["live_blocks"]:
        more, fewer, declared, other = (right, left, b, a)
    blocks, payload, slack = (more[name] - fewer[name] for name in ("live_blocks", "payload", "slack"))
    running = more["running"]
    ahead = declared.lookahead_tokens - other.lookahead_tokens
    copies = running - 1 if declared.copies_at_fork and not other.copies_at_fork else 0
    bound = max(0, -(-ahead // size)) * running + max(0, copies)
    accounted = blocks * size == payload + slack and (payload == 0 or copies > 0) and payload >= 0
    return () if 0 < blocks <= bound and accounted else names


def _row_text(row: dict[str, int] | None) -> str:
    if row is None:
        return "no row"
    return ", ".join(f"{name} {'not seen' if value == ABSENT else value}" for name, value in row.items())
