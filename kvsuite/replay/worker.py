"""The worker: slots of the suite's own, written and read through the engine's tables.

A slot number is ``block id * block size + offset``. Content is one 64-bit tag a token, a function of
(content so far, position); the worker keeps tags and says where what it holds differs from what is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsuite.engine.contract import Transfer
    from kvsuite.engine.snapshot import Int64Array, PoolKey, PoolSpec
    from kvsuite.ledger.timeline import DeviceLine

BoolArray = npt.NDArray[np.bool_]

UNWRITTEN = int(np.iinfo(np.int64).min)


class Worker(Protocol):
    """Holds the content of every pool it was made for.

    ``mode`` is ``probe`` (one int64 a token, in NumPy) or ``full`` (tensors in the layout's own shape).
    """

    @property
    def mode(self) -> str:
        """``probe`` or ``full``; stands in every record."""
        ...

    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of block ``source`` to block ``target``."""
        ...

    def zero(self, pool: PoolKey, block: int) -> None:
        """Clear one block."""
        ...

    def transfer(self, transfer: Transfer) -> None:
        """Copy the first slots of a block to a block of another pool."""
        ...

    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Write ``tags`` to ``slots``, both int64[n]; a later entry wins where a slot stands twice."""
        ...

    def matches(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> BoolArray:
        """Read ``slots`` and return, bool[n], where they hold ``tags`` in every element."""
        ...

    def blocks_in_use(self, pool: PoolKey, used: Int64Array) -> None:
        """Learn which blocks hold anything of value; others may be given back to the system."""
        ...

    def memory(self, step: int) -> tuple[DeviceLine, ...]:
        """Return what the device says of the worker's own slots; empty where it is not observed."""
        ...


class ProbeWorker:
    """One int64 a token in NumPy: for long traces and pools larger than the device."""

    mode = "probe"

    def __init__(self, pools: tuple[PoolSpec, ...]) -> None:
        self._block_sizes = {spec.key: spec.block_size for spec in pools}
        self._slots = {
            spec.key: np.full(spec.num_blocks * spec.block_size, UNWRITTEN, np.int64) for spec in pools
        }

    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` slots of block ``source`` to block ``target``."""
        size, slots = self._block_sizes[pool], self._slots[pool]
        slots[target * size : target * size + num_tokens] = slots[source * size : source * size + num_tokens]

    def zero(self, pool: PoolKey, block: int) -> None:
        """Clear one block."""
        size = self._block_sizes[pool]
        self._slots[pool][block * size : (block + 1) * size] = UNWRITTEN

    def transfer(self, transfer: Transfer) -> None:
        """Copy the first slots of a block to a block of another pool."""
        source, target = self._slots[transfer.source_pool], self._slots[transfer.target_pool]
        start = transfer.source * self._block_sizes[transfer.source_pool]
        goal = transfer.target * self._block_sizes[transfer.target_pool]
        target[goal : goal + transfer.num_tokens] = source[start : start + transfer.num_tokens]

    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Write ``tags`` to ``slots``, both int64[n]; a later entry wins where a slot stands twice."""
        self._slots[pool][slots] = tags

    def matches(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> BoolArray:
        """Read ``slots`` and return, bool[n], where they hold ``tags``."""
        return np.asarray(self._slots[pool][slots] == tags)

    def blocks_in_use(self, pool: PoolKey, used: Int64Array) -> None:
        """Nothing to give back: the probe is one NumPy array."""

    def memory(self, step: int) -> tuple[DeviceLine, ...]:
        """Return nothing: the probe stands in for bytes it does not hold."""
        del step
        return ()
