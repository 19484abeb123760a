"""The model of the caching allocator: worked examples, and its identities over random operations."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.device import cuda_model
from kvsuite.device.counters import AllocatorBytes, CudaCounters, check_counters
from kvsuite.device.cuda_model import MIB, AllocatorRules, CudaAllocatorModel, rounded_bytes, segment_bytes


def counted(*requests: int) -> AllocatorBytes:
    model = CudaAllocatorModel()
    for request in requests:
        model.malloc(request)
    assert check_counters(model.counters()) == ()
    return model.counters().all


def test_doctests_of_the_model_hold() -> None:
    assert doctest.testmod(cuda_model).failed == 0


@pytest.mark.parametrize(
    ("requested", "divisions", "block"),
    [
        (1, 0, 512),
        (512, 0, 512),
        (513, 0, 1024),
        (1200, 0, 1536),
        (1200, 4, 1536),  # not above 512 * 4, so plain rounding: 3 x 512
        (2048, 4, 2048),
        (2049, 4, 2560),  # steps of 2048 / 4
        (2560, 4, 2560),
        (3073, 4, 3584),
        (5 * MIB, 8, 5 * MIB),  # steps of 4 MiB / 8
        (5 * MIB + 1, 8, 5 * MIB + MIB // 2),
    ],
)
def test_requests_are_rounded_up_to_blocks(requested: int, divisions: int, block: int) -> None:
    assert rounded_bytes(requested, divisions) == block


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (23 * MIB, 24 * MIB),
    ],
)
def test_segments_are_reserved_by_size_class(block: int, segment: int) -> None:
    assert segment_bytes(block) == segment


def test_a_large_remainder_of_half_a_mib_stays_with_its_block() -> None:
    asked = 11 * MIB + MIB // 2
    assert counted(asked) == AllocatorBytes(asked, 12 * MIB, 12 * MIB, 0, 12 * MIB)


def test_a_large_remainder_of_one_mib_stays_too() -> None:
    assert counted(11 * MIB) == AllocatorBytes(11 * MIB, 12 * MIB, 12 * MIB, 0, 12 * MIB)


def test_a_small_remainder_of_one_block_is_split_off() -> None:
    asked = 2 * MIB - 512
    assert counted(MIB, MIB - 512) == AllocatorBytes(asked, asked, asked, 512, 2 * MIB)


def test_the_smallest_hole_that_fits_is_taken() -> None:
    """4 + 2 + 8 + 6 fill a segment; of the holes 4 and 8, 3 MiB go to the first, and leave too little."""
    model = CudaAllocatorModel()
    small_hole, _, large_hole, _ = (model.malloc(size * MIB) for size in (4, 2, 8, 6))
    model.free(large_hole)
    model.free(small_hole)
    model.malloc(3 * MIB)
    assert model.counters().all == AllocatorBytes(11 * MIB, 12 * MIB, 12 * MIB, 8 * MIB, 20 * MIB)


def test_a_small_block_is_split_off_its_segment() -> None:
    assert counted(1000) == AllocatorBytes(1000, 1024, 1024, 2 * MIB - 1024, 2 * MIB)


def test_three_large_requests_share_one_segment() -> None:
    # 20 = 9 + 9 + 2: the last 1.5 MiB would leave half a MiB, so it gets the whole 2 MiB.
    assert counted(9 * MIB, 9 * MIB, 3 * MIB // 2) == AllocatorBytes(
        19 * MIB + MIB // 2, 20 * MIB, 20 * MIB, 0, 20 * MIB
    )


def test_a_pool_of_whole_segments_is_requested_allocated_and_reserved_alike() -> None:
    assert counted(16 * MIB) == AllocatorBytes(16 * MIB, 16 * MIB, 16 * MIB, 0, 16 * MIB)


def test_oversize_blocks_are_kept_for_oversize_requests() -> None:
    model = CudaAllocatorModel(AllocatorRules(max_split_bytes=32 * MIB))
    model.free(model.malloc(40 * MIB))
    model.malloc(30 * MIB)
    assert model.counters().all.reserved_bytes == 70 * MIB
    model.malloc(33 * MIB)
    assert model.counters().all == AllocatorBytes(63 * MIB, 70 * MIB, 70 * MIB, 0, 70 * MIB)


def test_an_oversize_request_leaves_a_block_that_is_a_large_segment_too_big() -> None:
    model = CudaAllocatorModel(AllocatorRules(max_split_bytes=32 * MIB))
    model.free(model.malloc(60 * MIB))
    model.malloc(40 * MIB)
    assert model.counters().all.reserved_bytes == 100 * MIB


def test_freed_neighbours_merge_and_empty_cache_returns_the_segment() -> None:
    model = CudaAllocatorModel()
    first, middle, last = (model.malloc(4 * MIB) for _ in range(3))
    model.free(first)
    model.free(last)
    assert model.counters().all.inactive_split_bytes == 4 * MIB + (20 - 8) * MIB
    model.empty_cache()
    assert model.counters().all.reserved_bytes == 20 * MIB
    model.free(middle)
    assert model.counters().all == AllocatorBytes(0, 0, 0, 0, 20 * MIB)
    assert model.counters().segments.whole_free_bytes == 20 * MIB
    model.empty_cache()
    assert model.counters().all == AllocatorBytes(0, 0, 0, 0, 0)


def test_a_block_another_stream_uses_stays_active_until_it_is_settled() -> None:
    model = CudaAllocatorModel()
    block = model.malloc(10 * MIB)
    model.free(block, awaited=True)
    assert model.counters().all == AllocatorBytes(10 * MIB, 0, 10 * MIB, 0, 10 * MIB)
    assert model.counters().segments.awaiting_free_bytes == 10 * MIB
    assert check_counters(model.counters()) == ()
    model.settle(block)
    assert model.counters().all == AllocatorBytes(0, 0, 0, 0, 10 * MIB)


RULES = st.sampled_from(
    [
        AllocatorRules(),
        AllocatorRules(roundup_power2_divisions=4),
        AllocatorRules(roundup_power2_divisions=8, max_split_bytes=32 * MIB),
        AllocatorRules(large_segment_bytes=64 * MIB),
    ]
)
SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(1, 64 * MIB))
OPERATIONS = st.lists(st.tuples(st.sampled_from("mmmmfffawe"), SIZES), max_size=60)


@given(rules=RULES, operations=OPERATIONS)
def test_identities_hold_after_any_operations(
    rules: AllocatorRules, operations: list[tuple[str, int]]
) -> None:
    model = CudaAllocatorModel(rules)
    live, awaited = [], []
    asked = 0
    for verb, number in operations:
        if verb == "m":
            live.append(model.malloc(number))
            asked += number
        elif verb in "fa" and live:
            block = live.pop(number % len(live))
            if verb == "f":
                asked -= block.requested
            else:
                awaited.append(block)
            model.free(block, awaited=verb == "a")
        elif verb == "w" and awaited:
            block = awaited.pop(number % len(awaited))
            asked -= block.requested
            model.settle(block)
        elif verb == "e":
            asked -= sum(block.requested for block in awaited)
            awaited.clear()
            model.empty_cache()
        assert check_counters(model.counters()) == ()
        assert model.counters().all.requested_bytes == asked
    for block in live:
        model.free(block)
    model.empty_cache()
    assert model.counters().all == AllocatorBytes(0, 0, 0, 0, 0)


def sound() -> CudaCounters:
    model = CudaAllocatorModel()
    model.malloc(1000)
    model.free(model.malloc(10 * MIB))
    model.free(model.malloc(3 * MIB), awaited=True)
    return model.counters()


@pytest.mark.parametrize(
    ("part", "column", "said"),
    [
        ("all", "requested_bytes", "requested"),
        ("all", "allocated_bytes", "allocated"),
        ("all", "active_bytes", "active"),
        ("all", "inactive_split_bytes", "inactive split"),
        ("all", "reserved_bytes", "segments"),
        ("small", "reserved_bytes", "small and large pool"),
        ("segments", "total_bytes", "their blocks"),
        ("segments", "awaiting_free_bytes", "awaiting free"),
        ("segments", "whole_free_bytes", "whole free"),
        ("segments", "odd_segments", "not a multiple"),
    ],
)
def test_every_miscounted_byte_breaks_an_identity(part: str, column: str, said: str) -> None:
    counters = sound()
    assert check_counters(counters) == ()
    counted_part = getattr(counters, part)
    off_by_one = replace(counted_part, **{column: getattr(counted_part, column) + 1})
    broken = check_counters(replace(counters, **{part: off_by_one}))
    assert any(said in sentence for sentence in broken)


def test_counters_out_of_order_are_told() -> None:
    counters = sound()
    more = replace(counters.all, requested_bytes=counters.all.active_bytes + 1)
    assert any("does not hold" in sentence for sentence in check_counters(replace(counters, all=more)))


def test_a_card_with_less_in_use_than_one_process_reserved_is_told() -> None:
    counters = sound()
    reserved = counters.all.reserved_bytes
    assert check_counters(replace(counters, device_used_bytes=reserved)) == ()
    (sentence,) = check_counters(replace(counters, device_used_bytes=reserved - 1))
    assert sentence.startswith(f"the card has {reserved - 1} bytes in use")
