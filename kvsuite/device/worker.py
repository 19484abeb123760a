"""A worker whose slots are real tensors in the layout's own shape: mode ``full``.

It has the methods of ``kvsuite.replay.worker.Worker``. Beside each pool it keeps what a paged kernel
needs, a block table of ``rows x width`` entries, so that table bytes are storages too:

    tables bytes = rows * width * entry bytes * groups * copies          one group a pool, one copy each
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kvsuite.cache.layout import Layout
from kvsuite.device import cuda
from kvsuite.device.buffer import allocate
from kvsuite.device.mapping import PAGE_BYTES, observe
from kvsuite.device.memory import AreaBytes, HeldBytes, cuda_line, smaps_line
from kvsuite.device.slots import KVSlots
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvsuite.device.buffer import DeviceBuffer
    from kvsuite.device.counters import CudaCounters
    from kvsuite.device.reading import DeviceLine
    from kvsuite.device.residency import Int64Array
    from kvsuite.device.slots import BoolArray

_ENTRIES = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class PoolShape(Protocol):
    """What the worker needs to know of a pool (`kvsuite.engine.snapshot.PoolSpec`)."""

    @property
    def key(self) -> Hashable:
        """Which pool."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks, never-allocatable ones included."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token, padding apart."""
        ...

    @property
    def pad_bytes_per_block(self) -> int:
        """Bytes at the end of a block that no token can use."""
        ...

    @property
    def table_entry_bytes(self) -> int:
        """Bytes of one block-table entry; 0 for a pool without tables."""
        ...


class Transfer(Protocol):
    """What the worker needs to know of a transfer (`kvsuite.engine.contract.Transfer`)."""

    @property
    def source_pool(self) -> Hashable:
        """Pool that is read."""
        ...

    @property
    def source(self) -> int:
        """Block that is read."""
        ...

    @property
    def target_pool(self) -> Hashable:
        """Pool that is written."""
        ...

    @property
    def target(self) -> int:
        """Block that is written."""
        ...

    @property
    def num_tokens(self) -> int:
        """How many slots, from the first."""
        ...


@dataclass(frozen=True, slots=True)
class _Group:
    """One pool: its slots, and a block table of ``table_rows x table_width`` entries if it needs one."""

    pool: PoolShape
    slots: KVSlots
    table_rows: int
    table_width: int
    table: DeviceBuffer | None

    def buffers(self) -> tuple[DeviceBuffer, ...]:
        own = (self.slots.buffer.allocation, self.slots.patterns.workspace)
        return own if self.table is None else (*own, self.table)


class SlotWorker:
    """Full slots for ``pools`` on ``device``, with a block table of ``table_rows`` sequences beside each.

    ``layout`` is that of every pool, or one a pool key where groups differ. A table row is as wide as
    the pool has blocks, or as ``max_sequence_tokens`` need.

    **Raises:** `ConfigError` where a pool's bytes a token are not its layout's, `DeviceError` where the
    device has no room.
    """

    mode = "full"

    def __init__(
        self,
        pools: Sequence[PoolShape],
        layout: Layout | Mapping[Hashable, Layout],
        device: str = "cpu",
        *,
        table_rows: int = 256,
        max_sequence_tokens: int | None = None,
    ) -> None:
        self.device = device
        self._before: CudaCounters | None = None
        on_card = device != "cpu"
        with cuda.card_lock(device) if on_card else nullcontext():
            if on_card and cuda.counters_are_kept():
                cuda.settle(device)
                self._before = cuda.read_counters(device)
            self._groups = {
                pool.key: _group(pool, layout, device, table_rows, max_sequence_tokens) for pool in pools
            }

    def slots(self, pool: Hashable) -> KVSlots:
        """Return the slots of one pool."""
        return self._groups[pool].slots

    def block_table(self, pool: Hashable) -> torch.Tensor:
        """Return the block table of one pool, ``[rows, width]`` integers of its entry size.

        **Raises:** `ConfigError` for a contiguous pool, which has none.
        """
        group = self._groups[pool]
        if group.table is None:
            raise ConfigError(f"pool {pool} has no block table: its sequences are unbroken runs of slots")
        flat = group.table.tensor.view(_ENTRIES[group.pool.table_entry_bytes])
        return flat.view(group.table_rows, group.table_width)

    def copy(self, pool: Hashable, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of block ``source`` to block ``target``."""
        self._groups[pool].slots.copy_block(source, target, num_tokens)

    def zero(self, pool: Hashable, block: int) -> None:
        """Clear one block."""
        self._groups[pool].slots.zero_block(block)

    def transfer(self, transfer: Transfer) -> None:
        """Copy the first slots of a block to a block of another pool."""
        source, target = self.slots(transfer.source_pool), self.slots(transfer.target_pool)
        target.copy_from(source, transfer.source, transfer.target, transfer.num_tokens)

    def write(self, pool: Hashable, slots: Int64Array, tags: Int64Array) -> None:
        """Write ``tags`` to ``slots``, both int64[n]; a later entry wins where a slot stands twice."""
        self._groups[pool].slots.write(slots, tags)

    def matches(self, pool: Hashable, slots: Int64Array, tags: Int64Array) -> BoolArray:
        """Read ``slots`` and return, bool[n], where they hold ``tags`` in every element."""
        return self._groups[pool].slots.matches(slots, tags)

    def blocks_in_use(self, pool: Hashable, used: Int64Array) -> None:
        """Give the pages of all other blocks back to the system, where it reports pages."""
        self._groups[pool].slots.buffer.keep(used)

    def held(self) -> HeldBytes:
        """Return what was asked for, from shapes alone."""
        groups = self._groups.values()
        return HeldBytes(
            pool_bytes=sum(
                group.pool.num_blocks
                * (group.pool.block_size * group.pool.bytes_per_token + group.pool.pad_bytes_per_block)
                for group in groups
            ),
            tables_bytes=sum(
                group.table_rows * group.table_width * group.pool.table_entry_bytes for group in groups
            ),
            workspace_bytes=sum(group.slots.patterns.key_bytes for group in groups),
        )

    def memory(self, step: int) -> tuple[DeviceLine, ...]:
        """Return one line over all pools; empty where the device does not report it.

        Reads only counters of this process, so that workers sharing a card may all call it.
        """
        if self._before is not None:
            return (cuda_line(step, self._before, cuda.read_counters(self.device), self.held()),)
        return self._smaps_line(step) if self.device == "cpu" else ()

    def close(self) -> None:
        """Let go of the memory; it goes back once no tensor that was handed out is left."""
        for group in self._groups.values():
            if group.table is not None and group.table.mapping is not None:
                group.table.mapping.close()
            group.slots.close()
        self._groups.clear()

    def _smaps_line(self, step: int) -> tuple[DeviceLine, ...]:
        buffers = [buffer for group in self._groups.values() for buffer in group.buffers()]
        mappings = [buffer.mapping for buffer in buffers if buffer.mapping is not None]
        seen = observe(mappings)
        if seen is None or len(mappings) < len(buffers):
            return ()
        areas = [
            (buffer.role, AreaBytes(buffer.nbytes, PAGE_BYTES, area.mapped_bytes, area.committed_bytes))
            for buffer, area in zip(buffers, seen, strict=True)
        ]
        expected_bytes = sum(
            group.slots.buffer.expected_committed_bytes or 0 for group in self._groups.values()
        )
        pools = [area for role, area in areas if role == "pool"]
        others = [area for role, area in areas if role != "pool"]
        return (smaps_line(step, self.held(), pools, others, expected_bytes),)


