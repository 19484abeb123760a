"""Device lines from counters: the CUDA ones come from the model, never from a made-up recording."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.device.counters import SegmentInfo, check_counters, cuda_counters
from kvsuite.device.cuda_model import MIB, CudaAllocatorModel
from kvsuite.device.memory import AreaBytes, HeldBytes, claimed_cache_gap, cuda_line, smaps_line
from kvsuite.ledger.invariants import device_closes

HELD = HeldBytes(pool_bytes=11 * MIB + MIB // 2, tables_bytes=1000, workspace_bytes=3000)


def test_a_pool_on_a_card_closes_to_the_byte() -> None:
    """11.5 MiB in a segment of 12; 1,000 and 3,000 bytes in blocks of 1,024 and 3,072 of one of 2 MiB."""
    model = CudaAllocatorModel()
    before = model.counters()
    for size in (HELD.pool_bytes, HELD.tables_bytes, HELD.workspace_bytes):
        model.malloc(size)
    line = cuda_line(3, before, model.counters(), HELD)
    assert (line.owner, line.observer, line.observed_bytes) == ("suite", "cuda caching allocator", 14 * MIB)
    assert line.rounding_bytes == MIB // 2 + 24 + 72
    assert line.reserve_bytes == 2 * MIB - 1024 - 3072
    assert line.unattributed_bytes == line.unattributed_bound_bytes == 0
    assert line.mapped_bytes is line.committed_bytes is None
    assert list(device_closes(line)) == []


def test_what_was_there_before_is_not_counted() -> None:
    model = CudaAllocatorModel()
    model.malloc(100 * MIB)
    before = model.counters()
    model.malloc(16 * MIB)
    line = cuda_line(0, before, model.counters(), HeldBytes(16 * MIB, 0, 0))
    assert (line.observed_bytes, line.rounding_bytes, line.reserve_bytes) == (16 * MIB, 0, 0)


def test_reserve_goes_below_zero_where_old_segments_were_used() -> None:
    model = CudaAllocatorModel()
    model.free(model.malloc(64 * MIB))
    before = model.counters()
    model.malloc(16 * MIB)
    line = cuda_line(0, before, model.counters(), HeldBytes(16 * MIB, 0, 0))
    assert (line.observed_bytes, line.reserve_bytes, line.unattributed_bytes) == (0, -16 * MIB, 0)
    assert list(device_closes(line)) == []


def test_what_another_stream_still_uses_is_active_and_not_reserve() -> None:
    model = CudaAllocatorModel()
    before = model.counters()
    model.malloc(16 * MIB)
    model.free(model.malloc(12 * MIB), awaited=True)
    line = cuda_line(0, before, model.counters(), HeldBytes(16 * MIB, 0, 0))
    assert (line.rounding_bytes, line.reserve_bytes, line.unattributed_bytes) == (0, 0, 12 * MIB)


def test_another_tensor_on_the_card_is_unattributed() -> None:
    model = CudaAllocatorModel()
    before = model.counters()
    model.malloc(16 * MIB)
    model.malloc(700)
    line = cuda_line(0, before, model.counters(), HeldBytes(16 * MIB, 0, 0))
    assert line.unattributed_bytes == 700
    (violation,) = device_closes(line)
    assert "700 bytes belong to no line" in violation.message


@given(
    sizes=st.lists(st.integers(1, 40 * MIB), min_size=3, max_size=3), noise=st.lists(st.integers(1, 9 * MIB))
)
def test_any_pool_closes_after_any_traffic(sizes: list[int], noise: list[int]) -> None:
    model = CudaAllocatorModel()
    kept = [model.malloc(size) for size in noise]
    for block in kept[::2]:
        model.free(block)
    before = model.counters()
    held = HeldBytes(*sizes)
    for size in sizes:
        model.malloc(size)
    for block in [model.malloc(size) for size in noise]:
        model.free(block)
    line = cuda_line(0, before, model.counters(), held)
    assert line.unattributed_bytes == 0
    assert list(device_closes(line)) == []


def test_linux_lines_add_pools_and_the_rest_apart() -> None:
    held = HeldBytes(10_000, 100, 50)
    pools = [AreaBytes(10_000, 4096, 12_288, 8192)]
    others = [AreaBytes(100, 4096, 4096, 0), AreaBytes(50, 4096, 4096, 4096)]
    line = smaps_line(1, held, pools, others, expected_committed_bytes=8192)
    assert line.observed_bytes == 20_480
    assert line.rounding_bytes == 2288 + 3996 + 4046
    assert (line.mapped_bytes, line.committed_bytes, line.unattributed_bytes) == (12_288, 8192, 0)
    assert list(device_closes(line)) == []


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("reserve", "the allocator's reserve counted as cache"),
        ("rounding", "rounding counted as cache"),
        ("tables", "block tables counted as cache"),
        ("workspace", "workspace counted as cache"),
        ("reserve+rounding", "the allocator's reserve and rounding counted as cache"),
        ("1", "no line of the reading accounts for it"),
        ("-1", "-1 bytes, no line of the reading"),
    ],
)
def test_what_is_not_cache_cannot_be_claimed_as_cache(extra: str, said: str) -> None:
    model = CudaAllocatorModel()
    before = model.counters()
    for size in (HELD.pool_bytes, HELD.tables_bytes, HELD.workspace_bytes):
        model.malloc(size)
    line = cuda_line(0, before, model.counters(), HELD)
    assert claimed_cache_gap(HELD.pool_bytes, line) is None
    amounts = {
        "reserve": 2 * MIB - 4096,
        "rounding": MIB // 2 + 96,
        "tables": 1000,
        "workspace": 3000,
        "reserve+rounding": 2 * MIB - 4096 + MIB // 2 + 96,
        "1": 1,
        "-1": -1,
    }
    told = claimed_cache_gap(HELD.pool_bytes + amounts[extra], line)
    assert told is not None
    assert said in told


def test_expandable_segments_have_no_inactive_split() -> None:
    """One expandable segment of 40 MiB mapped, 25 in use: the rest is inactive and not split."""
    kinds = {"requested": 25 * MIB, "allocated": 25 * MIB, "active": 25 * MIB, "reserved": 40 * MIB}
    stats = {
        f"{kind}_bytes.{pool}.current": size for kind, size in kinds.items() for pool in ("all", "large_pool")
    }
    segment = SegmentInfo(
        device=0,
        total_size=40 * MIB,
        is_expandable=True,
        blocks=[
            {"size": 25 * MIB, "requested_size": 25 * MIB, "state": "active_allocated"},
            {"size": 15 * MIB, "requested_size": 0, "state": "inactive"},
        ],
    )
    assert check_counters(cuda_counters(stats, [segment])) == ()
    segment["is_expandable"] = False
    assert len(check_counters(cuda_counters(stats, [segment]))) == 1
