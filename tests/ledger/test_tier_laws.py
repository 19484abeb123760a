"""The laws of tiers and lifetimes, each shown to hold and to break on figures written out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.engine.contract import Transfer
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger.lifetimes import blocks_in_use, metadata, slope
from kvsuite.ledger.tiers import pins, reachable, reset_empties, room_is_made, tier_bytes, told_is_taken
from kvsuite.trace.request import RequestId

DEVICE, HOST = PoolKey(), PoolKey(tier="host")


def move(ref: int, source: int, target: int) -> Transfer:
    return Transfer(ref, DEVICE, source, HOST, target, 4, RequestId("a"))


def shot(
    key: PoolKey, *, free: int = 0, cached: tuple[int, ...] = (), pinned: tuple[int, ...] = ()
) -> PoolSnapshot:
    return PoolSnapshot(
        key=key,
        revision=1,
        since=None,
        request_ids=(),
        lengths=np.zeros(0, np.int64),
        table_rows=NO_BLOCKS,
        table_offsets=np.zeros(1, np.int64),
        table_blocks=NO_BLOCKS,
        free=np.arange(free, dtype=np.int32),
        cached=np.array(cached, np.int32),
        pinned=np.array(pinned, np.int32),
    )


class TestPins:
    def test_each_end_is_pinned_once_a_transfer(self) -> None:
        moves = [move(0, 3, 5), move(1, 3, 6)]
        assert not list(pins(moves, [shot(DEVICE, pinned=(3, 3)), shot(HOST, pinned=(5, 6))]))

    @pytest.mark.parametrize(
        ("device", "host", "pool", "block"),
        [
            ((), (5,), "device", 3),
            ((3,), (), "host", 5),
            ((3, 3), (5,), "device", 3),
            ((3,), (5, 7), "host", 7),
        ],
    )
    def test_a_missing_or_surplus_pin_is_named(
        self, device: tuple[int, ...], host: tuple[int, ...], pool: str, block: int
    ) -> None:
        (found,) = pins([move(0, 3, 5)], [shot(DEVICE, pinned=device), shot(HOST, pinned=host)], 7)
        assert found.invariant == "pins"
        assert found.step == 7
        assert found.pool.startswith(pool)
        assert f"block {block} is pinned" in found.message

    def test_a_launched_step_may_pin_more_and_never_less(self) -> None:
        more, less = shot(DEVICE, pinned=(3, 4)), shot(DEVICE, pinned=(4,))
        ends = [move(0, 3, 5)]
        assert not list(pins(ends, [more, shot(HOST, pinned=(5,))], steps_in_flight=True))
        assert len(list(pins(ends, [less, shot(HOST, pinned=(5,))], steps_in_flight=True))) == 1


class TestRoom:
    def test_as_many_stores_begin_as_were_offered_and_have_room(self) -> None:
        """Two offered; one free and three cached, so both go in. With one block in all, one does."""
        begun = [move(0, 1, 1), move(1, 2, 2)]
        assert not list(room_is_made(shot(HOST, free=1, cached=(1, 2, 3)), 2, begun))
        assert not list(room_is_made(shot(HOST, free=1), 2, begun[:1]))

    def test_a_full_tier_that_takes_nothing_is_stuck(self) -> None:
        (found,) = room_is_made(shot(HOST, cached=(0, 1, 2)), 2, [])
        assert found.invariant == "progress"
        assert "0 of 2 offered blocks" in found.message


@pytest.mark.parametrize(("found_blocks", "broken"), [(7, 0), (6, 0), (5, 1), (0, 1)])
def test_one_eviction_costs_a_chain_one_block(found_blocks: int, broken: int) -> None:
    assert len(list(reachable(7, 1, found_blocks, HOST))) == broken


def test_a_reset_leaves_nothing_cached_in_any_tier() -> None:
    assert not list(reset_empties([shot(DEVICE, free=4), shot(HOST, free=2)]))
    (found,) = reset_empties([shot(DEVICE, free=4), shot(HOST, cached=(6, 2))], 3)
    assert (found.invariant, found.pool, found.step) == ("reset", str(HOST), 3)
    assert "2 blocks are cached" in found.message


def test_what_was_told_is_what_was_taken() -> None:
    assert not list(told_is_taken(3, 3, DEVICE, "a"))
    assert [found.invariant for found in told_is_taken(1, 3, DEVICE, "a")] == ["promise"]


@pytest.mark.parametrize(("requested_gib", "tolerance", "broken"), [(64, 0.0, 0), (40, 0.0, 1), (60, 0.1, 0)])
def test_a_tier_is_as_large_as_it_was_asked_to_be(requested_gib: int, tolerance: float, broken: int) -> None:
    """64 blocks of 1 GiB."""
    spec = PoolSpec(HOST, num_blocks=64, block_size=1, bytes_per_token=1 << 30)
    assert len(list(tier_bytes(spec, requested_gib << 30, tolerance))) == broken


class TestLifetimes:
    def test_cached_blocks_are_not_in_use(self) -> None:
        assert blocks_in_use(shot(DEVICE, free=3, cached=(4, 5)), 8) == 3

    def test_a_level_that_stays_has_no_slope(self) -> None:
        assert not list(slope([], "p"))
        assert not list(slope([2, 2, 3, 2], "p"))

    def test_a_level_that_rises_is_a_leak_a_cycle(self) -> None:
        """0, 0, 1, 1, 2: two blocks over four cycles, from the third on."""
        (found,) = slope([0, 0, 1, 1, 2], "p")
        assert found.invariant == "slope"
        assert "0.5 a cycle, from cycle 2 on" in found.message

    def test_objects_that_outlive_their_engines(self) -> None:
        assert not list(metadata(1000, 1039, 40))
        (found,) = metadata(1000, 1080, 40)
        assert found.invariant == "metadata"
        assert "2 an engine" in found.message
