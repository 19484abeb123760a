"""vLLM's own scheduler as a `RequestEngine`: it admits, cuts prompts, preempts, resumes; tokens are made up.

Needs vLLM whole (the full loader): the scheduler is configured by vLLM's real configuration, of a model of
one layer that is never built. Where the model would sample a token it is given the next one of the request's
content, so the same trace asks for the same tokens as when it is driven token by token.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.keywords import known, takes
from kvsuite.engine.adapters.token_ids import ids_of
from kvsuite.engine.adapters.vllm.block_book import BlockBook
from kvsuite.engine.adapters.vllm.loading import load_core
from kvsuite.engine.adapters.vllm.manager import block_hasher, layers_of, share_of_pool
from kvsuite.engine.adapters.vllm.spec import POOL, longest_tokens, refuse_unknown, spec_of_core
from kvsuite.engine.contract import Capability, Observation, Release
from kvsuite.engine.snapshot import NO_BLOCKS, PoolSnapshot
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.adapters.vllm.loading import VllmCore
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent

_LIMITS = {"max_sequences": 256, "max_step_tokens": 8192}
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
}
"""The smallest model that vLLM takes a configuration of."""


@dataclass(slots=True)
class _Ended:
    """What ended since the last observation."""

    finished: dict[RequestId, Release] = field(default_factory=dict)
    refused: dict[RequestId, str] = field(default_factory=dict)
    generated: dict[RequestId, tuple[int, ...]] = field(default_factory=dict)


class VllmSchedulerEngine:
    """The scheduler and block manager of the vLLM in this interpreter, over full-attention layers.

    Options ``max_sequences`` (default 256) and ``max_step_tokens`` (8192) limit its batch.

    **Raises:** `ConfigError` for another option, or a limit that vLLM refuses; `EngineError` when vLLM is not
    loaded whole, or is a release that this adapter does not know.
    """

    name = "vllm-scheduler"
    adapter_version = 1

    def __init__(self, config: EngineConfig) -> None:
        refuse_unknown(self.name, config, frozenset(_LIMITS))
        limits = {name: _limit(config, name) for name in _LIMITS}
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model's configuration lies on disk
        core = load_core()
        if core.loader != "full":
            raise EngineError(
                f"{self.name} needs vLLM whole, and it is loaded through the import filter: ask for "
                f"{self.name} in an environment of the full loader"
            )
        usable_tokens = (config.num_blocks - 1) * config.block_size
        self._longest = min(longest_tokens(config), usable_tokens)
        self._core = core
        self._hasher = block_hasher(core, config.block_size) if config.prefix_cache else None
        self._scheduler = _scheduler(core, config, self._longest, limits)
        self._manager = self._scheduler.kv_cache_manager
        self._book = BlockBook(self._manager.block_pool)
        (self._group,) = self._manager.coordinator.single_type_managers
        self._output = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
        self._spec = spec_of_core(
            self.name, self.adapter_version, core, config, {Capability.REQUEST_DRIVEN}, limits
        )
        self._contents: dict[RequestId, TokenContent] = {}
        self._ended = _Ended()
        self._revision = 0

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Put a request at the end of vLLM's queue; one that it could never finish is given up at once."""
        if num_answers != 1:
            raise EngineError(f"{request_id}: {num_answers} answers asked, vLLM's scheduler knows of one")
        if request_id in self._scheduler.requests:
            raise EngineError(f"{request_id} was submitted already: ids of live requests are unique")
        if prompt.stop + max_tokens > self._longest or max_tokens < 1:
            self._ended.refused[request_id] = (
                f"{prompt.stop} tokens and an answer of {max_tokens} in a context of {self._longest}"
            )
            return
        sampling = self._core.sampling.SamplingParams
        made = self._core.request.Request
        self._contents[request_id] = prompt.content
        self._scheduler.add_request(
            made(
                **known(
                    made,
                    request_id=request_id,
                    prompt_token_ids=ids_of(prompt).tolist(),
                    sampling_params=sampling(max_tokens=max_tokens, ignore_eos=True),
                    pooling_params=None,
                    arrival_time=0.0,
                    block_hasher=self._hasher,
                )
            )
        )

    def cancel(self, request_id: RequestId) -> None:
        """Abort the request."""
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        self._ended.generated[request_id] = (request.num_output_tokens,)
        self._scheduler.finish_requests(request_id, self._core.request.RequestStatus.FINISHED_ABORTED)
        self._ended.finished[request_id] = Release.CANCEL
        del self._contents[request_id]

    def step(self) -> None:
        """Let vLLM schedule one step, and hand it a token of every sequence that has come to its end."""
        plan = self._scheduler.schedule()
        scheduled = list(plan.num_scheduled_tokens)
        requests = {request_id: self._scheduler.requests[request_id] for request_id in scheduled}
        output = self._output(
            **known(
                self._output,
                req_ids=scheduled,
                req_id_to_index={request_id: at for at, request_id in enumerate(scheduled)},
                sampled_token_ids=[self._sampled(request) for request in requests.values()],
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
        )
        self._scheduler.update_from_output(plan, output)
        for request_id, request in requests.items():
            if request_id not in self._scheduler.requests:
                self._ended.finished[request_id] = Release.FINISH
                self._ended.generated[request_id] = (request.num_output_tokens,)
                del self._contents[request_id]

    def observe(self) -> Observation:
        """Return everything: who runs, what ended, every answer's tokens, and the pool in full."""
        ended, self._ended = self._ended, _Ended()
        running = self._scheduler.running
        live = {name: (request.num_output_tokens,) for name, request in self._scheduler.requests.items()}
        return Observation(
            running=tuple(request.request_id for request in running),
            finished=ended.finished,
            snapshots=(self._snapshot(running),),
            generated={**live, **ended.generated},
            refused=ended.refused,
        )

    def _sampled(self, request: Any) -> list[int]:
        """Return the next token of a request whose known tokens are all computed, or nothing."""
        if request.num_computed_tokens < request.num_tokens:
            return []
        at = request.num_tokens
        return [int(ids_of(TokenRun(self._contents[request.request_id], at, at + 1))[0])]

    def _snapshot(self, running: list[Any]) -> PoolSnapshot:
        self._revision += 1
        tables = [self._group.req_to_blocks[request.request_id] for request in running]
        offsets = np.zeros(len(tables) + 1, np.int64)
        np.cumsum([len(table) for table in tables], out=offsets[1:])
        blocks = self._book.take_all()
        return PoolSnapshot(
            key=POOL,
            revision=self._revision,
            since=None,
            request_ids=tuple(request.request_id for request in running),
            lengths=np.array([request.num_computed_tokens for request in running], np.int64),
            table_rows=np.arange(len(tables), dtype=np.int32),
            table_offsets=offsets,
            table_blocks=np.array([block.block_id for table in tables for block in table], np.int32),
            free=blocks.free,
            cached=blocks.cached,
            live=NO_BLOCKS,
            never_allocatable=np.array([self._manager.block_pool.null_block.block_id], np.int32),
            ref_count_ids=blocks.counted,
            ref_counts=blocks.ref_counts,
        )


def _scheduler(core: VllmCore, config: EngineConfig, longest: int, limits: dict[str, int]) -> Any:
    """Return vLLM's scheduler, configured as vLLM configures itself on a CPU."""
    made = importlib.import_module("vllm.v1.core.sched.scheduler").Scheduler
    settings = importlib.import_module("vllm.config")
    structured = importlib.import_module("vllm.v1.structured_output")
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps({**_MODEL, "max_position_embeddings": longest})
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")
        model = settings.ModelConfig(
            model=folder, dtype="bfloat16", seed=0, skip_tokenizer_init=True, max_model_len=longest
        )
    cache = settings.CacheConfig(block_size=config.block_size, enable_prefix_caching=config.prefix_cache)
    cache.num_gpu_blocks = config.num_blocks
    whole = settings.VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=_scheduler_config(core, config, settings.SchedulerConfig, longest, limits),
        parallel_config=settings.ParallelConfig(),
        device_config=settings.DeviceConfig(device="cpu"),
    )
    return made(
        **known(
            made,
            vllm_config=whole,
            kv_cache_config=layers_of(core, config),
            structured_output_manager=structured.StructuredOutputManager(whole),
            block_size=config.block_size,
            hash_block_size=config.block_size,
            log_stats=False,
        )
    )


def _scheduler_config(
    core: VllmCore, config: EngineConfig, made: Any, longest: int, limits: dict[str, int]
) -> Any:
    if config.watermark_blocks and not takes(made, "watermark"):
        raise ConfigError(f"vLLM {core.version} keeps no watermark: take 0, or 0.24.0 or later")
    return made(
        **known(
            made,
            max_num_seqs=limits["max_sequences"],
            max_num_batched_tokens=limits["max_step_tokens"],
            max_model_len=longest,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            watermark=share_of_pool(config.watermark_blocks, config.num_blocks),
        )
    )


def _limit(config: EngineConfig, name: str) -> int:
    value = config.options.get(name, _LIMITS[name])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{VllmSchedulerEngine.name}: {name} is {value!r}, expected a number from 1 up")
    return value
