"""The laws of gauges: each fires on the reading that breaks it, and on no sound one."""

from __future__ import annotations

import doctest
from dataclasses import replace

import numpy as np
import pytest

from kvsuite.engine.snapshot import NO_BLOCKS, Gauges, PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger import gauges as laws
from kvsuite.trace.model import RequestId

ALL_SHARES = {"gauge-used", "gauge-cached", "gauge-free"}
SPEC = PoolSpec(PoolKey(), num_blocks=11, block_size=4, bytes_per_token=128, never_allocatable_blocks=1)
RIGHT = Gauges(SPEC.key, used=0.4, cached=0.3, free=0.3, capacity_tokens=40, hit_tokens=16)


def ids(*blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(blocks, np.int32)


BUSY = PoolSnapshot(
    key=SPEC.key,
    revision=1,
    since=None,
    request_ids=(RequestId("a"), RequestId("b")),
    lengths=np.array([10, 7]),
    table_rows=ids(0, 1),
    table_offsets=np.array([0, 3, 5]),
    table_blocks=ids(0, 1, 2, 1, 3),  # block 0 is the null block, block 1 is shared
    free=ids(8, 9, 10),
    cached=ids(5, 6, 7),
    quarantined=ids(4),
    never_allocatable=ids(0),
    null_ids=ids(0),
)
IDLE = replace(
    BUSY, request_ids=(), table_blocks=NO_BLOCKS, quarantined=NO_BLOCKS, free=ids(1, 2, 3, 4, 8, 9, 10)
)


def fired(gauges: Gauges, snapshot: PoolSnapshot = BUSY) -> set[str]:
    found = [
        *laws.gauge_range(gauges, 3),
        *laws.gauge_sum(gauges, 3),
        *laws.gauge_shares(gauges, SPEC, snapshot, 3),
        *laws.gauge_idle(gauges, snapshot, 3),
        *laws.gauge_hits(gauges, 16, 3),
    ]
    assert all(law.step == 3 for law in found)
    assert all(law.pool == "device/g0/r0" for law in found)
    return {law.invariant for law in found}


def test_doctests_hold() -> None:
    assert doctest.testmod(laws).failed == 0


def test_quarantined_blocks_are_used_and_null_blocks_are_nothing() -> None:
    assert laws.block_shares(SPEC, BUSY) == {"used": 4, "cached": 3, "free": 3}
    assert fired(RIGHT) == set()


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"used": 0.3, "free": 0.4}, {"gauge-used", "gauge-free"}),  # the quarantined block taken for free
        ({"used": 0.5, "cached": 0.2}, {"gauge-used", "gauge-cached"}),
        ({"used": 4 / 11, "cached": 3 / 11, "free": 3 / 11}, {"gauge-sum", *ALL_SHARES}),
        ({"used": 1.1, "free": -0.4}, {"gauge-range", "gauge-used", "gauge-free"}),
        ({"hit_tokens": 20}, {"gauge-hits"}),
    ],
)
def test_each_law_fires(change: dict[str, float], seen: set[str]) -> None:
    assert fired(replace(RIGHT, **change)) == seen  # type: ignore[arg-type]


def test_an_idle_pool_is_unused_however_much_is_cached() -> None:
    assert fired(replace(RIGHT, used=0, cached=0.3, free=0.7), IDLE) == set()
    assert "gauge-idle" in fired(replace(RIGHT, used=0.3, cached=0, free=0.7), IDLE)
    quarantine = replace(IDLE, quarantined=ids(4), free=ids(1, 2, 3, 8, 9, 10))
    assert fired(replace(RIGHT, used=0.1, cached=0.3, free=0.6), quarantine) == set()


@pytest.mark.parametrize(
    ("claimed", "found", "seen"),
    [
        (40, 40, set()),
        (40, 37, set()),  # the longest that went in was capped inside the last block
        (38, 40, {"gauge-whole-blocks", "gauge-capacity"}),
        (44, 40, {"gauge-capacity"}),
        (36, 40, {"gauge-capacity"}),
    ],
)
def test_capacity(claimed: int, found: int, seen: set[str]) -> None:
    told = replace(RIGHT, capacity_tokens=claimed)
    assert {law.invariant for law in laws.gauge_capacity(told, SPEC, found)} == seen


@pytest.mark.parametrize("largest", [0, 1, 2, 63, 64])
def test_longest_finds_the_border(largest: int) -> None:
    assert laws.longest(lambda number: number <= largest, 64) == largest


def test_messages_say_found_and_expected() -> None:
    (law,) = laws.gauge_shares(replace(RIGHT, used=0.5), SPEC, BUSY)
    assert law.message == "used reads 0.5000, expected 4 of 10 usable blocks = 0.4000"
