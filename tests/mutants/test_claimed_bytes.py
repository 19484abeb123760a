"""The figures in the claims of mutants are those of the model of the CUDA caching allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.device.cuda_model import MIB, CudaAllocatorModel
from kvsuite.mutants.claimed_bytes import (
    OWN_SEGMENT_FROM_BYTES,
    SPLIT_REST_BYTES,
    own_segment_bytes,
    reserved_after_survivor_bytes,
)

if TYPE_CHECKING:
    from kvsuite.device.counters import AllocatorBytes

SURVIVOR_BYTES = MIB + 512
"""One rounding step above what would come from the small pool."""


def after_survivor(pool_bytes: int) -> AllocatorBytes:
    model = CudaAllocatorModel()
    warm_up = model.malloc(pool_bytes)
    model.free(warm_up)
    model.malloc(SURVIVOR_BYTES)
    model.malloc(pool_bytes)
    return model.counters().all


@pytest.mark.parametrize("pool_mib", [10, 12, 40, 402])
def test_a_small_survivor_doubles_what_is_reserved(pool_mib: int) -> None:
    pool_bytes = pool_mib * MIB
    seen = after_survivor(pool_bytes)
    assert seen.reserved_bytes == reserved_after_survivor_bytes(pool_bytes) == 2 * pool_bytes
    assert seen.requested_bytes == pool_bytes + SURVIVOR_BYTES


@pytest.mark.parametrize(
    ("pool_bytes", "alone", "reserved"),
    [
        (OWN_SEGMENT_FROM_BYTES, 10 * MIB, 20 * MIB),
        (OWN_SEGMENT_FROM_BYTES - 512, 20 * MIB, 20 * MIB),  # beside the survivor in one shared segment
        (SURVIVOR_BYTES, 20 * MIB, 20 * MIB),
        (MIB, 2 * MIB, 22 * MIB),  # in the small pool, which the survivor never touches
    ],
)
def test_ten_mib_is_the_smallest_pool_with_which_that_happens(
    pool_bytes: int, alone: int, reserved: int
) -> None:
    """Below it the pool goes back to where it was: the survivor costs at most a segment of its own."""
    model = CudaAllocatorModel()
    model.malloc(pool_bytes)
    assert model.counters().all.reserved_bytes == alone
    assert after_survivor(pool_bytes).reserved_bytes == reserved


def test_a_survivor_from_the_small_pool_splits_nothing_of_the_large_one() -> None:
    model = CudaAllocatorModel()
    model.free(model.malloc(10 * MIB))
    model.malloc(MIB)
    model.malloc(10 * MIB)
    assert model.counters().all.reserved_bytes == 10 * MIB + 2 * MIB


@pytest.mark.parametrize(
    ("asked", "allocated"),
    [(11.5, 12), (10, 10), (10.5, 12 - 1.5), (11, 12), (12, 12), (13.25, 14)],
)
def test_rounding_that_a_claim_swallows(asked: float, allocated: float) -> None:
    """Up to 1 MiB left in a segment is not split off: 11.5 MiB asked, 12 allocated; 10.5 leave 1.5."""
    model = CudaAllocatorModel()
    asked_bytes = int(asked * MIB)
    model.malloc(asked_bytes)
    seen = model.counters().all
    assert seen.requested_bytes == asked_bytes
    assert seen.allocated_bytes == int(allocated * MIB)
    assert seen.reserved_bytes == own_segment_bytes(asked_bytes)
    rest_bytes = own_segment_bytes(asked_bytes) - asked_bytes
    assert seen.allocated_bytes == asked_bytes + (rest_bytes if rest_bytes <= SPLIT_REST_BYTES else 0)
