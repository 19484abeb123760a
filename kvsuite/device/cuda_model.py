"""A MODEL of the CUDA caching allocator's byte rules: no GPU, no torch, no measurement.

It stands in for a card where none is at hand, so that the arithmetic over its counters can be tested;
nothing it says is ever recorded as observed. One stream, the native backend, no graph pools, no
expandable segments, no running out of memory. Rules, after ``CUDACachingAllocator.cpp`` of PyTorch 2.13:

* a request is rounded up to 512 bytes, or with ``roundup_power2_divisions`` d, where it is larger than
  512 d, to the next of d even steps between powers of two;
* rounded sizes up to 1 MiB come from the small pool, whose segments are 2 MiB; others from the large
  pool: below 10 MiB in segments of 20 MiB, from there on in segments of their own, a multiple of 2 MiB;
* the smallest free block that fits is taken, the lowest address among equals; a small one is split where
  at least 512 bytes remain, a large one only where more than 1 MiB remains;
* blocks of ``max_split_bytes`` or more are never split, and serve only requests of that size that leave
  less than one large segment unused;
* a freed block merges with free neighbours; ``empty_cache`` returns segments without a block in use.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from kvsuite.device.counters import BlockInfo, CudaCounters, SegmentInfo, cuda_counters

MIB = 1 << 20
_MIN_BLOCK = 512
_SMALL_LIMIT = MIB
_SMALL_SEGMENT = 2 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_SEGMENT_UNIT = 2 * MIB


@dataclass(frozen=True, slots=True)
class AllocatorRules:
    """Settings of the allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``."""

    max_split_bytes: int | None = None
    roundup_power2_divisions: int = 0
    large_segment_bytes: int = 20 * MIB


def rounded_bytes(requested_bytes: int, divisions: int = 0) -> int:
    """Return the size of the block that serves a request.

    >>> rounded_bytes(1), rounded_bytes(1200), rounded_bytes(2100, divisions=4)
    (512, 1536, 2560)
    """
    if divisions > 1 and requested_bytes > _MIN_BLOCK * divisions:
        power = 1 << (requested_bytes.bit_length() - 1)
        step = power // divisions
        return -(-requested_bytes // step) * step
    return max(1, -(-requested_bytes // _MIN_BLOCK)) * _MIN_BLOCK


def segment_bytes(block_bytes: int, large_segment_bytes: int = 20 * MIB) -> int:
    """Return the size of the segment that is reserved where no free block fits.

    >>> [segment_bytes(size * MIB) // MIB for size in (1, 2, 10, 11)]
    [2, 20, 10, 12]
    """
    if block_bytes <= _SMALL_LIMIT:
        return _SMALL_SEGMENT
    if block_bytes < _OWN_SEGMENT_FROM:
        return large_segment_bytes
    return -(-block_bytes // _SEGMENT_UNIT) * _SEGMENT_UNIT


class _State(enum.Enum):
    ALLOCATED = "active_allocated"
    AWAITED = "active_pending_free"
    FREE = "inactive"


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free."""

    segment: _Segment
    size: int
    requested: int = 0
    state: _State = _State.FREE


@dataclass(slots=True, eq=False)
class _Segment:
    number: int
    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)

    @property
    def is_split(self) -> bool:
        return len(self.blocks) > 1


