"""LMDeploy's paging scheduler: its block manager, its prefix trie and its way of making room.

The engine's own scheduler admits (`schedule`), reserves chunks (`reserve_long_context_chunk`) and growth
(`schedule_running`), one sequence a call; whether they fit is seen before, because LMDeploy evicts for what
it then refuses. Full blocks enter the trie as they are allocated, before they are computed; a decoded block
when the next one is allocated. The server allocates some tokens ahead while it decodes, this adapter none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.admission import Demand, check_follows
from kvsuite.engine.adapters.block_journal import BlockJournal
from kvsuite.engine.adapters.lmdeploy.blocks import (
    BlockWatch,
    free_blocks,
    idle_blocks,
    matches,
    nodes,
)
from kvsuite.engine.adapters.lmdeploy.package import load
from kvsuite.engine.adapters.lmdeploy.settings import Options, engine_spec
from kvsuite.engine.adapters.pool_view import PoolView
from kvsuite.engine.adapters.token_ids import ids_of
from kvsuite.engine.contract import NO_OPS, Admission
from kvsuite.errors import EngineError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec, Ops, Refusal, Release
    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot
    from kvsuite.trace.model import RequestId

_NO_LIMIT = 2**31 - 1


@dataclass(slots=True)
class _Request:
    """A live sequence: LMDeploy's own, and how far it has slots. Its prompt is ``prompt_tokens`` long."""

    sequence: Any
    prompt_tokens: int
    length: int


