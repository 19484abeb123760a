"""Snapshots that are none by their form, or say the wrong thing: each is named, none passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import PoolKey, PoolSnapshot
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.replay.driver import Replay

    Drive = Callable[..., Replay]
    Fields = dict[str, Any]
    Distort = Callable[[PoolSnapshot], Fields]


class Distorting(ReferenceEngine):
    """Says what `distort` makes of the truth, from its third snapshot on."""

    shots = 0

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        (shot,) = super().snapshot(since)
        self.shots += 1
        return (shot,) if self.shots < 3 else (replace(shot, **self.distort(shot)),)

    def distort(self, shot: PoolSnapshot) -> Fields:
        raise NotImplementedError


def distorting(distort: Distort) -> type[ReferenceEngine]:
    return type("Engine", (Distorting,), {"distort": lambda self, shot: distort(shot)})


def ids(*blocks: int) -> Int32Array:
    return np.array(blocks, np.int32)


def put(blocks: Int32Array | None, at: int, value: int) -> Int32Array:
    assert blocks is not None
    blocks = blocks.copy()
    blocks[at] = value
    return blocks


ARRAYS = (
    *("lengths", "table_rows", "table_offsets", "table_blocks", "free", "cached", "quarantined", "live"),
    *("never_allocatable", "null_ids", "ref_count_ids", "ref_counts"),
)
SPOILS: dict[str, Callable[[Any], Any]] = {
    "float": lambda array: array.astype(np.float64),
    "narrow": lambda array: array.astype(np.int16),
    "object": lambda array: array.astype(object),
    "two-dimensional": lambda array: array.reshape(1, -1),
    "list": lambda array: array.tolist(),
    "text": lambda array: "none",
}


@pytest.mark.parametrize("field", ARRAYS)
@pytest.mark.parametrize("spoil", SPOILS)
def test_an_array_of_another_kind_is_named(field: str, spoil: str, drive: Drive) -> None:
    engine = distorting(lambda shot: {field: SPOILS[spoil](getattr(shot, field))})
    with pytest.raises(EngineError, match=rf"snapshot at step \d+: {field} is .*, expected int(32|64)\[n\]"):
        drive(engine)


FULL: dict[str, tuple[Distort, str]] = {
    "no lengths": (lambda s: {"lengths": None}, "lengths is None"),
    "few lengths": (lambda s: {"lengths": s.lengths[:-1]}, "2 lengths for 3 request_ids"),
    "negative": (lambda s: {"lengths": -s.lengths}, "r1 has length -36, expected 0 to"),
    "huge": (lambda s: {"lengths": s.lengths + 2**40}, "expected 0 to 2147483647 tokens"),
    "ids in a list": (lambda s: {"request_ids": list(s.request_ids)}, "request_ids is .*, expected a tuple"),
    "one id thrice": (lambda s: {"request_ids": s.request_ids[:1] * 3}, "request_ids has r0 twice"),
    "ids of numbers": (lambda s: {"request_ids": (0, 1, 2)}, "something else than request ids"),
    "loose entry": (lambda s: {"table_blocks": np.append(s.table_blocks, ids(0))}, "do not rise from 0 to"),
    "falling offsets": (lambda s: {"table_offsets": s.table_offsets[::-1]}, "do not rise from 0"),
    "few offsets": (lambda s: {"table_offsets": s.table_offsets[:-1]}, "3 table_offsets for 3 table_rows"),
    "rows in disorder": (lambda s: {"table_rows": s.table_rows[::-1]}, r"expected 0\.\.2"),
    "block past": (lambda s: {"table_blocks": put(s.table_blocks, 0, 16)}, "block 16 in the table of r0"),
    "block before": (lambda s: {"table_blocks": put(s.table_blocks, -1, -5)}, "block -5 in the table of r2"),
    "count of a block past": (lambda s: {"ref_count_ids": put(s.ref_count_ids, 0, 99)}, "has block 99"),
    "few counts": (lambda s: {"ref_counts": ids(1)}, "expected as many of both"),
    "counts of nothing": (lambda s: {"ref_count_ids": None}, "None ref_count_ids and"),
    "few first": (lambda s: {"first_live": np.zeros(1, np.int64)}, "1 entries in first_live for 3"),
    "live": (lambda s: {"live": ids(0)}, "live has 1 blocks in a full snapshot"),
    "revision of text": (lambda s: {"revision": "9"}, "revision is '9', expected an int"),
    "revision back": (lambda s: {"revision": 1}, "revision went back to 1 from 2"),
    "look-ahead": (lambda s: {"lookahead_tokens": 9}, "9 look-ahead tokens.*does not claim LOOKAHEAD"),
    "negative look-ahead": (lambda s: {"lookahead_tokens": -1}, "-1 look-ahead tokens"),
    "run past": (lambda s: {"largest_free_run": 17}, "largest_free_run is 17, expected an int of 0 to 16"),
    "float run": (lambda s: {"largest_free_run": 2.0}, r"largest_free_run is 2\.0"),
    "other pool": (lambda s: {"key": PoolKey(3)}, r"pools \['device/g3/r0'\], expected every pool"),
}


@pytest.mark.parametrize("name", FULL)
def test_a_full_snapshot_without_its_form_is_named(name: str, drive: Drive) -> None:
    distort, says = FULL[name]
    with pytest.raises(EngineError, match=says):
        drive(distorting(distort), read_all=True)


CHANGED: dict[str, tuple[Distort, str]] = {
    "other base": (lambda s: {"since": 77, "revision": 78}, "answered with changes since revision 77"),
    "no advance": (lambda s: {"revision": s.since}, "revision 3 builds on 3, expected a later one"),
    "float base": (lambda s: {"since": float(s.since or 0)}, r"builds on 3\.0"),
    "row past": (lambda s: {"table_rows": s.table_rows + ids(9)}, "expected distinct rows below 3"),
    "row twice": (lambda s: {"table_rows": s.table_rows * ids(0)}, "expected distinct rows below 3"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_snapshot_without_its_form_is_named(name: str, drive: Drive) -> None:
    distort, says = CHANGED[name]
    with pytest.raises(EngineError, match=says):
        drive(distorting(lambda shot: {} if shot.is_full else distort(shot)))


def test_changes_where_all_was_asked_for_are_refused(drive: Drive) -> None:
    engine = distorting(lambda s: {"since": s.revision - 1} if s.is_full else {})
    with pytest.raises(
        EngineError, match=r"answered snapshot\(None\).* with changes since \d+, expected a full"
    ):
        drive(engine)


def shorter_tables(shot: PoolSnapshot) -> Fields:
    tables = [shot.table(row)[:-1] for row in range(len(shot.table_rows))]
    offsets = np.cumsum([0, *map(len, tables)], dtype=np.int64)
    return {"table_offsets": offsets, "table_blocks": np.concatenate([ids(), *tables])}


WRONG: dict[str, tuple[Distort, str]] = {
    "longer": (lambda s: {"lengths": s.lengths + 1}, "lengths"),
    "others": (lambda s: {"request_ids": tuple(f"other-{name}" for name in s.request_ids)}, "lengths"),
    "in disorder": (lambda s: {"request_ids": s.request_ids[::-1]}, "lengths"),
    "shorter tables": (shorter_tables, "slack"),
    "block twice": (
        lambda s: {"table_blocks": put(s.table_blocks, 1, s.table_blocks[0])} if s.request_ids else {},
        "tables",
    ),
    "free past": (lambda s: {"free": np.append(s.free, ids(99))}, "partition"),
    "cached before": (lambda s: {"cached": np.append(s.cached, ids(-3))}, "partition"),
    "never allocatable": (lambda s: {"never_allocatable": s.free[:1], "free": s.free[1:]}, "partition"),
    "free twice": (lambda s: {"free": np.append(s.free, s.free[:1])}, "closure"),
    "all null": (lambda s: {"null_ids": s.table_blocks}, "lengths"),
    "all dropped": (lambda s: {"first_live": s.lengths}, "lengths"),
    "negative counts": (
        lambda s: {"ref_counts": -s.ref_counts if s.ref_counts is not None else None},
        "recount",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_snapshot_that_says_the_wrong_thing_breaks_a_law(name: str, drive: Drive) -> None:
    distort, law = WRONG[name]
    done = drive(distorting(distort), read_all=True)
    assert law in {violation.invariant for violation in done.violations}


def test_changes_whose_ids_are_out_of_range_break_the_partition(drive: Drive) -> None:
    done = drive(distorting(lambda s: {} if s.is_full else {"free": np.append(s.free, ids(99))}))
    assert "block 99 is listed free, the pool has ids 0..15" in {v.message for v in done.violations}


def test_reference_counts_that_are_given_now_and_then_are_not_judged(drive: Drive) -> None:
    """Absent while sequences are live, present when nothing is left to count."""
    silent = {"ref_count_ids": None, "ref_counts": None}
    done = drive(distorting(lambda s: silent if s.request_ids else {}), read_all=True)
    assert [absence.invariant for absence in done.not_judged] == ["recount"]


class Forgetful(ReferenceEngine):
    """Its first full snapshot after changes shows nobody."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        (shot,) = super().snapshot(since)
        if not shot.is_full or shot.revision != 3:
            return (shot,)
        nobody: Fields = {"request_ids": (), "lengths": np.zeros(0, np.int64), "table_rows": ids()}
        return (replace(shot, **nobody, table_offsets=np.zeros(1, np.int64), table_blocks=ids()),)


def test_a_full_snapshot_that_lacks_a_sequence_is_not_what_the_changes_came_to(drive: Drive) -> None:
    found = [v.message for v in drive(Forgetful).violations if v.invariant == "changes"]
    assert "r0 is live by the changes reported so far, and not in the full snapshot" in found


class OneBuffer(ReferenceEngine):
    """Gives its tables out in one buffer, which the next snapshot overwrites."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._buffer = np.zeros(256, np.int32)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        (shot,) = super().snapshot(since)
        self._buffer[:] = -1
        given = self._buffer[: len(shot.table_blocks)]
        given[:] = shot.table_blocks
        return (replace(shot, table_blocks=given),)


def test_an_engine_may_use_its_buffer_again(drive: Drive) -> None:
    assert drive(OneBuffer).violations == ()
