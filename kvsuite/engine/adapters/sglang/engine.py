"""SGLang's slot allocator, request table and radix tree, driven as its scheduler drives them.

The engine's own code does the work: admission is a look-up, a lock and an allocation; a prompt is published
when its chunk is computed (``checkpoint``), an answer when the request ends. Nobody shares part of a page. A
retracted request leaves nothing of its answer behind, and neither does a prompt that is aborted half way: its
finished chunks stay.

The scheduler's admission estimate (how long answers will get) is left out: a prompt is let in when all of it
fits beside what other prompts under way still need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.admission import Demand, check_follows
from kvsuite.engine.adapters.block_journal import FREE, BlockJournal
from kvsuite.engine.adapters.pool_view import PoolView
from kvsuite.engine.adapters.sglang.observed import (
    journalled_allocator,
    journalled_tree,
    pages_of,
    peek,
    unlocked_nodes,
)
from kvsuite.engine.adapters.sglang.package import load
from kvsuite.engine.adapters.sglang.request import CacheRequest, key_ids
from kvsuite.engine.adapters.sglang.settings import engine_spec, tables_fit
from kvsuite.engine.contract import NO_OPS, Admission, Release
from kvsuite.engine.snapshot import NO_BLOCKS
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec, Ops, Refusal
    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_DUMMY_PAGE = 0
"""Padded batches write there; SGLang never hands it out."""


class SglangEngine:
    """SGLang's paged cache with its radix tree; a block is a page of ``page_size`` slots.

    Option ``max_requests`` (default 1024) is the number of rows of the request table; ``null_blocks`` is 1.

    **Raises:** `ConfigError` for a configuration it cannot run; `EngineError` where SGLang is not installed,
    is of another shape than the adapter drives, or is driven against the contract.
    """

    def __init__(self, config: EngineConfig) -> None:
        rows = tables_fit(config)
        self._package = load()
        self._package.refuse_kernels(config.block_size)
        self._page = config.block_size
        self._spec = engine_spec(config, self._package)
        self._usable = self._spec.pools[0].usable_blocks
        self._journal = BlockJournal(config.num_blocks, [_DUMMY_PAGE])
        self._open_pools(config, rows)
        never = np.array([_DUMMY_PAGE], np.int32)
        self._view = PoolView(self._spec.pools[0], self, self._journal, never)
        self._live: dict[RequestId, CacheRequest] = {}
        self._refused: tuple[TokenRun, array[int]] | None = None

    def _open_pools(self, config: EngineConfig, rows: int) -> None:
        package, members, slots = self._package, self._package.members, self._usable * self._page
        dtype = package.torch.float16
        base = members.TokenToKVPoolAllocator if self._page == 1 else members.PagedTokenToKVPoolAllocator
        sizes = (slots,) if self._page == 1 else (slots, self._page)
        self.allocator = journalled_allocator(base, self._journal)(*sizes, dtype, "cpu", None, False)
        self.rows = members.ReqToTokenPool(rows, 1, "cpu", False)
        # The same table, of memory that is committed only where it is written.
        self._slots = np.zeros((rows + 1, slots), np.int32)
        self.rows.req_to_token = package.torch.from_numpy(self._slots)
        self.rows.max_context_len = slots
        parameters = members.CacheInitParams(
            disable=not config.prefix_cache,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self._page,
        )
        self.tree = journalled_tree(members.RadixCache, self._journal)(parameters)

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
        """Take a sequence in, or refuse it and change nothing; ``max_tokens`` is not needed here."""
        del max_tokens
        if request_id in self._live:
            raise EngineError(f"{request_id} is admitted and live already")
        ids = self._prompt_ids(prompt)
        key = self._package.members.RadixKey(ids, limit=prompt.stop - 1)
        found = peek(self.tree, key)
        refusal = self._refusal(prompt.stop, found)
        if refusal is not None:
            self._refused = (prompt, ids)
            return Admission(refusal=refusal)
        if not self.rows.available_size():
            raise EngineError(
                f"{request_id}: all {self.rows.size} rows of sglang's request table are taken: open it with "
                "the option max_requests"
            )
        hit = sum(tokens for _, tokens in found)
        request = CacheRequest(request_id, prompt.content, ids, prompt.stop, ids[:], settled=hit)
        self._hold(request, key, hit)
        stop = min(prompt.stop, hit + first_chunk_tokens)
        self._take(request, hit, stop)
        self._live[request_id] = request
        return Admission(hit_tokens=hit, scheduled_tokens=stop)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        request = self._known(request_id)
        check_follows(request_id, request.tokens, tokens, lookahead_tokens)
        new_pages = -(-tokens.stop // self._page) - -(-tokens.start // self._page)
        if new_pages > self._free_pages() + self._evictable_pages():
            return False
        request.content = tokens.content
        self._take(request, tokens.start, tokens.stop)
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds, by SGLang's own way for that reason.

        An answer is published when its request finishes, or is aborted while it decodes, by a client or an
        error; not on a retraction, nor of what is not computed yet.
        """
        request = self._known(request_id)
        aborts_decoding = reason in {Release.CANCEL, Release.ERROR} and request.decodes
        ends = reason is Release.FINISH or aborts_decoding
        request.done = ends
        request.kv.kv_committed_len = request.kv.kv_allocated_len
        publish = ends and request.settled == request.tokens
        self._package.members.release_kv_cache(request, self.tree, checkpoint=publish)
        del self._live[request_id]

    def take_ops(self) -> Ops:
        """Return nothing: no block is ever copied."""
        return NO_OPS

    def launched(self, step: int) -> None:
        """Learn that what was given slots so far is being written."""
        del step
        for request in self._live.values():
            request.launched = request.tokens

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish prompts as far as they are computed, as SGLang does after each chunk."""
        del step
        for request_id, length in accepted.items():
            request = self._live.get(request_id)
            if request is None:
                raise EngineError(f"{request_id} is settled at {length} tokens but not live")
            prefills = not request.decodes
            request.settled = length
            if prefills:
                self.tree.checkpoint(request, up_to=length)
                self._view.changed.add(request_id)

    def reset_cache(self) -> bool:
        """Forget every cached page, as ``flush_cache`` does; False: refused because sequences are live."""
        if self._live:
            return False
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()
        self._journal.mark(np.arange(1, self._usable + 1), FREE)
        return True

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of every token of a sequence, from SGLang's request table."""
        return (self._slots_of(self._known(request_id), 0),)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of the tokens a sequence was given since the last step was launched."""
        request = self._known(request_id)
        return (self._slots_of(request, request.launched),)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        return self._view.snapshot(since)

    def lengths(self) -> dict[RequestId, int]:
        """Return the tokens that each live sequence holds slots for, oldest first."""
        return {request_id: request.tokens for request_id, request in self._live.items()}

    def table(self, request_id: RequestId) -> Int32Array:
        """Return the pages of a live sequence in token order."""
        request = self._live[request_id]
        pages: Int32Array = self._slots[request.kv.req_pool_idx, : request.tokens : self._page] // self._page
        return pages

    def free(self) -> Int32Array:
        """Return the allocator's free pages in its order."""
        pages: Int32Array = self.allocator.get_all_free_pages().numpy().astype(np.int32)
        return pages

    def cached(self) -> Int32Array:
        """Return the pages of tree nodes that nobody holds, least recently used first."""
        pages = [pages_of(node, self._page) for node in unlocked_nodes(self.tree)]
        return np.concatenate(pages).astype(np.int32) if pages else NO_BLOCKS

    def ref_counts(self, blocks: Int32Array | None) -> None:
        """Return nothing: SGLang counts holders of tree nodes, not of pages."""
        del blocks

    def _hold(self, request: CacheRequest, key: Any, hit: int) -> None:
        """Register a row, look the prefix up for real and lock it."""
        self.rows.alloc([request])
        match = self.tree.match_prefix(self._package.members.MatchPrefixParams(key=key))
        if match.device_prefix_len != hit:
            raise EngineError(
                f"{request.rid}: sglang found {match.device_prefix_len} tokens where its tree shows {hit}"
            )
        request.last_node, request.lock = match.last_device_node, self.tree.lock(match.last_device_node)
        request.kv.cache_protected_len = request.kv.kv_allocated_len = hit
        if hit:
            slots = self.tree.path_device_indices(match.last_device_node)
            self.rows.write((request.kv.req_pool_idx, slice(0, hit)), slots.to(self._package.torch.int32))

    def _take(self, request: CacheRequest, start: int, stop: int) -> None:
        """Allocate slots ``start..stop``, evicting as SGLang does; the caller saw that they fit."""
        members, row = self._package.members, request.kv.req_pool_idx
        if self._page == 1:
            slots = members.alloc_token_slots(self.tree, stop - start)
        else:
            tensor = self._package.torch.tensor
            last = tensor([int(self._slots[row, start - 1]) if start else -1])
            old, new = tensor([start]), tensor([stop])
            if request.decodes and stop == start + 1:
                slots = members.alloc_paged_token_slots_decode(self.tree, new, new, last)
            else:
                slots = members.alloc_paged_token_slots_extend(
                    self.tree, old, old, new, new, last, stop - start
                )
        self.rows.write((row, slice(start, stop)), slots.to(self._package.torch.int32))
        request.kv.kv_allocated_len = stop
        if -(-stop // self._page) > -(-start // self._page) or not start:
            self._view.changed.add(request.rid)

    def _refusal(self, prompt_tokens: int, found: list[tuple[Any, int]]) -> Refusal | None:
        demand = Demand(
            total=-(-prompt_tokens // self._page),
            hits=sum(tokens for _, tokens in found) // self._page,
            idle_hits=sum(tokens for node, tokens in found if node.lock_ref == 0) // self._page,
            free=self._free_pages(),
            cached=self._evictable_pages(),
            promised=self._promised_pages(),
        )
        return demand.refusal(self._spec.pools[0])

    def _promised_pages(self) -> int:
        """Return the pages that prompts under way still need."""
        page = self._page
        return sum(
            -(-request.prompt_tokens // page) - -(-request.tokens // page)
            for request in self._live.values()
            if request.tokens < request.prompt_tokens
        )

    def _free_pages(self) -> int:
        return int(self.allocator.available_size()) // self._page

    def _evictable_pages(self) -> int:
        return int(self.tree.evictable_size()) // self._page

    def _slots_of(self, request: CacheRequest, start: int) -> Int64Array:
        slots: Int64Array = self._slots[request.kv.req_pool_idx, start : request.tokens].astype(np.int64)
        return slots

    def _prompt_ids(self, prompt: TokenRun) -> array[int]:
        if self._refused is not None and self._refused[0] == prompt:
            return self._refused[1]
        return key_ids(prompt)

    def _known(self, request_id: RequestId) -> CacheRequest:
        request = self._live.get(request_id)
        if request is None:
            raise EngineError(f"{request_id} is not live: admit it first")
        return request