class CudaAllocatorModel:
    """The allocator of one process on one imagined card; counters move as the real one moves them."""

    def __init__(self, rules: AllocatorRules = AllocatorRules()) -> None:
        self._rules = rules
        self._segments: list[_Segment] = []
        self._made = 0
        self._bytes: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def malloc(self, requested_bytes: int) -> Block:
        """Return a block for ``requested_bytes``, which is at least 1."""
        size = rounded_bytes(requested_bytes, self._rules.roundup_power2_divisions)
        block = self._best_fit(size) or self._reserve(size)
        segment = block.segment
        count = self._bytes[segment.small]
        was_split = segment.is_split
        if self._splits(block, size):
            rest = Block(segment, block.size - size)
            segment.blocks.insert(segment.blocks.index(block) + 1, rest)
            block.size = size
            count["inactive_split"] += -size if was_split else rest.size
        elif was_split:
            count["inactive_split"] -= block.size
        block.state, block.requested = _State.ALLOCATED, requested_bytes
        count.update(requested=requested_bytes, allocated=block.size, active=block.size)
        return block

    def free(self, block: Block, *, awaited: bool = False) -> None:
        """Free a block; ``awaited``: another stream still uses it, so it stays active until `settle`."""
        self._bytes[block.segment.small]["allocated"] -= block.size
        block.state = _State.AWAITED
        if not awaited:
            self.settle(block)

    def settle(self, block: Block) -> None:
        """Complete the free of a block: it merges with free neighbours."""
        segment = block.segment
        count = self._bytes[segment.small]
        count["requested"] -= block.requested
        count["active"] -= block.size
        block.state, block.requested = _State.FREE, 0
        at = segment.blocks.index(block)
        for neighbour in segment.blocks[max(at - 1, 0) : at] + segment.blocks[at + 1 : at + 2]:
            if neighbour.state is _State.FREE:
                segment.blocks.remove(neighbour)
                block.size += neighbour.size
                count["inactive_split"] -= neighbour.size
        if segment.is_split:
            count["inactive_split"] += block.size

    def empty_cache(self) -> None:
        """Settle what is awaited and return every segment without a block in use."""
        for segment in list(self._segments):
            for block in [block for block in segment.blocks if block.state is _State.AWAITED]:
                self.settle(block)
            if not segment.is_split and segment.blocks[0].state is _State.FREE:
                self._segments.remove(segment)
                self._bytes[segment.small]["reserved"] -= segment.size

    def memory_stats(self) -> dict[str, int]:
        """Return the counters under the keys of ``torch.cuda.memory_stats()``."""
        kinds = ("requested", "allocated", "active", "inactive_split", "reserved")
        pools = {"small_pool": (True,), "large_pool": (False,), "all": (True, False)}
        return {
            f"{kind}_bytes.{name}.current": sum(self._bytes[small][kind] for small in members)
            for kind in kinds
            for name, members in pools.items()
        }

    def memory_snapshot(self) -> list[SegmentInfo]:
        """Return segments and blocks in the form of ``torch.cuda.memory_snapshot()``."""
        return [
            SegmentInfo(
                device=0,
                total_size=segment.size,
                is_expandable=False,
                blocks=[
                    BlockInfo(size=block.size, requested_size=block.requested, state=block.state.value)
                    for block in segment.blocks
                ],
            )
            for segment in self._segments
        ]

    def counters(self) -> CudaCounters:
        """Return one reading of the model."""
        return cuda_counters(self.memory_stats(), self.memory_snapshot())

    def _best_fit(self, size: int) -> Block | None:
        fitting = [
            (block.size, segment.number, at)
            for segment in self._segments
            if segment.small == (size <= _SMALL_LIMIT)
            for at, block in enumerate(segment.blocks)
            if block.state is _State.FREE and block.size >= size
        ]
        if not fitting:
            return None
        best, number, at = min(fitting)
        limit = self._rules.max_split_bytes
        if limit is not None:
            oversize = size >= limit
            if (oversize and best >= size + self._rules.large_segment_bytes) or (
                not oversize and best >= limit
            ):
                return None
        return next(segment for segment in self._segments if segment.number == number).blocks[at]

    def _reserve(self, size: int) -> Block:
        reserved = segment_bytes(size, self._rules.large_segment_bytes)
        segment = _Segment(self._made, reserved, small=size <= _SMALL_LIMIT)
        segment.blocks.append(Block(segment, reserved))
        self._segments.append(segment)
        self._made += 1
        self._bytes[segment.small]["reserved"] += reserved
        return segment.blocks[0]

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.segment.small:
            return rest >= _MIN_BLOCK
        limit = self._rules.max_split_bytes
        return (limit is None or size < limit) and rest > _SMALL_LIMIT
