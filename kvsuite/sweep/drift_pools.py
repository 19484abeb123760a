"""Two ledgers of one pool, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.golden.codec import COUNTED, FOOTPRINT
from kvsuite.ledger.row import ABSENT, COLUMNS, INDEX, Kind
from kvsuite.record.build import column_mean, column_peak, column_total
from kvsuite.record.drift_rows import DriftColumn, DriftFootprint, DriftPool

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.row import Column
    from kvsuite.ledger.timeline import PoolTimeline

    BoolArray = npt.NDArray[np.bool_]

_COUNTED = tuple(column for column in COLUMNS if column.name in COUNTED)
_BLOCKS_TOUCHED = FOOTPRINT[0]


@dataclass(frozen=True)
class _Aligned:
    """Two ledgers on the steps that either has: int64[steps, columns], 0 where a side has no row."""

    old: PoolTimeline
    new: PoolTimeline
    steps: Int64Array
    old_rows: Int64Array
    new_rows: Int64Array
    has_old: BoolArray
    has_new: BoolArray

    @property
    def both(self) -> BoolArray:
        return self.has_old & self.has_new

    def differ(self, name: str, kind: Kind) -> BoolArray:
        """Return the steps at which a column differs, bool[steps]."""
        at = INDEX[name]
        differ: BoolArray = self.old_rows[:, at] != self.new_rows[:, at]
        return differ if kind is Kind.EVENT else differ & self.both


def compare_pool(
    old: PoolTimeline, new: PoolTimeline, old_steps: Int64Array, new_steps: Int64Array
) -> DriftPool:
    """Return what differs between two ledgers of one pool, and what does not."""
    aligned = _align(old, new, old_steps, new_steps)
    changed: list[DriftColumn] = []
    equal: list[str] = []
    unseen: list[str] = []
    for column in _COUNTED:
        differ = aligned.differ(column.name, column.kind)
        if differ.any():
            changed.append(_changed_column(aligned, column, differ))
        elif len(old.rows) and (old.column(column.name) == ABSENT).all():
            unseen.append(column.name)
        else:
            equal.append(column.name)
    first = _first_place(aligned, changed)
    return DriftPool(
        key=str(old.spec.key),
        changed=changed,
        equal=equal,
        unseen=unseen,
        first_step=None if first is None else int(aligned.steps[first]),
        old_row={} if first is None or not aligned.has_old[first] else _row(aligned.old_rows[first]),
        new_row={} if first is None or not aligned.has_new[first] else _row(aligned.new_rows[first]),
        footprint=_footprint(aligned),
        drawn=_most_moved(aligned, changed)
        or (_BLOCKS_TOUCHED if aligned.differ(_BLOCKS_TOUCHED, Kind.LEVEL).any() else None),
    )


def _align(old: PoolTimeline, new: PoolTimeline, old_steps: Int64Array, new_steps: Int64Array) -> _Aligned:
    steps = np.union1d(old_steps, new_steps)
    has_old, has_new = np.isin(steps, old_steps), np.isin(steps, new_steps)
    old_rows = np.zeros((len(steps), old.rows.shape[1]), np.int64)
    new_rows = np.zeros_like(old_rows)
    old_rows[has_old], new_rows[has_new] = old.rows, new.rows
    return _Aligned(old, new, steps, old_rows, new_rows, has_old, has_new)


def _changed_column(aligned: _Aligned, column: Column, differ: BoolArray) -> DriftColumn:
    before, after = aligned.old.column(column.name), aligned.new.column(column.name)
    first = int(differ.argmax())
    level = column.kind is Kind.LEVEL
    size = column_mean if level else column_total
    at = INDEX[column.name]
    return DriftColumn(
        name=column.name,
        kind="level" if level else "event",
        unit=column.unit,
        old=size(before),
        new=size(after),
        old_peak=column_peak(before) if level else None,
        new_peak=column_peak(after) if level else None,
        steps_differ=int(differ.sum()),
        first_step=int(aligned.steps[first]),
        first_old=_seen(int(aligned.old_rows[first, at])) if aligned.has_old[first] else None,
        first_new=_seen(int(aligned.new_rows[first, at])) if aligned.has_new[first] else None,
    )


def _first_place(aligned: _Aligned, changed: list[DriftColumn]) -> int | None:
    """Return the first aligned step at which a counted column differs or one side has no row."""
    places = [int(np.searchsorted(aligned.steps, column.first_step)) for column in changed]
    places += np.flatnonzero(~aligned.both)[:1].tolist()
    return min(places, default=None)


def _footprint(aligned: _Aligned) -> DriftFootprint:
    touched, order = (aligned.differ(name, Kind.LEVEL) for name in FOOTPRINT)
    differ = touched | order
    ends = [pool.column(_BLOCKS_TOUCHED)[-1:].tolist() or [0] for pool in (aligned.old, aligned.new)]
    return DriftFootprint(
        old_blocks=_seen(ends[0][0]),
        new_blocks=_seen(ends[1][0]),
        same_order=not order.any(),
        steps_differ=int(differ.sum()),
        first_step=int(aligned.steps[differ.argmax()]) if differ.any() else None,
    )


def _most_moved(aligned: _Aligned, changed: list[DriftColumn]) -> str | None:
    """Return the level of slots or blocks that moved by the largest mean share of the pool."""
    spec = aligned.old.spec
    scales = {"tokens": spec.num_blocks * spec.block_size, "blocks": spec.num_blocks}
    shares: dict[str, float] = {}
    for column in changed:
        old, new = (rows[aligned.both, INDEX[column.name]] for rows in (aligned.old_rows, aligned.new_rows))
        seen = (old != ABSENT) & (new != ABSENT)
        if column.kind == "level" and column.unit in scales and seen.any():
            shares[column.name] = float(np.abs(new - old)[seen].mean()) / scales[column.unit]
    return max(shares, key=lambda name: shares[name], default=None)


def _row(row: Int64Array) -> dict[str, int | None]:
    return {column.name: _seen(int(row[INDEX[column.name]])) for column in _COUNTED}


def _seen(value: int) -> int | None:
    return None if value == ABSENT else value
