"""A control for long traces: the longest request reserved for everybody, as one block each.

It reserves what `ContiguousMax` does where no request declares a cap. Runs of one length leave no hole that
another cannot take, so places need no search and the control is as fast as paging. What is reserved beyond a
sequence's length is the slack of its only block here, and a fork's first token copies that block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig


class OneBlock(ReferenceEngine):
    """The reference engine with blocks of ``max_model_tokens``.

    **Raises:** `ConfigError` without ``max_model_tokens``, or where the pool does not hold one such block.
    """

    name = "contiguous-one-block"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(_one_block_each(config))
        (pool,) = self._spec.pools
        self._spec = replace(self._spec, pools=(replace(pool, contiguous=True),))


def _one_block_each(config: EngineConfig) -> EngineConfig:
    """Return ``config`` with its slots cut into one block a sequence."""
    tokens, slots = config.max_model_tokens, config.num_blocks * config.block_size
    if tokens is None:
        raise ConfigError(f"{OneBlock.name} reserves the longest request: give max_model_tokens")
    if tokens > slots:
        raise ConfigError(
            f"{OneBlock.name}: a pool of {slots} slots does not hold one reservation of {tokens}: give a "
            "larger pool"
        )
    return replace(config, block_size=tokens, num_blocks=slots // tokens, prefix_cache=False)
