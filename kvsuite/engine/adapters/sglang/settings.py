"""What SGLang is opened with, and what it says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.engine.adapters.sglang.package import Package
    from kvsuite.engine.config import EngineConfig

_OPTIONS = {"max_requests": 1024, "null_blocks": 1}
_CAPABILITIES = frozenset(
    {
        Capability.PAGED,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
        Capability.RESET_CACHE,
        Capability.SLOTS,
    }
)
_SLOT_LIMIT = 2**31 - 1
"""Slots stand in an int32 table."""


def tables_fit(config: EngineConfig) -> int:
    """Check what was asked for; return the rows of the request table.

    **Raises:** `ConfigError` for an unknown option, or a pool that SGLang cannot have.
    """
    unknown = sorted(set(config.options) - _OPTIONS.keys())
    if unknown:
        raise ConfigError(f"sglang: unknown option {unknown[0]!r}, expected {' or '.join(_OPTIONS)}")
    rows = config.options.get("max_requests", _OPTIONS["max_requests"])
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise ConfigError(f"sglang: max_requests is {rows!r}, expected a number from 1 up")
    if config.options.get("null_blocks", 1) != 1:
        raise ConfigError(
            f"sglang keeps one page back, not {config.options['null_blocks']!r}: leave null_blocks"
        )
    if config.num_blocks < 2:
        raise ConfigError(
            "sglang keeps page 0 for padding, and the pool has one block: give 2 blocks or more"
        )
    if config.num_blocks * config.block_size > _SLOT_LIMIT:
        raise ConfigError(
            f"sglang addresses slots with 32 bits, and {config.num_blocks} blocks of {config.block_size} are "
            f"more than {_SLOT_LIMIT}: give a smaller pool"
        )
    return rows


def engine_spec(config: EngineConfig, package: Package) -> EngineSpec:
    """Return who the engine is, with the values it runs with."""
    layout = config.layout
    pool = PoolSpec(
        key=PoolKey(),
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=1,
    )
    return EngineSpec(
        name="sglang",
        version=package.version,
        adapter_version=1,
        pools=(pool,),
        capabilities=_CAPABILITIES | ({Capability.PREFIX_CACHE} if config.prefix_cache else set()),
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": 1,
            "prefix_cache": config.prefix_cache,
            "watermark_blocks": 0,
            "admission": "whole_prompt",
            "allocator": "token" if config.block_size == 1 else "paged",
            "eviction": "lru",
            "prefix_keys": "when_computed",
            "sort_free_list": False,
        },
        layout=str(layout),
        dtype=layout.dtype.value,
        provenance={
            "loader": "filtered",
            "kv_storage": "none: the allocator hands out indices alone",
            "modules_left_out": str(sum(name.startswith("sglang.") for name in package.left_out)),
        },
    )
