"""What an engine is opened with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import MAX_BLOCKS
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.cache.layout import Layout
    from kvsuite.trace.model import Trace


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a user asks for; `EngineSpec.effective` says what the engine made of it.

    ``num_blocks`` counts every block of the device pool, never-allocatable ones included.
    ``trace`` is for controls that must know final lengths; a real engine never reads it.
    """

    layout: Layout
    block_size: int
    num_blocks: int
    prefix_cache: bool = True
    watermark_blocks: int = 0
    max_model_tokens: int | None = None
    options: Mapping[str, int | str | bool] = field(default_factory=dict)
    trace: Trace | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block size {self.block_size} is not positive: give a size of 1 token or more")
        if self.num_blocks < 1:
            raise ConfigError(
                f"the pool holds {self.num_blocks} blocks of {self.block_size} tokens "
                f"({self.layout.block_bytes(self.block_size)} bytes each): give a larger pool"
            )
        if self.num_blocks > MAX_BLOCKS:
            raise ConfigError(
                f"a pool of {self.num_blocks} blocks of {self.block_size} tokens: block ids are 32-bit, so "
                f"{MAX_BLOCKS} is the most; give a smaller pool or larger blocks"
            )
        if self.watermark_blocks < 0:
            raise ConfigError(f"watermark of {self.watermark_blocks} blocks is negative")
