"""From options to what a replay needs: trace, layout, engine configuration, worker."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvsuite.cache.layout import Dtype, Layout, model_layout
from kvsuite.cli.sizes import PoolSize, format_bytes
from kvsuite.engine import environments
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability
from kvsuite.engine.registry import home_of
from kvsuite.errors import ConfigError, DeviceError
from kvsuite.replay.worker import ProbeWorker
from kvsuite.sweep.lengths import longest_declared_tokens
from kvsuite.trace.options import TraceOptions as TraceOptions
from kvsuite.trace.options import open_trace as open_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace


_WHOLE = re.compile("-?[0-9]+")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """The shape of the cache, and how its engine shares and admits."""

    model: str
    dtype: str | None = None
    layers: int | None = None
    tp: int = 1
    watermark_blocks: int = 0
    prefix_cache: bool = True
    max_model_tokens: int | None = None
    options: Mapping[str, int | str | bool] = field(default_factory=dict)
    """The engine's own, see `EngineConfig.options`."""

    def layout(self) -> Layout:
        """Return the layout of one rank.

        **Raises:** `ConfigError` for an unknown model or dtype.
        """
        dtype = None if self.dtype is None else Dtype.parse(self.dtype)
        return replace(model_layout(self.model).with_(dtype=dtype, num_layers=self.layers), tp_size=self.tp)


def parse_engine_options(texts: Iterable[str]) -> dict[str, int | str | bool]:
    """Return the options written as ``NAME=VALUE``: a whole number, ``true``, ``false``, or else text.

    **Raises:** `ConfigError` for one without a name or a value, and for a name that comes twice.

    >>> parse_engine_options(["window_tokens=128", "dynamic_split_fuse=false", "kv_precision=u8"])
    {'window_tokens': 128, 'dynamic_split_fuse': False, 'kv_precision': 'u8'}
    """
    options: dict[str, int | str | bool] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise ConfigError(f"option {text!r}: expected NAME=VALUE, such as window_tokens=128")
        if name in options:
            raise ConfigError(
                f"option {name} is given twice, as {options[name]!r} and {value!r}: give it once"
            )
        options[name] = int(value) if _WHOLE.fullmatch(value) else _BOOLEANS.get(value, value)
    return options


def engine_in_full(engine: str) -> str:
    """Return ``engine`` with the version that ``newest`` stands for today."""
    name, _, version = engine.partition("@")
    if version != environments.NEWEST:
        return engine
    home, loader = home_of(name)
    return f"{name}@{environments.ensure(home, version, loader=loader).version}"


def engine_config(options: CacheOptions, trace: Trace, *, block_size: int, pool: PoolSize) -> EngineConfig:
    """Return how an engine is opened on ``pool``.

    **Raises:** `ConfigError` for a block size below 1, and for a pool smaller than one block or than the
    smallest request of the trace.
    """
    layout = options.layout()
    if block_size < 1:
        raise ConfigError(f"block size {block_size} is not positive: give a size of 1 token or more")
    num_blocks = pool.count if pool.unit == "blocks" else layout.blocks_in(pool.count, block_size)
    block_bytes = layout.block_bytes(block_size)
    if num_blocks < 1:
        raise ConfigError(
            f"a pool of {format_bytes(pool.count)} is smaller than one block: {block_size} tokens of "
            f"{layout} take {format_bytes(block_bytes)}; give a larger --pool or a smaller --block-size"
        )
    smallest = int((trace.prompt_tokens + trace.output_tokens).min(initial=2**62))
    needed = -(-smallest // block_size)
    if len(trace) and needed > num_blocks:
        raise ConfigError(
            f"a pool of {num_blocks} blocks of {block_size} tokens holds no request of this trace: the "
            f"smallest has {smallest} tokens and needs {needed} blocks; give --pool '{needed} blocks' "
            f"({format_bytes(needed * block_bytes)}) or more"
        )
    return EngineConfig(
        layout=layout,
        block_size=block_size,
        num_blocks=num_blocks,
        prefix_cache=options.prefix_cache,
        watermark_blocks=options.watermark_blocks,
        max_model_tokens=options.max_model_tokens or longest_declared_tokens(trace),
        options=options.options,
        trace=trace,
    )


def slots_mode(asked: str | None, device: str) -> str:
    """Return ``probe`` or ``full``: what was asked for, else probe on the CPU and full on a card.

    **Raises:** `ConfigError` for another text, and for probe slots on a card: they live in NumPy.
    """
    mode = asked or ("probe" if device == "cpu" else "full")
    if mode not in {"probe", "full"}:
        raise ConfigError(f"unknown slots {mode!r}: expected probe or full")
    if mode == "probe" and device != "cpu":
        raise ConfigError(
            f"probe slots live in NumPy and never on {device}: give --slots full, or --device cpu"
        )
    return mode


def open_worker(mode: str, device: str, spec: EngineSpec, layout: Layout, max_sequences: int) -> Worker:
    """Return the worker that writes and reads the pools of ``spec``; who copies by itself needs no slots.

    **Raises:** `DeviceError` for full slots without torch, or without room on the device.
    """
    if mode == "probe" or spec.claims(Capability.COPIES_ITSELF):
        return ProbeWorker(spec.pools)
    try:
        from kvsuite.device.worker import SlotWorker
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"full slots need torch, which is not installed ({error}): install kvsuite[device], "
            "or use --slots probe"
        ) from error
    return SlotWorker(spec.pools, layout, device, table_rows=max_sequences)
