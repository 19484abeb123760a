"""vLLM's block manager with draft tokens, and with a sliding window: what the plain engine does not claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.adapters.vllm.engine import VllmEngine
from kvsuite.engine.adapters.vllm.manager import BlockManager
from kvsuite.engine.adapters.vllm.spec import longest_tokens
from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from kvsuite.engine.adapters.vllm.loading import VllmCore
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId


class VllmLookaheadEngine(VllmEngine):
    """vLLM's block manager with slots for draft tokens, as its speculative decoding asks for them.

    Option ``lookahead_tokens`` (default: two blocks) is the most that one extension may ask for. Blocks of
    rejected drafts stay with their sequence, for the drafts to come.

    **Raises:** as `VllmEngine`.
    """

    name = "vllm-lookahead"
    options = frozenset({"lookahead_tokens"})

    def __init__(self, config: EngineConfig) -> None:
        self.lookahead_tokens = _number(self.name, config, "lookahead_tokens", 2 * config.block_size, 0)
        super().__init__(config)
        effective = {**self._spec.effective, "lookahead_tokens": self.lookahead_tokens}
        if config.max_model_tokens is not None:
            effective["max_model_tokens"] = config.max_model_tokens
        self._spec = replace(
            self._spec,
            capabilities=self._spec.capabilities | {Capability.LOOKAHEAD},
            effective=effective,
        )

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool with the look-ahead that is declared."""
        return tuple(
            replace(shot, lookahead_tokens=self.lookahead_tokens) for shot in super().snapshot(since)
        )

    def _check_lookahead(self, request_id: RequestId, lookahead_tokens: int) -> None:
        if not 0 <= lookahead_tokens <= self.lookahead_tokens:
            raise EngineError(
                f"{request_id}: {lookahead_tokens} look-ahead tokens asked, declared are 0 to "
                f"{self.lookahead_tokens}"
            )


class VllmWindowEngine(VllmEngine):
    """vLLM's block manager over one group of sliding-window layers; the null block stands for what fell out.

    Option ``window_tokens`` (default: two blocks) is the window, the newest token included. What fell out is
    let go of when the sequence is next given slots. Prefixes are not cached: of a prefix that is found vLLM
    takes what the window still needs and no more, which is another law than the ledger's.

    **Raises:** as `VllmEngine`, and `ConfigError` for a window below 2 tokens or a pool too small for it.
    """

    name = "vllm-window"
    options = frozenset({"window_tokens"})

    def __init__(self, config: EngineConfig) -> None:
        self.window_tokens = _number(self.name, config, "window_tokens", max(2, 2 * config.block_size), 2)
        super().__init__(replace(config, prefix_cache=False))
        (pool,) = self._spec.pools
        slots, longest = pool.usable_blocks * pool.block_size, config.max_model_tokens
        if slots < self.window_tokens + pool.block_size and (longest is None or slots < longest):
            raise ConfigError(
                f"{self.name}: {pool.usable_blocks} usable blocks of {pool.block_size} tokens hold no window "
                f"of {self.window_tokens} and the block being filled: give a larger pool"
            )
        self._spec = replace(
            self._spec,
            pools=(replace(pool, kind=PoolKind.WINDOW, window_tokens=self.window_tokens),),
            capabilities=self._spec.capabilities | {Capability.SLIDING_WINDOW},
            effective={**self._spec.effective, "window_tokens": self.window_tokens},
        )

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool with the first token that each sequence still holds."""
        null_ids = np.array([self._null_block], np.int32)
        return tuple(
            replace(
                shot,
                null_ids=null_ids,
                first_live=self._live.let_go_blocks() * self._block_size,
            )
            for shot in super().snapshot(since)
        )

    def _open(self, core: VllmCore, config: EngineConfig) -> BlockManager:
        return BlockManager(
            core, config, max_model_tokens=longest_tokens(config), window_tokens=self.window_tokens
        )


def _number(name: str, config: EngineConfig, option: str, default: int, least: int) -> int:
    value = config.options.get(option, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}: {option} is {value!r}, expected {least} tokens or more")
    return value
