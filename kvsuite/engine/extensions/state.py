"""Attention beside recurrent layers: a block table that grows, and one state block a sequence.

    pool 0   full     ceil(n / b) blocks a sequence
    pool 1   state    one block a sequence, of one slot that holds ``state_bytes``

A fork gets a state of its own, copied at once, because both go on writing it. Without a state at every block
boundary a prefix cannot be taken up again, so there is no prefix cache.

With ``uniform_pages`` both pools use pages of one size, as engines do that keep them in one tensor. A block
of attention then grows to the smallest multiple of the size asked for whose keys *and* values hold a state,
and the rest of the state's page is pad (vllm-ascend #14543).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import NO_OPS, Admission, BlockCopy, Capability, Ops
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Release
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId

STATE_POOL = PoolKey(group=1)


class StateEngine(ReferenceEngine):
    """The reference with layers whose state does not grow with the sequence.

    Options: ``state_bytes`` (default: those of 32 tokens), ``state_blocks`` (default: ``num_blocks``),
    ``uniform_pages`` (default False), and those of the reference.

    **Raises:** `ConfigError` for an option that is no positive number.
    """

    name = "reference-state"

    def __init__(self, config: EngineConfig) -> None:
        options = dict(config.options)
        token_bytes = config.layout.bytes_per_token
        state_bytes = self._positive(options.pop("state_bytes", 32 * token_bytes), "state_bytes")
        state_blocks = self._positive(options.pop("state_blocks", config.num_blocks), "state_blocks")
        uniform = bool(options.pop("uniform_pages", False))
        size = self.page_tokens(state_bytes, token_bytes, config.block_size) if uniform else config.block_size
        config = replace(config, options=options, prefix_cache=False)
        super().__init__(replace(config, block_size=size))
        self.states = ReferenceEngine(
            replace(config, block_size=1, num_blocks=state_blocks, options={}, watermark_blocks=0)
        )
        self._copies: list[BlockCopy] = []
        (attention,) = self._spec.pools
        if uniform:
            attention = replace(attention, kernel_block_size=config.block_size)
        self._spec = replace(
            self._spec,
            pools=(
                attention,
                PoolSpec(
                    key=STATE_POOL,
                    num_blocks=state_blocks,
                    block_size=1,
                    bytes_per_token=state_bytes,
                    pad_bytes_per_block=attention.block_bytes - state_bytes if uniform else 0,
                    kind=PoolKind.STATE,
                ),
            ),
            capabilities=self._spec.capabilities | {Capability.CONSTANT_STATE},
            effective={
                **self._spec.effective,
                "state_bytes": state_bytes,
                "state_blocks": state_blocks,
                "uniform_pages": uniform,
            },
        )

    @staticmethod
    def page_tokens(state_bytes: int, token_bytes: int, unit_tokens: int) -> int:
        """Return the smallest multiple of ``unit_tokens`` whose bytes hold a state."""
        units = 1
        while units * unit_tokens * token_bytes < state_bytes:
            units += 1
        return units * unit_tokens

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in when attention and state both have room."""
        if not self.states.cache.pool.available_blocks:
            state = self.states.admit(request_id, self._state_run(prompt), first_chunk_tokens=1)
            assert state.refusal is not None
            return Admission(refusal=replace(state.refusal, pool=STATE_POOL))
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            self.states.admit(request_id, self._state_run(prompt), first_chunk_tokens=1)
        return admission

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Share attention with ``parent_id`` and copy its state; False when there is no block for that."""
        states = self.states.cache
        if not states.pool.available_blocks:
            return False
        super().fork(parent_id, child_id)
        self.states.admit(child_id, TokenRun(self._contents[child_id], 0, 1), first_chunk_tokens=1)
        source, target = (states.tables[name].blocks[0] for name in (parent_id, child_id))
        self._copies.append(BlockCopy(STATE_POOL, source, target, 1, child_id))
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back blocks and state."""
        super().release(request_id, reason)
        self.states.release(request_id, reason)
        self._copies = [copy for copy in self._copies if copy.request_id != request_id]

    def take_ops(self) -> Ops:
        """Return, once, the copies of shared blocks and of forked states."""
        copies = (*super().take_ops().copies, *self._copies)
        self._copies = []
        return Ops(copies) if copies else NO_OPS

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return both pools."""
        states = (replace(shot, key=STATE_POOL) for shot in self.states.snapshot(since))
        return (*super().snapshot(since), *states)

    @staticmethod
    def _state_run(prompt: TokenRun) -> TokenRun:
        return replace(prompt, start=0, stop=1)

    def _positive(self, value: object, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{self.name}: {name} is {value!r}, expected 1 or more")
        return value
