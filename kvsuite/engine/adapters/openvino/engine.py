"""OpenVINO GenAI's continuous batching as a request-driven engine: its scheduler, its blocks, its kernels.

It shows numbers only. They are those of the step's forward pass: what ended in a step, or was cancelled
before it, is still counted in that step and gone in the next. The answer to a request for one is seen token
by token, those to a request for several when it ends.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.openvino.model import model_folder
from kvsuite.engine.adapters.openvino.shape import BLOCK_SIZE, PRECISIONS, SHAPE
from kvsuite.engine.contract import Capability, EngineSpec, Observation, PoolCounts, Release
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

POOL = PoolKey()
ADAPTER_VERSION = 1
MOST_BLOCKS = 2**19
"""Blocks whose number can be told from a share in single precision."""
_DISTRIBUTION = "openvino-genai"
_PRECISIONS = {"bfloat16": "bf16", "float16": "f16"}
_OPTIONS = ("max_sequences", "max_step_tokens", "dynamic_split_fuse", "kv_precision")
_SEED = 7
_CAPABILITIES = frozenset(
    {
        Capability.PAGED,
        Capability.PREEMPTION,
        Capability.REQUEST_DRIVEN,
        Capability.SAMPLES,
    }
)


@dataclass(slots=True)
class _Live:
    """One request under way."""

    handle: Any
    num_answers: int
    generated: tuple[int, ...] | None
    cancelled: bool = False


class OpenvinoEngine:
    """OpenVINO GenAI continuous batching on the CPU, with a tiny random Llama exported for its version.

    Blocks hold 32 tokens. Bytes are those of the tiny model, whatever layout is asked for; of that its dtype
    counts. Options: ``max_step_tokens`` limits the batch (256 by default), ``dynamic_split_fuse`` False
    keeps prompts whole and lets ``max_sequences`` limit the batch too, ``kv_precision`` (bf16, f16, u8, u4)
    replaces the layout's dtype.

    **Raises:** `ConfigError` for what it cannot do; `EngineError` where openvino-genai is not installed;
    `EnvironmentUnavailable` where the model cannot be exported.
    """

    def __init__(self, config: EngineConfig) -> None:
        precision = _check(config)
        self._genai = _imported("openvino_genai")
        self._tensor: Callable[[Any], Any] = _imported("openvino").Tensor
        self._version = importlib.metadata.version(_DISTRIBUTION)
        self._num_blocks = config.num_blocks
        scheduler = self._scheduler(config)
        self._pipeline = self._genai.ContinuousBatchingPipeline(
            str(model_folder(self._version)), scheduler, "CPU", {"KV_CACHE_PRECISION": precision}
        )
        self._spec = self._described(config, precision, scheduler)
        self._live: dict[RequestId, _Live] = {}
        self._submitted = 0
        weakref.finalize(self, _end_all, self._pipeline, self._live)

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Hand a request over; several answers are sampled, one is decoded greedily."""
        wanted = self._genai.GenerationConfig()
        wanted.max_new_tokens = max_tokens
        wanted.ignore_eos = True
        if num_answers > 1:
            wanted.num_return_sequences = num_answers
            wanted.do_sample = True
            wanted.rng_seed = _SEED
        ids = self._tensor(prompt.token_ids(SHAPE.vocabulary).reshape(1, -1).astype(np.int64))
        handle = self._pipeline.add_request(self._submitted, ids, wanted)
        self._submitted += 1
        self._live[request_id] = _Live(handle, num_answers, (0,) if num_answers == 1 else None)

    def cancel(self, request_id: RequestId) -> None:
        """Cancel the request; its blocks are free when the next step is over."""
        live = self._live[request_id]
        live.cancelled = True
        live.handle.cancel()

    def step(self) -> None:
        """Run one step."""
        self._pipeline.step()

    def observe(self) -> Observation:
        """Return ends, answers, and the pool in numbers."""
        finished: dict[RequestId, Release] = {}
        refused: dict[RequestId, str] = {}
        generated: dict[RequestId, tuple[int, ...]] = {}
        for request_id, live in list(self._live.items()):
            _read(live)
            if live.generated is not None:
                generated[request_id] = live.generated
            status = live.handle.get_status().name
            if status == "RUNNING":
                continue
            del self._live[request_id]
            if live.cancelled and status != "FINISHED":
                finished[request_id] = Release.CANCEL
            elif status == "IGNORED":
                refused[request_id] = "IGNORED: nothing could be scheduled in the step"
            else:
                finished[request_id] = Release.FINISH if status == "FINISHED" else Release.ERROR
        metrics = self._pipeline.get_metrics()
        return Observation(
            running=None,
            finished=finished,
            counts=(self._counts(metrics),),
            generated=generated,
            refused=refused,
            num_running=metrics.scheduled_requests,
        )

    def _counts(self, metrics: Any) -> PoolCounts:
        pool_bytes = getattr(metrics, "kv_cache_size_in_bytes", None)
        used = blocks_of_share(metrics.cache_usage, self._num_blocks)
        # The pool is made with the first request.
        return PoolCounts(POOL, used_blocks=used, pool_bytes=pool_bytes if self._submitted else None)

    def _scheduler(self, config: EngineConfig) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.num_kv_blocks = config.num_blocks
        scheduler.cache_size = 0
        scheduler.enable_prefix_caching = config.prefix_cache
        scheduler.dynamic_split_fuse = bool(config.options.get("dynamic_split_fuse", True))
        if "max_sequences" in config.options:
            scheduler.max_num_seqs = config.options["max_sequences"]
        if "max_step_tokens" in config.options:
            scheduler.max_num_batched_tokens = config.options["max_step_tokens"]
        return scheduler

    def _described(self, config: EngineConfig, precision: str, scheduler: Any) -> EngineSpec:
        splits = scheduler.dynamic_split_fuse
        claims = set(_CAPABILITIES)
        claims |= {Capability.PREFIX_CACHE} if config.prefix_cache else set()
        claims |= {Capability.CHUNKED_PREFILL} if splits else set()
        return EngineSpec(
            name="openvino",
            version=self._version,
            adapter_version=ADAPTER_VERSION,
            pools=(
                PoolSpec(POOL, config.num_blocks, BLOCK_SIZE, SHAPE.block_bytes(precision) // BLOCK_SIZE),
            ),
            capabilities=frozenset(claims),
            effective={
                "block_size": BLOCK_SIZE,
                "num_blocks": scheduler.num_kv_blocks,
                "prefix_cache": scheduler.enable_prefix_caching,
                "max_step_tokens": scheduler.max_num_batched_tokens,
                "dynamic_split_fuse": splits,
                "kv_precision": precision,
                **({} if splits else {"max_sequences": scheduler.max_num_seqs}),
            },
            layout=SHAPE.text(precision),
            dtype=precision,
            provenance={
                "loader": "full",
                "device": "CPU",
                "model": "random weights, exported for this minor version",
                "layout asked for": str(config.layout),
            },
        )


def blocks_of_share(percent: float, num_blocks: int) -> int:
    """Return how many of ``num_blocks`` a share in percent stands for, which is kept in single precision.

    **Raises:** `EngineError` for a share that is no whole number of blocks within its rounding.

    >>> blocks_of_share(7.8125, 64)
    5
    """
    blocks = percent * num_blocks / 100
    whole = round(blocks)
    if abs(blocks - whole) > max(1, whole) * 2**-21:
        raise EngineError(
            f"openvino: cache_usage is {percent} % of {num_blocks} blocks, which is {blocks}: expected "
            "a whole number; this version counts otherwise than the adapter knows"
        )
    return whole


def _check(config: EngineConfig) -> str:
    """Return the precision of the cache.

    **Raises:** `ConfigError` for what the engine cannot do.
    """
    unknown = sorted(set(config.options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"openvino: unknown option {unknown[0]!r}, expected {', '.join(_OPTIONS)}")
    if config.block_size != BLOCK_SIZE:
        raise ConfigError(
            f"openvino: blocks of {config.block_size} tokens: on a CPU it has {BLOCK_SIZE} only"
        )
    if config.num_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"openvino: {config.num_blocks} blocks: it reports a share in single precision, from which at "
            f"most {MOST_BLOCKS} can be told; give a smaller pool"
        )
    if config.watermark_blocks:
        raise ConfigError(f"openvino: a watermark of {config.watermark_blocks} blocks: it has none")
    splits = config.options.get("dynamic_split_fuse", True)
    if not isinstance(splits, bool):
        raise ConfigError(f"openvino: dynamic_split_fuse is {splits!r}, expected True or False")
    if splits and "max_sequences" in config.options:
        raise ConfigError(
            "openvino: max_sequences has no effect while prompts are split over steps: leave it out, or give "
            "the option dynamic_split_fuse as False"
        )
    for name in ("max_sequences", "max_step_tokens"):
        value = config.options.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"openvino: {name} is {value!r}, expected a number from 1 up")
    dtype = config.layout.dtype.value
    precision = config.options.get("kv_precision", _PRECISIONS.get(dtype))
    if precision not in PRECISIONS:
        raise ConfigError(
            f"openvino: a cache of {precision or dtype}: on a CPU it has {', '.join(PRECISIONS)}; ask for "
            "bfloat16 or float16, or give the option kv_precision"
        )
    return str(precision)


def _end_all(pipeline: Any, live: dict[RequestId, _Live]) -> None:
    """End what is under way: some versions abort the process when a pipeline goes that still holds blocks."""
    for one in live.values():
        one.handle.cancel()
    if live:
        pipeline.step()
        live.clear()


def _read(live: _Live) -> None:
    """Take in the tokens that have come since the last look."""
    while live.handle.can_read():
        parts = [len(output.generated_ids) for _, output in sorted(live.handle.read().items())]
        if live.num_answers == 1:
            assert live.generated is not None
            live.generated = (live.generated[0] + sum(parts),)
        elif len(parts) == live.num_answers:
            live.generated = tuple(parts)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineError(
            f"engine 'openvino' needs {name}, which cannot be imported ({error}): install {_DISTRIBUTION}, "
            "or ask for 'openvino@newest', which gets an environment of its own"
        ) from error
