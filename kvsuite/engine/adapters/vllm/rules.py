"""Which modules of vLLM are real under the import filter, and what stands in for the few others it calls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.vllm.import_filter import FilterRules
from kvsuite.engine.adapters.vllm.torch_stand_in import fill_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


class SamplingParams:
    """What a request asks of the sampler: here, only how many tokens it may have."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.extra_args = None
        self.structured_outputs = None
        self.prompt_logprobs = None
        self.skip_reading_prefix_cache: bool | None = None


class _Logger(logging.Logger):
    """A logger with the methods that vLLM adds to its own."""

    def info_once(self, message: str, *arguments: object, **options: Any) -> None:
        self.info(message, *arguments)

    def warning_once(self, message: str, *arguments: object, **options: Any) -> None:
        self.warning(message, *arguments)

    def debug_once(self, message: str, *arguments: object, **options: Any) -> None:
        self.debug(message, *arguments)


class _Platform:
    """A platform that has no cache layers of its own."""

    def register_custom_kv_cache_specs(self, vllm_config: object) -> None:
        """Register nothing beside vLLM's own."""


def _fill_config(module: ModuleType) -> None:
    vars(module).update(get_current_vllm_config_or_none=lambda: None)


def _fill_platforms(module: ModuleType) -> None:
    vars(module).update(current_platform=_Platform())


def _fill_logger(module: ModuleType) -> None:
    vars(module).update(init_logger=lambda name: _Logger(name, logging.ERROR))


def _fill_sampling_params(module: ModuleType) -> None:
    vars(module).update(SamplingParams=SamplingParams)


def _fill_structured_output(module: ModuleType) -> None:
    class StructuredOutputRequest:
        """No request of ours is bound to a grammar."""

        @staticmethod
        def from_sampling_params(sampling_params: object) -> None:
            """Return the grammar that a request is bound to."""

    vars(module).update(StructuredOutputRequest=StructuredOutputRequest)


def _fill_torch_utils(module: ModuleType) -> None:
    vars(module).update(get_dtype_size=lambda element_type: element_type.itemsize)


RULES = FilterRules(
    package="vllm",
    real=(
        "vllm.distributed.kv_events",
        "vllm.envs",
        "vllm.utils",
        "vllm.utils.hashing",
        "vllm.utils.math_utils",
        "vllm.v1.core.block_pool",
        "vllm.v1.core.kv_cache_coordinator",
        "vllm.v1.core.kv_cache_manager",
        "vllm.v1.core.kv_cache_metrics",
        "vllm.v1.core.kv_cache_utils",
        "vllm.v1.core.single_type_kv_cache_manager",
        "vllm.v1.kv_cache_interface",
        "vllm.v1.metrics.stats",
        "vllm.v1.request",
        "vllm.v1.utils",
    ),
    real_where_present=(
        "vllm.v1.core.*",
        "vllm.v1.hisparse",
        "vllm.v1.hisparse.*",
        "vllm.v1.kv_cache_layout",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.kv_hints",
    ),
    left_out=("vllm.v1.core.sched", "vllm.v1.core.sched.*", "vllm.v1.core.encoder_cache_manager"),
    given={
        "vllm.config": _fill_config,
        "vllm.logger": _fill_logger,
        "vllm.platforms": _fill_platforms,
        "vllm.sampling_params": _fill_sampling_params,
        "vllm.utils.torch_utils": _fill_torch_utils,
        "vllm.v1.structured_output.request": _fill_structured_output,
    },
)

ABSENT: Mapping[str, Callable[[ModuleType], None] | None] = {
    "torch": fill_torch,
    **dict.fromkeys(("cbor2", "prometheus_client", "psutil", "uvloop", "xxhash", "zmq")),
}
"""Packages that the real modules import and hardly use: these are replaced where they are not installed."""
