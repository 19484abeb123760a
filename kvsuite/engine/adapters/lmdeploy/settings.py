"""What LMDeploy is opened with, and what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig

_LEAST = {"null_blocks": 0, "max_requests": 1}
_CLAIMS = frozenset({Capability.PAGED, Capability.CHUNKED_PREFILL, Capability.PREEMPTION})


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the engine with their defaults."""

    null_blocks: int = 0
    max_requests: int = 1024

    @classmethod
    def of(cls, config: EngineConfig) -> Options:
        """Return the options of a configuration.

        **Raises:** `ConfigError` for an unknown option, a value out of range, or a pool without room.
        """
        unknown = sorted(set(config.options) - _LEAST.keys())
        if unknown:
            raise ConfigError(f"lmdeploy: unknown option {unknown[0]!r}, expected {' or '.join(_LEAST)}")
        values: dict[str, int] = {}
        for name, value in config.options.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < _LEAST[name]:
                raise ConfigError(f"lmdeploy: {name} is {value!r}, expected a number from {_LEAST[name]} up")
            values[name] = value
        options = cls(**values)
        if options.null_blocks >= config.num_blocks:
            raise ConfigError(
                f"lmdeploy: {options.null_blocks} of {config.num_blocks} blocks are reserved: none is left"
            )
        return options


def engine_spec(config: EngineConfig, options: Options, version: str) -> EngineSpec:
    """Return who the engine is, with the values it runs with."""
    layout = config.layout
    pool = PoolSpec(
        key=PoolKey(),
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=options.null_blocks,
        table_entry_bytes=8,
    )
    return EngineSpec(
        name="lmdeploy",
        version=version,
        adapter_version=1,
        pools=(pool,),
        capabilities=_CLAIMS | ({Capability.PREFIX_CACHE} if config.prefix_cache else set()),
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": options.null_blocks,
            "prefix_cache": config.prefix_cache,
            "watermark_blocks": 0,
            "admission": "whole_prompt",
            "eviction": "lru_in_seconds",
            "prefix_keys": "when_scheduled",
            "prealloc_tokens": 0,
        },
        layout=str(layout),
        dtype=layout.dtype.value,
        provenance={"loader": "filtered", "kv_storage": "none: the block manager hands out indices alone"},
    )
