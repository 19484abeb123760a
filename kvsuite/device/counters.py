"""Counters of the CUDA caching allocator, and the identities that every reading must keep.

They belong to one process: workers that share a card do not see each other in them. Only
``device_used_bytes`` speaks of the whole card.

Source: ``DeviceStats`` and ``CUDACachingAllocator.cpp`` of PyTorch 2.13; keys as documented at
``torch.cuda.memory_stats`` and ``torch.cuda.memory_snapshot``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SEGMENT_UNIT_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class AllocatorBytes:
    """The caching allocator's own counters, of one of its pools or of all.

    * requested: what callers asked for, of blocks that are active
    * allocated: the same blocks at their rounded size, less those freed and still awaited by a stream
    * active: allocated and those
    * inactive split: free blocks that share a segment with a block in use (expandable segments: none)
    * reserved: segments held from the driver
    """

    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    reserved_bytes: int

    def __add__(self, other: AllocatorBytes) -> AllocatorBytes:
        return AllocatorBytes(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: AllocatorBytes) -> AllocatorBytes:
        return AllocatorBytes(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The same memory added up from the allocator's list of segments and their blocks."""

    total_bytes: int
    block_bytes: int
    requested_bytes: int
    allocated_bytes: int
    awaiting_free_bytes: int
    inactive_bytes: int
    whole_free_bytes: int
    """Segments without a block in use: what ``empty_cache`` gives back."""
    odd_segments: int
    """Segments whose size is not a multiple of 2 MiB."""


@dataclass(frozen=True, slots=True)
class CudaCounters:
    """One reading of one process's caching allocator on one card."""

    all: AllocatorBytes
    small: AllocatorBytes
    large: AllocatorBytes
    segments: SegmentBytes
    expandable: bool = False
    device_used_bytes: int | None = None
    """Total less free of the whole card, over all processes; ``None`` where it was not read."""
    device_total_bytes: int | None = None


class BlockInfo(TypedDict):
    """The keys read of a block in ``torch.cuda.memory_snapshot()``."""

    size: int
    requested_size: int
    state: str


class SegmentInfo(TypedDict):
    """The keys read of a segment in ``torch.cuda.memory_snapshot()``."""

    device: int
    total_size: int
    is_expandable: bool
    blocks: Sequence[BlockInfo]


def cuda_counters(
    stats: Mapping[str, int],
    segments: Sequence[SegmentInfo],
    *,
    device_used_bytes: int | None = None,
    device_total_bytes: int | None = None,
) -> CudaCounters:
    """Return the counters in ``torch.cuda.memory_stats()`` and ``memory_snapshot()`` of one card."""

    def pool(name: str) -> AllocatorBytes:
        kinds = ("requested", "allocated", "active", "inactive_split", "reserved")
        return AllocatorBytes(*(stats.get(f"{kind}_bytes.{name}.current", 0) for kind in kinds))

    return CudaCounters(
        all=pool("all"),
        small=pool("small_pool"),
        large=pool("large_pool"),
        segments=_segment_bytes(segments),
        expandable=any(segment["is_expandable"] for segment in segments),
        device_used_bytes=device_used_bytes,
        device_total_bytes=device_total_bytes,
    )


def _segment_bytes(segments: Sequence[SegmentInfo]) -> SegmentBytes:
    blocks = [block for segment in segments for block in segment["blocks"]]
    active = [block for block in blocks if block["state"] != "inactive"]
    allocated_bytes = sum(block["size"] for block in active if block["state"] == "active_allocated")
    idle = [
        segment for segment in segments if all(block["state"] == "inactive" for block in segment["blocks"])
    ]
    block_bytes = sum(block["size"] for block in blocks)
    active_bytes = sum(block["size"] for block in active)
    return SegmentBytes(
        total_bytes=sum(segment["total_size"] for segment in segments),
        block_bytes=block_bytes,
        requested_bytes=sum(block["requested_size"] for block in active),
        allocated_bytes=allocated_bytes,
        awaiting_free_bytes=active_bytes - allocated_bytes,
        inactive_bytes=block_bytes - active_bytes,
        whole_free_bytes=sum(segment["total_size"] for segment in idle),
        odd_segments=sum(segment["total_size"] % _SEGMENT_UNIT_BYTES != 0 for segment in segments),
    )


def check_counters(counters: CudaCounters) -> tuple[str, ...]:
    """Return, a sentence each, the identities that a reading breaks; none where it is sound."""
    seen, segments = counters.all, counters.segments
    equalities = [
        ("small and large pool", counters.small + counters.large, "all pools", seen),
        ("reserved", seen.reserved_bytes, "segments", segments.total_bytes),
        ("segments", segments.total_bytes, "their blocks", segments.block_bytes),
        ("requested", seen.requested_bytes, "requests of active blocks", segments.requested_bytes),
        ("allocated", seen.allocated_bytes, "allocated blocks", segments.allocated_bytes),
        (
            "active",
            seen.active_bytes,
            "allocated + awaiting free",
            seen.allocated_bytes + segments.awaiting_free_bytes,
        ),
        (
            "reserved",
            seen.reserved_bytes,
            "active + inactive blocks",
            seen.active_bytes + segments.inactive_bytes,
        ),
    ]
    if not counters.expandable:
        split = seen.active_bytes + seen.inactive_split_bytes + segments.whole_free_bytes
        equalities.append(
            ("reserved", seen.reserved_bytes, "active + inactive split + whole free segments", split)
        )
    broken = [f"{a} {left} != {b} {right}" for a, left, b, right in equalities if left != right]
    if not 0 <= seen.requested_bytes <= seen.active_bytes <= seen.reserved_bytes:
        broken.append(
            f"requested {seen.requested_bytes} <= active {seen.active_bytes} <= "
            f"reserved {seen.reserved_bytes} does not hold"
        )
    if segments.odd_segments:
        broken.append(f"{segments.odd_segments} segments are not a multiple of {_SEGMENT_UNIT_BYTES} bytes")
    if counters.device_used_bytes is not None and counters.device_used_bytes < seen.reserved_bytes:
        broken.append(
            f"the card has {counters.device_used_bytes} bytes in use, reserved {seen.reserved_bytes}"
        )
    return tuple(broken)
