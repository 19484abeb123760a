"""Opens transformers' real paged cache on the CPU, over tensors as small as it accepts."""

from __future__ import annotations

import importlib
import types
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.keywords import known, takes
from kvsuite.errors import EngineError, UnsupportedBlockSize

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "transformers.generation.continuous_batching"
OLDEST = (5, 0)
TRASH_BLOCKS = 2
"""Blocks that padding reads from and writes to, and no sequence ever gets."""
_ALIGNMENT_BYTES = 128
"""A sector of 5.18 and newer is a multiple of this and of a block; a real model's block is one itself."""
_FLOAT32_BYTES = 4
_BATCH_TOKENS = 1
"""What the engine plans masks and index tensors for; it allocates none of them here."""
_PLANNED_MEMORY_BYTES = 2**50
"""What a release that cannot read a CPU's memory is told, so that it refuses no pool."""
_UNKNOWN = "its structure is not known; use another version, or a newer kvsuite"


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine's own objects: modules are looked up once, here."""

    version: str
    cache: Any
    request_state: Any
    """The class `RequestState`."""
    scheduler: Any
    """A `FIFOScheduler` over the cache: it sizes allocations and keeps the safety margin."""


def head_dim(block_size: int) -> int:
    """Return the smallest head size at which a block fills whole sectors, as a real model's does.

    >>> head_dim(1), head_dim(4), head_dim(16), head_dim(48)
    (16, 4, 1, 1)
    """
    token_bytes = 2 * _FLOAT32_BYTES
    return _ALIGNMENT_BYTES // gcd(_ALIGNMENT_BYTES, block_size * token_bytes)


def open_cache(
    *, block_size: int, num_blocks: int, window_tokens: int | None, safety_margin: float
) -> Opened:
    """Return a cache of ``num_blocks`` blocks beside the trash ones: one layer, one head, float32.

    **Raises:** `EngineError` when transformers or torch is absent, or a release asks for what is not known;
    `UnsupportedBlockSize` for one that the engine refuses.
    """
    torch, transformers = _imported("torch"), _imported("transformers")
    version = str(transformers.__version__)
    if _release(version) < OLDEST:
        raise EngineError(
            f"transformers {version}: its paged cache is driven from 5.0 on; install a newer one"
        )
    module = _part("cache", version)
    cache_type = module.PagedAttentionCache
    smallest = getattr(cache_type, "_min_block_size", 1)
    if block_size < smallest:
        raise UnsupportedBlockSize(
            f"transformers {version} takes blocks of {smallest} tokens or more, {block_size} were asked for"
        )
    arguments = {
        "config": _model_config(transformers, block_size, window_tokens),
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "allow_block_sharing": True,
        "tp_plan": {},
        **_settings(cache_type, version, block_size, num_blocks),
    }
    if takes(cache_type, "distributed_helper"):
        helper = _part("distributed", version).DistributedHelper
        alone = known(helper, device_mesh=None, cpu_group_timeout=None, tp_plan={})
        arguments["distributed_helper"] = helper(**alone)
    with _memory_told(module, torch):
        cache = cache_type(**known(cache_type, **arguments))
    scheduler = _part("scheduler", version).FIFOScheduler
    limits = known(scheduler, cache=cache, safety_margin=safety_margin, max_requests_per_batch=2**31 - 1)
    return Opened(version, cache, _part("requests", version).RequestState, scheduler(**limits))


def _settings(cache_type: Any, version: str, block_size: int, num_blocks: int) -> dict[str, Any]:
    """Return the argument that sizes the cache, whatever its name and kind in this release."""
    settings: dict[str, Any] = {
        "num_blocks": num_blocks,
        "max_batch_tokens": _BATCH_TOKENS,
        "max_blocks_per_request": 0,
        "max_memory_percent": 1.0,
        "use_async_batching": False,
        "allow_block_sharing": True,
    }
    if not takes(cache_type, "continuous_batching_config"):
        sized = types.SimpleNamespace(block_size=block_size, max_memory=1.0, **settings)
        return {"generation_config": sized}
    module = _imported("transformers.generation.configuration_utils")
    settings_type = getattr(module, "ContinuousBatchingConfig", None)
    if settings_type is None:
        raise EngineError(f"transformers {version} has no ContinuousBatchingConfig: {_UNKNOWN}")
    size = "page_size" if takes(settings_type, "page_size") else "block_size"
    return {
        "continuous_batching_config": settings_type(**known(settings_type, **{size: block_size}, **settings))
    }


def _model_config(transformers: Any, block_size: int, window_tokens: int | None) -> Any:
    model = {
        "hidden_size": head_dim(block_size),
        "head_dim": head_dim(block_size),
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "intermediate_size": 1,
        "vocab_size": 1,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = transformers.LlamaConfig(**model)
    config._attn_implementation = "sdpa"
    if window_tokens is not None:
        config.sliding_window = window_tokens
        config.layer_types = ["sliding_attention"]
    return config


@contextmanager
def _memory_told(module: Any, torch: Any) -> Iterator[None]:
    """Tell a release that cannot read a CPU's memory (before 5.3) of some, while the cache is made."""
    probe = getattr(module, "get_device_and_memory_breakdown", None)
    if probe is None or probe()[1]:
        yield
        return
    module.get_device_and_memory_breakdown = lambda: (torch.device("cpu"), _PLANNED_MEMORY_BYTES, 0, 0)
    try:
        yield
    finally:
        module.get_device_and_memory_breakdown = probe


def _part(name: str, version: str) -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError as error:
        raise EngineError(f"transformers {version} has no {PACKAGE}.{name} ({error}): {_UNKNOWN}") from error


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineError(
            f"engine 'transformers' needs {name.partition('.')[0]} in this interpreter ({error}): install it "
            "here, or ask for 'transformers@VERSION' to run that version in an environment of its own"
        ) from error


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
