"""vLLM's ``KVCacheManager``, with what changed between its releases put right: the same verbs for all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.keywords import known, takes
from kvsuite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.adapters.vllm.loading import VllmCore
    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId

_HASH_SEED = "PYTHONHASHSEED"


class BlockManager:
    """The real manager, over one group of layers; ``window_tokens`` makes it a sliding-window group.

    It is given no tensors, and one head of one element: it counts blocks, and asks for bytes nowhere.

    **Raises:** `ConfigError` for a watermark that this release does not have; `EngineError` when it asks for
    an argument that is not known here, or its pool is not the one asked for.
    """

    def __init__(
        self, core: VllmCore, config: EngineConfig, *, max_model_tokens: int, window_tokens: int | None = None
    ) -> None:
        self._core = core
        self.max_model_tokens = max_model_tokens
        self.caches = config.prefix_cache
        self.real = self._open(config, window_tokens)
        self.pool = self.real.block_pool
        (self._group,) = self.real.coordinator.single_type_managers
        self._tables: dict[str, list[Any]] = self._group.req_to_blocks
        self._allocate = self.real.allocate_slots
        self._gate_inside = takes(self._allocate, "full_sequence_must_fit")
        self._knows_others = takes(self._allocate, "has_scheduled_reqs")
        self._same_for_all = self._request_options(block_hasher(core, config.block_size))
        per_step = ("new_step_starts", "take_new_block_ids")
        self._per_step: list[Callable[[], object]] = [
            getattr(self.real, name) for name in per_step if hasattr(self.real, name)
        ]
        if self.pool.get_num_free_blocks() != config.num_blocks - 1:
            raise EngineError(
                f"vLLM {core.version} leaves {self.pool.get_num_free_blocks()} of {config.num_blocks} blocks "
                "usable, expected all but its null block"
            )

    @property
    def null_block(self) -> int:
        """Id of the block that is never handed out."""
        return int(self.pool.null_block.block_id)

    def request(self, request_id: RequestId, token_ids: list[int]) -> Any:
        """Return a new request of vLLM, its blocks hashed where prefixes are cached."""
        return self._core.request.Request(
            request_id=request_id, prompt_token_ids=token_ids, **self._same_for_all
        )

    def find(self, request: Any) -> tuple[Any, int]:
        """Look up the prefix of a request: its blocks, and how many tokens they hold. Nothing is held yet."""
        blocks, tokens, *_ = self.real.get_computed_blocks(request)
        return blocks, tokens

    def admit(self, request: Any, found: Any, hit_tokens: int, new_tokens: int, *, beside: bool) -> bool:
        """Hold the blocks found and take slots for ``new_tokens`` more, if the whole prompt would fit now.

        That is vLLM's own gate (``scheduler_reserve_full_isl``, on by default). ``beside`` says that others
        run, which puts the watermark in force.
        """
        options: dict[str, Any] = {}
        if self._gate_inside:
            options["full_sequence_must_fit"] = True
        elif not self.real.can_fit_full_sequence(
            request, num_new_computed_tokens=hit_tokens, new_computed_blocks=found
        ):
            return False
        if self._knows_others:
            options["has_scheduled_reqs"] = beside
        taken = self._allocate(
            request, new_tokens, num_new_computed_tokens=hit_tokens, new_computed_blocks=found, **options
        )
        if taken is None:
            return False
        request.status = self._core.request.RequestStatus.RUNNING
        request.num_computed_tokens = hit_tokens + new_tokens
        return True

    def extend(self, request: Any, tokens: int, lookahead_tokens: int) -> bool:
        """Take slots for more tokens of a running request; all or nothing."""
        if lookahead_tokens:
            taken = self._allocate(request, tokens, num_lookahead_tokens=lookahead_tokens)
        else:
            taken = self._allocate(request, tokens)
        if taken is None:
            return False
        request.num_computed_tokens += tokens
        return True

    def free(self, request: Any) -> None:
        """Let a request go."""
        self.real.free(request)

    def table(self, request_id: RequestId) -> list[Any]:
        """Return the blocks of a running request, vLLM's own list."""
        return self._tables[request_id]

    def end_step(self) -> None:
        """Do what vLLM's scheduler does once a step."""
        for call in self._per_step:
            call()

    def _open(self, config: EngineConfig, window_tokens: int | None) -> Any:
        made = self._core.manager.KVCacheManager
        watermark = config.watermark_blocks
        if watermark and not takes(made, "watermark"):
            raise ConfigError(
                f"vLLM {self._core.version} keeps no watermark, {watermark} blocks are asked: take 0, or "
                "0.24.0 or later"
            )
        arguments = known(
            made,
            kv_cache_config=layers_of(self._core, config, window_tokens),
            max_model_len=self.max_model_tokens,
            scheduler_block_size=config.block_size,
            hash_block_size=config.block_size,
            enable_caching=config.prefix_cache,
            log_stats=False,
            watermark=share_of_pool(watermark, config.num_blocks),
        )
        opened = made(**arguments)
        kept = getattr(opened, "watermark_blocks", 0)
        if kept != watermark:
            raise EngineError(f"vLLM keeps a watermark of {kept} blocks, {watermark} are asked")
        return opened

    def _request_options(self, hasher: Any) -> dict[str, Any]:
        """Return what every request is made with."""
        made = self._core.request.Request
        given = {"request_id": "", "prompt_token_ids": []}
        options = known(
            made,
            **given,
            sampling_params=self._core.sampling.SamplingParams(max_tokens=self.max_model_tokens),
            pooling_params=None,
            eos_token_id=None,
            arrival_time=0.0,
            block_hasher=hasher if self.caches else None,
        )
        return {name: value for name, value in options.items() if name not in given}


def layers_of(core: VllmCore, config: EngineConfig, window_tokens: int | None = None) -> Any:
    """Return the configuration of one group of layers, without tensors and of one head of one element."""
    interface = core.interface
    element_type = getattr(core.torch, config.layout.dtype.value)
    shape = {"block_size": config.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": element_type}
    if window_tokens is None:
        spec = interface.FullAttentionSpec(**known(interface.FullAttentionSpec, **shape))
    else:
        shape["sliding_window"] = window_tokens
        spec = interface.SlidingWindowSpec(**known(interface.SlidingWindowSpec, **shape))
    group = interface.KVCacheGroupSpec(
        **known(interface.KVCacheGroupSpec, layer_names=["layer"], kv_cache_spec=spec)
    )
    return interface.KVCacheConfig(
        **known(
            interface.KVCacheConfig,
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[group],
        )
    )


def block_hasher(core: VllmCore, block_size: int) -> Any:
    """Return what vLLM hashes the blocks of a request with."""
    hash_function = core.hashing.sha256
    with _fixed_hash_seed():
        core.utils.init_none_hash(hash_function)
    # Its first parameter was renamed from block_size to hash_block_size in 0.24.0.
    return core.utils.get_request_block_hasher(block_size, hash_function)


def share_of_pool(blocks: int, num_blocks: int) -> float:
    """Return the share of a pool that vLLM, which rounds down, takes for so many blocks."""
    return (blocks + 0.5) / num_blocks if blocks else 0.0


@contextmanager
def _fixed_hash_seed() -> Iterator[None]:
    """Inside, vLLM finds a hash seed: without one, releases before 0.29 hash by a seed of the process."""
    before = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_HASH_SEED]
        else:
            os.environ[_HASH_SEED] = before
