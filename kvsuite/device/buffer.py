"""Memory on the chosen device, zeroed: a mapping of its own on a Linux CPU, else from torch's allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvsuite.device.mapping import PAGE_BYTES, PrivateMapping, can_map
from kvsuite.device.residency import ResidentBlocks, runs
from kvsuite.errors import BlockError, DeviceError

if TYPE_CHECKING:
    from kvsuite.device.residency import Int64Array


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """``nbytes`` bytes as uint8[nbytes]; ``mapping`` is where the kernel can be asked about them.

    ``role`` is ``pool``, ``tables`` or ``workspace``. Zeroed, because what an earlier pool left in
    recycled device memory could pass for content that was never written to this one.
    """

    role: str
    nbytes: int
    tensor: torch.Tensor
    mapping: PrivateMapping | None = None


def allocate(role: str, nbytes: int, device: str) -> DeviceBuffer:
    """Return ``nbytes`` zeroed bytes on ``device``.

    **Raises:** `DeviceError` where the device refuses them.
    """
    if device == "cpu" and can_map():
        mapping = PrivateMapping(nbytes)
        return DeviceBuffer(role, nbytes, torch.frombuffer(mapping.buffer, dtype=torch.uint8), mapping)
    try:
        return DeviceBuffer(role, nbytes, torch.zeros(nbytes, dtype=torch.uint8, device=device))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise DeviceError(
            f"{device} refuses {nbytes} bytes for {role} ({error}): give a smaller pool, "
            "or use probe slots, which need 8 bytes a token"
        ) from error


class BlockBuffer:
    """The bytes of a pool, ``num_blocks`` blocks of ``block_bytes``, taken and given back by whole blocks.

    The first write to a block commits every page it overlaps, and `keep` gives back pages that no block
    in use overlaps: what the system has backed is a function of the blocks in use alone.
    """

    def __init__(self, num_blocks: int, block_bytes: int, device: str) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.allocation = allocate("pool", num_blocks * block_bytes, device)
        self._mapping = self.allocation.mapping
        self._resident = ResidentBlocks(num_blocks, block_bytes, PAGE_BYTES)

    @property
    def bytes(self) -> torch.Tensor:
        """Every byte, uint8[num_blocks * block_bytes]."""
        return self.allocation.tensor

    @property
    def expected_committed_bytes(self) -> int | None:
        """Bytes the system must have backed for the blocks in use; ``None`` where it is not seen.

        Where block bytes are a multiple of the page: blocks in use x block bytes. Else a page counts
        once for all the blocks that share it, which is exact too.
        """
        return None if self._mapping is None else self._resident.expected_committed_bytes

    def take(self, blocks: Int64Array) -> None:
        """Learn that ``blocks`` are about to be written."""
        self.check(blocks)
        fresh = self._resident.take(blocks)
        if self._mapping is not None:
            self._mapping.touch(fresh)

    def keep(self, used: Int64Array) -> None:
        """Let go of all blocks but ``used``; the content of the others is undefined from now on."""
        self.check(used)
        idle = self._resident.keep(used)
        if self._mapping is not None:
            for first_page, num_pages in runs(idle):
                self._mapping.give_back(first_page, num_pages)

    def check(self, blocks: Int64Array) -> None:
        """**Raises:** `BlockError` where an id is not in the pool."""
        wrong = blocks[(blocks < 0) | (blocks >= self.num_blocks)]
        if len(wrong):
            raise BlockError(
                f"block {int(wrong[0])} is not in the pool, which has blocks 0 to {self.num_blocks - 1} "
                f"({len(wrong)} of {len(blocks)} ids are outside it)"
            )

    def close(self) -> None:
        """Let go of the memory; it is unmapped once no view of it is left."""
        if self._mapping is not None:
            self._mapping.close()
        del self.allocation
