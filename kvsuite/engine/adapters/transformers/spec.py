"""Who the engine says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSpec

if TYPE_CHECKING:
    from kvsuite.engine.adapters.transformers.generations import Cache
    from kvsuite.engine.adapters.transformers.options import Options
    from kvsuite.engine.config import EngineConfig

ADAPTER_VERSION = 1
"""Raised when the adapter drives the engine otherwise."""
_CAPABILITIES = frozenset(
    {Capability.PAGED, Capability.CHUNKED_PREFILL, Capability.PREEMPTION, Capability.SLOTS}
)
_FORKING = frozenset({Capability.FORK, Capability.COPY_ON_WRITE})


def pool_spec(config: EngineConfig, options: Options, cache: Cache) -> PoolSpec:
    """Return the one pool, with the bytes of the layout asked for."""
    layout, window = config.layout, options.window_tokens
    return PoolSpec(
        key=PoolKey(),
        num_blocks=cache.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=len(cache.trash_blocks),
        kind=PoolKind.FULL if window is None else PoolKind.RING,
        window_tokens=window,
    )


def spec_of_cache(config: EngineConfig, options: Options, cache: Cache, version: str) -> EngineSpec:
    """Return what the engine claims and really runs with."""
    claimed = set(_CAPABILITIES)
    if options.prefix_cache:
        claimed.add(Capability.PREFIX_CACHE)
    if options.window_tokens is None:
        claimed |= _FORKING
    if cache.can_forget:
        claimed.add(Capability.RESET_CACHE)
    return EngineSpec(
        name="transformers",
        version=version,
        adapter_version=ADAPTER_VERSION,
        pools=(pool_spec(config, options, cache),),
        capabilities=frozenset(claimed),
        effective={
            "block_size": config.block_size,
            "num_blocks": cache.num_blocks,
            "trash_blocks": len(cache.trash_blocks),
            "prefix_cache": options.prefix_cache,
            "watermark_blocks": 0,
            "admission": "whole_prompt",
            "cow": "at_fork",
            "generation": cache.generation.value,
            **cache.effective,
            **({} if options.window_tokens is None else {"window_tokens": options.window_tokens}),
        },
        layout=str(config.layout),
        dtype=config.layout.dtype.value,
        provenance={"loader": "full", "tensors": "1 layer, 1 head, float32, in place of the layout's"},
    )