def _group(
    pool: PoolShape,
    layout: Layout | Mapping[Hashable, Layout],
    device: str,
    table_rows: int,
    max_sequence_tokens: int | None,
) -> _Group:
    chosen = layout if isinstance(layout, Layout) else layout[pool.key]
    if chosen.bytes_per_token != pool.bytes_per_token:
        raise ConfigError(
            f"pool {pool.key} holds {pool.bytes_per_token} bytes a token, layout {chosen} "
            f"{chosen.bytes_per_token}: give the layout the engine was opened with"
        )
    if pool.table_entry_bytes not in {0, *_ENTRIES}:
        raise ConfigError(
            f"pool {pool.key} has table entries of {pool.table_entry_bytes} bytes: expected 2, 4 or 8, "
            "or 0 for a pool without tables"
        )
    longest = pool.num_blocks
    if max_sequence_tokens is not None:
        longest = min(longest, -(-max_sequence_tokens // pool.block_size))
    slots = KVSlots(
        chosen, pool.num_blocks, pool.block_size, device, pad_bytes_per_block=pool.pad_bytes_per_block
    )
    table_bytes = table_rows * longest * pool.table_entry_bytes
    table = allocate("tables", table_bytes, device) if table_bytes else None
    return _Group(pool, slots, table_rows, longest, table)