class LmdeployEngine:
    """LMDeploy's paged cache with its prefix trie.

    Option ``null_blocks`` (default 0) is LMDeploy's ``num_reserved_gpu_blocks``; ``max_requests`` (default
    1024) its ``max_batches``.

    **Raises:** `ConfigError` for a configuration it cannot run; `EngineError` where LMDeploy is not
    installed, is of another shape than the adapter drives, or is driven against the contract.
    """

    def __init__(self, config: EngineConfig) -> None:
        options = Options.of(config)
        package = load()
        self._members = package.members
        self._size = config.block_size
        self._spec = engine_spec(config, options, package.version)
        self._cache = self._members.CacheConfig(
            max_batches=options.max_requests,
            block_size=config.block_size,
            num_cpu_blocks=0,
            num_gpu_blocks=config.num_blocks,
            num_reserved_gpu_blocks=options.null_blocks,
            enable_prefix_caching=config.prefix_cache,
            device_type="cpu",
        )
        self.scheduler = self._members.Scheduler(
            self._members.SchedulerConfig(max_batches=options.max_requests, max_session_len=_NO_LIMIT),
            self._cache,
            self._members.SequenceMeta(config.block_size, strategy=self._members.ARSequenceStrategy()),
        )
        self._trie = self.scheduler.block_trie
        self._allocator = self.scheduler.block_manager.allocator
        reserved = range(options.null_blocks)
        self._journal = BlockJournal(config.num_blocks, reserved)
        self._watch = BlockWatch(self._allocator, self._journal)
        self._view = PoolView(self._spec.pools[0], self, self._journal, np.array(reserved, np.int32))
        self._live: dict[RequestId, _Request] = {}
        self._sessions = 0

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
        ids = ids_of(prompt)
        refusal = self._refusal(ids)
        if refusal is not None:
            return Admission(refusal=refusal)
        sequence = self._schedule(request_id, ids, first_chunk_tokens)
        length = prompt.stop if sequence.kv_token_limit is None else int(sequence.kv_token_limit)
        self._live[request_id] = _Request(sequence, prompt.stop, length)
        self._changed(request_id, sequence)
        return Admission(hit_tokens=int(sequence.num_history_ids), scheduled_tokens=length)

    def _schedule(self, request_id: RequestId, ids: Int64Array, first_chunk_tokens: int) -> Any:
        self._sessions += 1
        session = self.scheduler.add_session(self._sessions)
        sequence = session.add_sequence(ids, self._members.SamplingParam(max_new_tokens=_NO_LIMIT))
        self._cache.max_prefill_token_num = first_chunk_tokens
        admitted = self.scheduler.schedule(is_prefill=True, prealloc_size=0).running
        if admitted != [sequence]:
            self.scheduler.end_session(self._sessions)
            raise EngineError(
                f"lmdeploy did not admit {request_id}, {len(ids)} tokens, which fits: are "
                f"{self._cache.max_batches} sequences live? Open it with a larger option max_requests"
            )
        self.scheduler.activate_seqs(admitted)
        return sequence

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        request = self._known(request_id)
        check_follows(request_id, request.length, tokens, lookahead_tokens)
        new_blocks = -(-tokens.stop // self._size) - request.sequence.num_blocks
        if new_blocks > self._free() and new_blocks > self._free() + self._watch.cached_blocks():
            return False
        if not self._give(request, tokens):
            raise EngineError(f"lmdeploy refused {new_blocks} blocks to {request_id}, which fit")
        request.length = tokens.stop
        if new_blocks > 0:
            self._changed(request_id, request.sequence)
        return True

    def _give(self, request: _Request, tokens: TokenRun) -> bool:
        """Reserve what of ``tokens`` is prompt, as a chunk from what is computed on; grow by the rest."""
        sequence, prompt = request.sequence, request.prompt_tokens
        if tokens.start < prompt:
            stop = min(tokens.stop, prompt)
            chunk = stop - int(sequence.num_history_ids)
            if not self.scheduler.reserve_long_context_chunk(sequence, chunk, is_last_chunk=stop == prompt):
                return False
        if tokens.stop <= prompt:
            return True
        answer = TokenRun(tokens.content, max(tokens.start, prompt), tokens.stop)
        sequence.update_token_ids(ids_of(answer), mode=self._members.UpdateTokenMode.DECODE)
        return bool(self.scheduler.schedule_running([sequence], num_required_tokens=0, prealloc_size=0)[0])

    def release(self, request_id: RequestId, reason: Release) -> None:
        """End the session; all reasons are alike.

        A sequence that LMDeploy preempts keeps its blocks until somebody needs them; here they go at once.
        """
        del reason
        self.scheduler.end_session(self._known(request_id).sequence.session_id)
        del self._live[request_id]

    def take_ops(self) -> Ops:
        """Return nothing: no block is ever copied."""
        return NO_OPS

    def launched(self, step: int) -> None:
        """Nothing to do: a step is settled before the next one is driven."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Move prompts under way on to what is computed; the trie knows of it already."""
        del step
        for request_id, length in accepted.items():
            request = self._known(request_id)
            if length < request.prompt_tokens:
                request.sequence.set_step(length)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        return self._view.snapshot(since)

    def lengths(self) -> dict[RequestId, int]:
        """Return the tokens that each live sequence holds slots for, oldest first."""
        return {request_id: request.length for request_id, request in self._live.items()}

    def table(self, request_id: RequestId) -> Int32Array:
        """Return the physical blocks of a live sequence in token order."""
        table = self.scheduler.block_manager.get_block_table(self._live[request_id].sequence)
        return np.asarray(table, np.int32)

    def free(self) -> Int32Array:
        """Return the free physical blocks in the order they are taken."""
        return free_blocks(self._allocator)

    def cached(self) -> Int32Array:
        """Return the physical blocks that the trie alone holds, first to be evicted first."""
        return np.asarray(self._allocator.get_physical_blocks(idle_blocks(self._trie)), np.int32)

    def ref_counts(self, blocks: Int32Array | None) -> Int32Array:
        """Return the sequences that hold each block: LMDeploy's references but the trie's own."""
        if blocks is not None:
            return self._watch.holders(blocks)
        logical = np.flatnonzero(self._allocator._log_mem.ref_count)
        counts = np.zeros(self._spec.pools[0].num_blocks, np.int32)
        np.add.at(
            counts, self._allocator.get_physical_blocks(logical), self._allocator.get_ref_count(logical)
        )
        in_trie = np.array([node.block_id for node in nodes(self._trie)], np.int64)
        np.subtract.at(counts, self._allocator.get_physical_blocks(in_trie).astype(np.int64), 1)
        return counts

    def _refusal(self, ids: Int64Array) -> Refusal | None:
        found = matches(self._trie, ids)
        counts = self._allocator.get_ref_count(np.array([node.block_id for node in found], np.int64))
        size = self._size
        demand = Demand(
            total=-(-len(ids) // size),
            hits=len(found),
            idle_hits=int(np.count_nonzero(counts == 1)),
            free=self._free(),
            cached=self._watch.cached_blocks(),
            promised=sum(
                -(-request.prompt_tokens // size) - -(-request.length // size)
                for request in self._live.values()
                if request.length < request.prompt_tokens
            ),
        )
        return demand.refusal(self._spec.pools[0])

    def _changed(self, request_id: RequestId, sequence: Any) -> None:
        self._view.changed.add(request_id)
        self._watch.entered(sequence.prefix_cache.trie_cursor)

    def _free(self) -> int:
        return int(self.scheduler.block_manager.get_num_free_gpu_blocks())

    def _known(self, request_id: RequestId) -> _Request:
        request = self._live.get(request_id)
        if request is None:
            raise EngineError(f"{request_id} is not live: admit it first, and settle it before its release")
        return request
