"""Who a vLLM engine is: its name, its pool, and the values it runs with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from kvsuite.engine.adapters.vllm.loading import VllmCore
    from kvsuite.engine.config import EngineConfig

POOL = PoolKey()
UNBOUNDED_TOKENS = 2**31 - 1
"""Longest sequence where none is declared."""


def refuse_unknown(name: str, config: EngineConfig, options: frozenset[str]) -> None:
    """Refuse an option that is not among ``options``, and a pool of a null block alone.

    **Raises:** `ConfigError` for either.
    """
    unknown = sorted(set(config.options) - options)
    if unknown:
        expected = " or ".join(sorted(options)) or "none"
        raise ConfigError(f"{name}: unknown option {unknown[0]!r}, expected {expected}")
    if config.num_blocks < 2:
        raise ConfigError(f"{name}: a pool of 1 block is all null block: give 2 blocks or more")


def longest_tokens(config: EngineConfig) -> int:
    """Return the longest sequence that an engine is opened for."""
    return UNBOUNDED_TOKENS if config.max_model_tokens is None else config.max_model_tokens


def spec_of_core(
    name: str,
    adapter_version: int,
    core: VllmCore,
    config: EngineConfig,
    capabilities: AbstractSet[Capability],
    effective: Mapping[str, int] | None = None,
) -> EngineSpec:
    """Return the spec of an engine over one group of full-attention layers of ``core``."""
    layout = config.layout
    pool = PoolSpec(
        key=POOL,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=1,
    )
    prefix = {Capability.PREFIX_CACHE} if config.prefix_cache else set()
    return EngineSpec(
        name=name,
        version=core.version,
        adapter_version=adapter_version,
        pools=(pool,),
        capabilities=frozenset(capabilities | prefix),
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": 1,
            "prefix_cache": config.prefix_cache,
            "watermark_blocks": config.watermark_blocks,
            "admission": "whole_prompt",
            **({"prefix_keys": "when_scheduled"} if config.prefix_cache else {}),
            **(effective or {}),
        },
        layout=str(layout),
        dtype=layout.dtype.value,
        provenance={"loader": core.loader, "tensors": "none", "torch": str(core.torch.__version__)},
    )
