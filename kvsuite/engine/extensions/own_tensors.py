"""The reference engine with tensors of its own, in which it makes its copies on write by itself.

A token has one 64-bit word of keys and one of values, at ``block * block size + offset`` of each tensor.
Copies are made when the operations of a step are asked for, before anything is written in it; none is
reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import NO_OPS, Capability, Ops
from kvsuite.engine.reference import ReferenceEngine

if TYPE_CHECKING:
    from kvsuite.cache.paged import Copy
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int64Array, PoolKey


class OwnTensorsEngine(ReferenceEngine):
    """The reference with keys and values of its own, in which it copies shared blocks itself.

    **Raises:** `ConfigError` for an unknown option, as the reference does.
    """

    name = "reference-tensors"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        slots = pool.num_blocks * pool.block_size
        self.keys: Int64Array = np.zeros(slots, np.int64)
        self.values: Int64Array = np.zeros(slots, np.int64)
        self._spec = replace(
            self._spec,
            capabilities=self._spec.capabilities | {Capability.COPIES_ITSELF},
            effective={**self._spec.effective, "copies": "own_tensors"},
        )

    def take_ops(self) -> Ops:
        """Make the copies of this step; none is left to be done."""
        for copy in self.cache.take_copies():
            self.copy(copy)
        return NO_OPS

    def copy(self, copy: Copy) -> None:
        """Copy the first tokens of a block, keys and values."""
        for tensor in (self.keys, self.values):
            self._copy_in(tensor, copy)

    def write_storage(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Fill keys and values of the tokens in ``slots``, both int64[n]."""
        del pool
        self.keys[slots] = tags
        self.values[slots] = tags

    def read_storage(self, pool: PoolKey, slots: Int64Array) -> Int64Array:
        """Return keys and values of the tokens in ``slots``, int64[n, 2]."""
        del pool
        return np.stack([self.keys[slots], self.values[slots]], axis=1)

    def _copy_in(self, tensor: Int64Array, copy: Copy) -> None:
        size = self.cache.block_size
        source, target = copy.source * size, copy.target * size
        tensor[target : target + copy.num_tokens] = tensor[source : source + copy.num_tokens]
