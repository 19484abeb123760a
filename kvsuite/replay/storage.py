"""The worker of an engine that copies by itself: its own tensors, written and read through its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.replay.worker import UNWRITTEN, ProbeWorker

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine, SupportsStorage, Transfer
    from kvsuite.engine.snapshot import Int64Array, PoolKey, PoolSpec
    from kvsuite.ledger.timeline import DeviceLine
    from kvsuite.replay.worker import BoolArray, Worker


class StorageWorker:
    """Keeps no slots: a token is right where every word that the engine holds of it is its tag."""

    mode = "engine"

    def __init__(self, engine: SupportsStorage, pools: tuple[PoolSpec, ...]) -> None:
        self._engine = engine
        self._block_sizes = {spec.key: spec.block_size for spec in pools}

    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        """Copy what the engine asks for all the same, as operations of `take_ops`."""
        self._move(pool, source, pool, target, num_tokens)

    def zero(self, pool: PoolKey, block: int) -> None:
        """Clear one block."""
        size = self._block_sizes[pool]
        self._engine.write_storage(pool, self._slots(pool, block, size), np.full(size, UNWRITTEN, np.int64))

    def transfer(self, transfer: Transfer) -> None:
        """Copy the first slots of a block to a block of another pool."""
        self._move(
            transfer.source_pool,
            transfer.source,
            transfer.target_pool,
            transfer.target,
            transfer.num_tokens,
        )

    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Write ``tags`` to ``slots``, both int64[n]; a later entry wins where a slot stands twice."""
        self._engine.write_storage(pool, slots, tags)

    def matches(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> BoolArray:
        """Read ``slots`` and return, bool[n], where every word of them is the tag."""
        return np.asarray((self._engine.read_storage(pool, slots) == tags[:, None]).all(axis=1))

    def blocks_in_use(self, pool: PoolKey, used: Int64Array) -> None:
        """Nothing to give back: the storage is the engine's."""

    def memory(self, step: int) -> tuple[DeviceLine, ...]:
        """Return nothing: what the engine holds, it says in `memory()`."""
        del step
        return ()

    def _move(
        self, source_pool: PoolKey, source: int, target_pool: PoolKey, target: int, num_tokens: int
    ) -> None:
        words = self._engine.read_storage(source_pool, self._slots(source_pool, source, num_tokens))
        self._engine.write_storage(target_pool, self._slots(target_pool, target, num_tokens), words[:, 0])

    def _slots(self, pool: PoolKey, block: int, num_tokens: int) -> Int64Array:
        return block * self._block_sizes[pool] + np.arange(num_tokens, dtype=np.int64)


def worker_of(engine: Engine, given: Worker | None = None) -> Worker:
    """Return who writes and reads for ``engine``: its own tensors where it copies in them, else ``given``.

    Without a ``given`` one the probe stands in.
    """
    if engine.spec.claims(Capability.COPIES_ITSELF):
        return StorageWorker(cast("SupportsStorage", engine), engine.spec.pools)
    return ProbeWorker(engine.spec.pools) if given is None else given
