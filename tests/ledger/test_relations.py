"""Two runs that agree are silent, and each way to differ is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger.relations import Standing, agree, same_ledger, sharing_costs_nothing, standing
from kvsuite.ledger.row import COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import PoolTimeline, Timeline
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from typing import Any

SPEC = PoolSpec(PoolKey(), num_blocks=8, block_size=4, bytes_per_token=10)
SHOT = PoolSnapshot(
    key=SPEC.key,
    revision=1,
    since=None,
    request_ids=(RequestId("a"), RequestId("b")),
    lengths=np.array([9, 6], np.int64),
    table_rows=np.array([0, 1], np.int32),
    table_offsets=np.array([0, 3, 5], np.int64),
    table_blocks=np.array([0, 2, 3, 0, 1], np.int32),
    free=np.array([5, 6], np.int32),
    cached=np.array([4], np.int32),
    quarantined=np.array([7], np.int32),
)
STANDING = Standing("device/g0/r0", (6, 9), (2, 3), 4, 3, 1, (8, 0))


def timeline(*rows: dict[str, int]) -> Timeline:
    table = np.zeros((len(rows), len(COLUMN_NAMES)), np.int64)
    for at, row in enumerate(rows):
        for name, value in row.items():
            table[at, INDEX[name]] = value
    return Timeline(np.arange(len(rows), dtype=np.int64), (PoolTimeline(SPEC, table),))


def test_a_standing_leaves_ids_and_order_out() -> None:
    assert standing(SHOT, {"prompt": 8, "other": 0}) == STANDING
    swapped = replace(
        SHOT,
        lengths=SHOT.lengths[::-1],
        table_offsets=np.array([0, 2, 5], np.int64),
        table_blocks=np.array([7, 6, 7, 5, 4], np.int32),
        free=np.array([0, 1], np.int32),
        cached=np.array([2], np.int32),
        quarantined=np.array([3], np.int32),
    )
    assert standing(swapped, {"prompt": 8, "other": 0}) == STANDING


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": (6, 8)},
        {"tables": (2, 2)},
        {"unique_blocks": 5},
        {"room": 2},
        {"quarantined": 0},
        {"found": (0, 0)},
    ],
)
def test_standings_that_differ_are_named(change: dict[str, Any]) -> None:
    assert not list(agree("commute", "two orders", STANDING, STANDING))
    (found,) = agree("commute", "two orders", STANDING, replace(STANDING, **change))
    assert found.invariant == "commute"
    assert f"two orders differ: {next(iter(change))} " in found.message


def test_ledgers_that_differ_are_named_by_step_and_column() -> None:
    one = timeline({"payload": 4}, {"payload": 5, "free": 3})
    assert not list(same_ledger("repeat", "runs", one, timeline({"payload": 4}, {"payload": 5, "free": 3})))
    (found,) = same_ledger("repeat", "runs", one, timeline({"payload": 4}, {"payload": 6, "free": 3}))
    assert (found.step, found.message) == (1, "runs differ: payload 5 and 6; expected the same")
    (found,) = same_ledger("repeat", "runs", one, timeline({"payload": 4}))
    assert "2 steps and 1" in found.message


@pytest.mark.parametrize(
    ("shared", "broken"),
    [
        ({"logical": 9, "payload": 5}, 0),
        ({"logical": 9, "payload": 9}, 0),
        ({"logical": 8, "payload": 5}, 1),
        ({"logical": 9, "payload": 10}, 1),
    ],
)
def test_sharing_changes_the_unique_payload_only_and_only_downwards(
    shared: dict[str, int], broken: int
) -> None:
    private = timeline({"logical": 9, "payload": 9})
    assert len(list(sharing_costs_nothing(timeline(shared), private))) == broken
    longer = timeline({"logical": 9, "payload": 9}, {})
    assert len(list(sharing_costs_nothing(longer, private))) == 1
