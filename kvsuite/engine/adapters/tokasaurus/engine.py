"""tokasaurus' block allocator with its prefix tree.

A prompt gets all of its blocks when it is admitted, and stands in the tree from then on, before it is
computed; an answer is entered when the request ends. Blocks of the tree are evicted leaf by leaf, least
recently used first. Reference counts are the sequences that each block names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.admission import Demand, check_follows
from kvsuite.engine.adapters.block_journal import CACHED, FREE, LIVE, BlockJournal
from kvsuite.engine.adapters.pool_view import PoolView
from kvsuite.engine.adapters.tokasaurus.package import load
from kvsuite.engine.adapters.token_ids import ids_of
from kvsuite.engine.contract import NO_OPS, Admission, Capability, EngineSpec
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSpec
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Ops, Release
    from kvsuite.engine.snapshot import Int32Array, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent


@dataclass(slots=True)
class _Sequence:
    """A live sequence. ``settled`` tokens are computed."""

    content: TokenContent
    blocks: list[int]
    length: int
    settled: int


class TokasaurusEngine:
    """tokasaurus' paged cache with its prefix tree; it takes no options.

    **Raises:** `ConfigError` for an option; `EngineError` where tokasaurus is not installed or is driven
    against the contract.
    """

    def __init__(self, config: EngineConfig) -> None:
        if config.options:
            raise ConfigError(f"tokasaurus: unknown option {min(config.options)!r}, it takes none")
        package = load()
        self.allocator: Any = package.allocator(config.num_blocks, config.block_size)
        self._no_space = package.no_space
        self._shares = config.prefix_cache
        self._size = config.block_size
        self._spec = _spec(config, package.version)
        self._journal = BlockJournal(config.num_blocks)
        self._view = PoolView(self._spec.pools[0], self, self._journal, NO_BLOCKS)
        self._live: dict[RequestId, _Sequence] = {}

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a whole prompt in, or refuse it and change nothing; no chunks, and no caps."""
        del first_chunk_tokens, max_tokens
        if request_id in self._live:
            raise EngineError(f"{request_id} is admitted and live already")
        ids: list[int] = ids_of(prompt).tolist() if self._shares else []
        found = self.allocator.prefix_match(ids)
        demand = Demand(
            total=-(-prompt.stop // self._size),
            hits=len(found),
            idle_hits=sum(not block.seq_ids for block in found),
            free=len(self.allocator.floating_blocks),
            cached=self.allocator.num_free_blocks - len(self.allocator.floating_blocks),
        )
        refusal = demand.refusal(self._spec.pools[0])
        if refusal is not None:
            return Admission(refusal=refusal)
        blocks, hit = self._allocate(request_id, prompt.stop, ids)
        self._live[request_id] = _Sequence(prompt.content, blocks, prompt.stop, hit)
        self._journal.mark(blocks, LIVE)
        self._view.changed.add(request_id)
        return Admission(hit_tokens=hit, scheduled_tokens=prompt.stop)

    def _allocate(self, request_id: RequestId, tokens: int, ids: list[int]) -> tuple[list[int], int]:
        try:
            if self._shares:
                blocks, hit = self.allocator.allocate_with_prefix_match(request_id, ids)
                return list(blocks), int(hit)
            return list(self.allocator.allocate_up_to_length(request_id, [], tokens)), 0
        except self._no_space as error:
            raise EngineError(
                f"tokasaurus has no space for {request_id} where its free count says so"
            ) from error

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        sequence = self._known(request_id)
        check_follows(request_id, sequence.length, tokens, lookahead_tokens)
        try:
            new = self.allocator.allocate_up_to_length(request_id, sequence.blocks, tokens.stop)
        except self._no_space:
            return False
        sequence.content, sequence.length = tokens.content, tokens.stop
        if new:
            sequence.blocks += new
            self._journal.mark(new, LIVE)
            self._view.changed.add(request_id)
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds, and enter what of it is computed; all reasons are alike."""
        del reason
        sequence = self._known(request_id)
        computed = TokenRun(sequence.content, 0, sequence.settled)
        ids: list[int] = ids_of(computed).tolist() if self._shares else []
        self.allocator.free_and_update(request_id, sequence.blocks, ids)
        del self._live[request_id]
        for block in sequence.blocks:
            self._journal.mark([block], self._state(self.allocator.all_blocks[block]))

    def take_ops(self) -> Ops:
        """Return nothing: no block is ever copied."""
        return NO_OPS

    def launched(self, step: int) -> None:
        """Nothing to do: a step is settled before the next one is driven."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Learn what is computed; the tree knows of it already."""
        del step
        for request_id, length in accepted.items():
            self._known(request_id).settled = length

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        return self._view.snapshot(since)

    def lengths(self) -> dict[RequestId, int]:
        """Return the tokens that each live sequence holds slots for, oldest first."""
        return {request_id: sequence.length for request_id, sequence in self._live.items()}

    def table(self, request_id: RequestId) -> Int32Array:
        """Return the blocks of a live sequence in token order."""
        return np.array(self._live[request_id].blocks, np.int32)

    def free(self) -> Int32Array:
        """Return the floating blocks, the next one to be taken last."""
        return np.array([block.idx for block in self.allocator.floating_blocks], np.int32)

    def cached(self) -> Int32Array:
        """Return the blocks of the tree that no sequence holds, least recently used first."""
        idle = [block for block in self.allocator.all_blocks if self._state(block) == CACHED]
        idle.sort(key=lambda block: float(block.last_used_at))
        return np.array([block.idx for block in idle], np.int32)

    def ref_counts(self, blocks: Int32Array | None) -> Int32Array:
        """Return how many sequences each block names."""
        every: list[Any] = self.allocator.all_blocks
        chosen = every if blocks is None else [every[block] for block in blocks.tolist()]
        return np.array([len(block.seq_ids) for block in chosen], np.int32)

    @staticmethod
    def _state(block: Any) -> int:
        if block.seq_ids:
            return LIVE
        return FREE if block.parent is None else CACHED

    def _known(self, request_id: RequestId) -> _Sequence:
        sequence = self._live.get(request_id)
        if sequence is None:
            raise EngineError(f"{request_id} is not live: admit it first, and settle it before its release")
        return sequence


def _spec(config: EngineConfig, version: str) -> EngineSpec:
    layout = config.layout
    pool = PoolSpec(
        key=PoolKey(),
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
    )
    claims = {Capability.PAGED, Capability.PREEMPTION}
    return EngineSpec(
        name="tokasaurus",
        version=version,
        adapter_version=1,
        pools=(pool,),
        capabilities=frozenset(claims | ({Capability.PREFIX_CACHE} if config.prefix_cache else set())),
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": 0,
            "prefix_cache": config.prefix_cache,
            "watermark_blocks": 0,
            "admission": "whole_prompt",
            "eviction": "lru",
            "prefix_keys": "when_scheduled",
        },
        layout=str(layout),
        dtype=layout.dtype.value,
        provenance={"loader": "filtered", "kv_storage": "none: the allocator hands out indices alone"},
    )
