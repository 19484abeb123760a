"""Which modules of vLLM are real under the import sandbox, and what stands in for the few others it calls."""

from __future__ import annotations

import logging
from typing import Any

from kvsuite.engine.adapters.sandbox import Rules
from kvsuite.engine.adapters.vllm.torch_stand_in import torch_names


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


class StructuredOutputRequest:
    """No request of ours is bound to a grammar."""

    @staticmethod
    def from_sampling_params(sampling_params: object) -> None:
        """Return the grammar that a request is bound to."""


def _logger(name: str) -> _Logger:
    return _Logger(name, logging.ERROR)


RULES = Rules(
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
    answers={
        "torch": torch_names(),
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.logger": {"init_logger": _logger},
        "vllm.platforms": {"current_platform": _Platform()},
        "vllm.sampling_params": {"SamplingParams": SamplingParams},
        "vllm.utils.torch_utils": {"get_dtype_size": lambda element_type: element_type.itemsize},
        "vllm.v1.structured_output.request": {"StructuredOutputRequest": StructuredOutputRequest},
    },
    third_party=("cbor2", "prometheus_client", "psutil", "torch", "uvloop", "xxhash", "zmq"),
)
