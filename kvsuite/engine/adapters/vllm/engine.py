"""vLLM's block manager, coordinator and block pool as an `Engine`: real allocation, without a model or a GPU.

The suite schedules; vLLM decides which blocks are found, taken, hashed, given back and evicted. What vLLM's
scheduler does around these calls is done as it does it: the whole prompt must fit at admission, the token to
be computed is known before its slot is taken, drafts are not hashed before they are accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.vllm.block_book import BlockBook
from kvsuite.engine.adapters.vllm.loading import VllmCore, load_core
from kvsuite.engine.adapters.vllm.manager import BlockManager
from kvsuite.engine.adapters.vllm.sequences import Held, LiveSequences, TokenIds
from kvsuite.engine.adapters.vllm.spec import POOL, longest_tokens, refuse_unknown, spec_of_core
from kvsuite.engine.contract import (
    NO_OPS,
    Admission,
    Capability,
    EngineSpec,
    Ops,
    Refusal,
    RefusalReason,
    Release,
)
from kvsuite.engine.snapshot import NO_BLOCKS, PoolSnapshot
from kvsuite.errors import EngineError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId

_CAPABILITIES = frozenset(
    {Capability.PAGED, Capability.CHUNKED_PREFILL, Capability.PREEMPTION, Capability.RESET_CACHE}
)


class VllmEngine:
    """The block manager of the vLLM in this interpreter, over one group of full-attention layers.

    Block 0 is vLLM's null block: a pool of ``num_blocks`` has one usable block less.

    **Raises:** `ConfigError` for an option, or a watermark before 0.24.0; `EngineError` when there is no
    vLLM, when it is a release that this adapter does not know, or when it is driven against the contract.
    """

    name = "vllm"
    adapter_version = 1
    options: frozenset[str] = frozenset()

    def __init__(self, config: EngineConfig) -> None:
        refuse_unknown(self.name, config, self.options)
        self._core = load_core()
        self._manager = self._open(self._core, config)
        self._book = BlockBook(self._manager.pool)
        self._live = LiveSequences()
        self._ids = TokenIds(hashed=config.prefix_cache)
        self._spec = spec_of_core(self.name, self.adapter_version, self._core, config, _CAPABILITIES)
        self._block_size = config.block_size
        self._usable_blocks = config.num_blocks - 1
        self._watermark_blocks = config.watermark_blocks
        self._null_block = self._manager.null_block
        self._never_allocatable = np.array([self._null_block], np.int32)
        self._refused: tuple[RequestId, TokenRun, Any] | None = None
        self._revision = 0

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
        """Take a sequence in, or refuse it and change nothing; ``max_tokens`` is not needed here.

        A prompt beyond the longest sequence that the engine was opened for never fits either.
        """
        del max_tokens
        if request_id in self._live.held:
            raise EngineError(f"{request_id} is admitted and live already: release it first")
        blocks_due = -(-prompt.stop // self._block_size)
        if blocks_due > self._usable_blocks or prompt.stop > self._manager.max_model_tokens:
            return self._refusal(blocks_due, 0, RefusalReason.NEVER_FITS)
        request = self._request(request_id, prompt)
        found, hit_tokens = self._manager.find(request)
        new_tokens = min(first_chunk_tokens, prompt.stop - hit_tokens)
        beside = bool(self._live.held)
        if not self._manager.admit(request, found, hit_tokens, new_tokens, beside=beside):
            self._refused = (request_id, prompt, request)
            return self._short(blocks_due, found.blocks[0])
        self._refused = None
        table = self._manager.table(request_id)
        held = Held(request, table, prompt.content, hit_tokens + new_tokens, told=prompt.stop)
        self._live.add(request_id, held)
        self._book.touch(held.read(self._null_block))
        return Admission(hit_tokens=hit_tokens, scheduled_tokens=held.length)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        held = self._live.held.get(request_id)
        start, stop = tokens.start, tokens.stop
        if held is None or held.length != start:
            raise EngineError(
                f"{request_id} holds {held.length if held else 'no'} tokens and is extended from {start}: "
                "tokens must follow what the sequence has"
            )
        if lookahead_tokens:
            self._check_lookahead(request_id, lookahead_tokens)
        if stop > self._manager.max_model_tokens:
            return False  # vLLM gives no slots beyond its longest sequence
        # vLLM knows the prompt and the token sampled last; what comes beyond is a draft until it is settled.
        if start == held.told:
            held.request.append_output_token_ids(self._ids.one(request_id, tokens.content, start))
            held.told = start + 1
        if not self._manager.extend(held.request, stop - start, lookahead_tokens):
            return False
        held.content, held.length = tokens.content, stop
        if len(held.table) != len(held.blocks) or held.table[held.let_go].is_null:
            self._live.table_changed(request_id)
            self._book.touch(held.read(self._null_block))
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds; every reason is treated alike."""
        del reason
        held = self._live.remove(request_id)
        self._manager.free(held.request)
        self._ids.forget(request_id)
        self._book.touch(held.blocks[held.let_go :])

    def take_ops(self) -> Ops:
        """Return nothing: full blocks are shared and never written, so nothing is copied."""
        return NO_OPS

    def launched(self, step: int) -> None:
        """Nothing to do: a step is settled before the next one is driven."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Tell vLLM which drafts were accepted, and that the step is over."""
        del step
        for request_id, length in accepted.items():
            held = self._live.held.get(request_id)
            if held is None:
                raise EngineError(f"{request_id} is settled at {length} tokens but not live: settle it first")
            if length > held.told:
                accepted_drafts = TokenRun(held.content, held.told, length)
                held.request.append_output_token_ids(self._ids.of(accepted_drafts))
                held.told = length
            if length < held.length:
                self._take_back(request_id, held, length)
        self._manager.end_step()

    def reset_cache(self) -> bool:
        """Forget every cached block; False: refused because sequences are live."""
        self._book.touch_cached()
        return bool(self._manager.real.reset_prefix_cache())

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        changed_only = since is not None and since == self._revision
        self._revision += 1
        rows, offsets, table_blocks = self._tables(changed_only=changed_only)
        blocks = self._book.take_changes() if changed_only else self._book.take_all()
        return (
            PoolSnapshot(
                key=POOL,
                revision=self._revision,
                since=since if changed_only else None,
                request_ids=self._live.request_ids,
                lengths=self._live.lengths(),
                table_rows=rows,
                table_offsets=offsets,
                table_blocks=table_blocks,
                free=blocks.free,
                cached=blocks.cached,
                live=blocks.live if changed_only else NO_BLOCKS,
                never_allocatable=self._never_allocatable,
                ref_count_ids=blocks.counted,
                ref_counts=blocks.ref_counts,
            ),
        )

    def _open(self, core: VllmCore, config: EngineConfig) -> BlockManager:
        return BlockManager(core, config, max_model_tokens=longest_tokens(config))

    def _check_lookahead(self, request_id: RequestId, lookahead_tokens: int) -> None:
        """Refuse more look-ahead than the engine declares."""
        raise EngineError(f"{request_id}: {lookahead_tokens} look-ahead tokens asked, none are claimed")

    def _request(self, request_id: RequestId, prompt: TokenRun) -> Any:
        if self._refused is not None and self._refused[:2] == (request_id, prompt):
            return self._refused[2]
        return self._manager.request(request_id, self._ids.of(prompt))

    def _take_back(self, request_id: RequestId, held: Held, length: int) -> None:
        """Settle a sequence below what it was given; vLLM keeps the blocks for the drafts to come."""
        if length < held.told:
            raise EngineError(
                f"{request_id} is settled at {length} tokens, {held.told} were sampled already: only drafts "
                "can be taken back"
            )
        held.length = held.request.num_computed_tokens = length

    def _short(self, blocks_due: int, found: Any) -> Admission:
        """Say why vLLM refused a prompt of ``blocks_due`` blocks, of which ``found`` are cached."""
        idle_hits = sum(block.ref_cnt == 0 for block in found)
        needed = blocks_due - len(found)
        spare = self._book.free_blocks + self._book.cached_blocks - idle_hits - needed
        short_by_watermark = 0 <= spare < self._watermark_blocks
        reason = RefusalReason.WATERMARK if short_by_watermark else RefusalReason.NO_BLOCKS
        return self._refusal(needed, idle_hits, reason)

    def _refusal(self, needed: int, idle_hits: int, reason: RefusalReason) -> Admission:
        return Admission(
            refusal=Refusal(
                needed_blocks=needed,
                free_blocks=self._book.free_blocks,
                reclaimable_blocks=self._book.cached_blocks - idle_hits,
                pool=POOL,
                reason=reason,
            )
        )

    def _tables(self, *, changed_only: bool) -> tuple[Any, Any, Any]:
        """Read every table again for a full snapshot: a table that changed unseen must not stay so."""
        if not changed_only:
            for request_id, held in self._live.held.items():
                held.read_whole(self._manager.table(request_id))
        return self._live.take_tables(changed_only=changed_only)
