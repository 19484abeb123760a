"""transformers' continuous batching behind the contract: its block management, without a model.

The engine's own objects take and give back blocks; the suite's scheduler says when. Three things are the
adapter's: a prompt is admitted where the whole of it fits by the engine's own count (the engine's scheduler
asks for the first chunk, and keeps a share of the pool free instead), a refused admission leaves the eviction
order as it was, and copies at a fork are told to the worker, not made in the engine's stand-in tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.keywords import known
from kvsuite.engine.adapters.transformers.block_manager import BlockManagerCache
from kvsuite.engine.adapters.transformers.copies import PendingCopies
from kvsuite.engine.adapters.transformers.generations import Generation, detect
from kvsuite.engine.adapters.transformers.opening import open_cache
from kvsuite.engine.adapters.transformers.options import Options
from kvsuite.engine.adapters.transformers.sectors import SectorCache
from kvsuite.engine.adapters.transformers.snapshots import PoolView
from kvsuite.engine.adapters.transformers.spec import pool_spec, spec_of_cache
from kvsuite.engine.contract import NO_OPS, Admission, Ops, Refusal, RefusalReason, Release
from kvsuite.errors import EngineError
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.adapters.transformers.generations import Cache
    from kvsuite.engine.adapters.transformers.opening import Opened
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int64Array, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent

_VOCABULARY = 2**31 - 1
"""Token ids are hashed as 32-bit integers."""


@dataclass(slots=True)
class _Sequence:
    """A live sequence; ``state`` is the engine's own."""

    state: Any
    content: TokenContent
    settled: int
    """Tokens computed when its blocks were last published."""
    next_full: int
    """Settled length at which its next block is full."""
    given_from: int
    given_in: int
    """The launch before which tokens from ``given_from`` on were given."""


class TransformersEngine:
    """The paged cache of transformers' continuous batching (5.0.0 and newer), as installed here.

    Option ``window_tokens`` gives the stand-in model one sliding layer of that window: each sequence then has
    a ring of ``ceil(W / b)`` blocks, and no prefix is cached. ``safety_margin_percent`` (15, the engine's
    default) is the free share below which 5.18 and newer drop every cached block.

    **Raises:** `EngineError` where transformers or torch is absent or of an unknown structure; `ConfigError`
    for a block size, pool or option that the engine does not take.
    """

    def __init__(self, config: EngineConfig) -> None:
        options = Options.of(config)
        opened = open_cache(
            block_size=config.block_size,
            num_blocks=options.usable_blocks,
            window_tokens=options.window_tokens,
            safety_margin=options.safety_margin_percent / 100,
        )
        self._cache = _open_generation(opened)
        self._request_state = opened.request_state
        self._prefix_cache = options.prefix_cache
        self._spec = spec_of_cache(config, options, self._cache, opened.version)
        self._pool = pool_spec(config, options, self._cache)
        self._size = config.block_size
        self._sequences: dict[RequestId, _Sequence] = {}
        self._lengths: dict[RequestId, int] = {}
        self._view = PoolView(self._cache)
        self._copies = PendingCopies(self._pool.key, self._size)
        self._launches = 0
        self._asked: tuple[TokenRun, list[int]] | None = None

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
        if request_id in self._sequences:
            raise EngineError(f"{request_id} is live already: release it before it is admitted again")
        token_ids = self._token_ids(prompt)
        state = self._state(request_id, token_ids)
        hit = self._cache.match(state, token_ids) if self._prefix_cache else 0
        state.position_offset = hit
        chunk = min(first_chunk_tokens, prompt.stop - hit)
        refusal = self._shortfall(state, prompt.stop)
        if refusal is None and not self._cache.store(state, chunk):
            raise EngineError(
                f"{request_id}: the engine finds no room for {chunk} of {prompt.stop} tokens, where "
                f"{self._cache.num_free} blocks are free and {len(self._cache.cached)} cached"
            )
        if refusal is not None:
            self._cache.withdraw(state)
            return Admission(refusal=refusal)
        self._asked = None
        self._keep(_Sequence(state, prompt.content, hit, 0, hit, self._launches), hit + chunk)
        return Admission(hit_tokens=hit, scheduled_tokens=hit + chunk)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        sequence = self._sequences.get(request_id)
        if sequence is None or lookahead_tokens or tokens.start != self._lengths[request_id]:
            raise self._misdriven(request_id, tokens, lookahead_tokens)
        start, stop = tokens.start, tokens.stop
        if not self._cache.store(sequence.state, stop - start):
            return False
        sequence.content = tokens.content
        if sequence.given_in != self._launches:
            sequence.given_in, sequence.given_from = self._launches, start
        sequence.state.position_offset = self._lengths[request_id] = stop
        return True

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence with the full blocks of ``parent_id`` and copies of the others."""
        parent, length = self._live(parent_id, "fork"), self._lengths[parent_id]
        if child_id in self._sequences:
            raise EngineError(f"{child_id} is live already: a fork of {parent_id} needs a new name")
        state = self._state(child_id, parent.state.initial_tokens)
        state.generated_tokens = list(parent.state.generated_tokens)
        pairs = self._cache.fork(parent.state, state)
        if pairs is None:
            return False
        self._copies.add(child_id, pairs, self._cache.tables[parent_id], length)
        self._keep(
            _Sequence(state, parent.content, parent.settled, parent.next_full, length, self._launches), length
        )
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds; the engine treats every reason alike."""
        del reason
        self._live(request_id, "release")
        self._cache.free(request_id)
        self._cache.touched.tables.add(request_id)
        del self._sequences[request_id], self._lengths[request_id]

    def take_ops(self) -> Ops:
        """Return, once, the copies of blocks that forks need."""
        return self._copies.take(self._sequences) if self._copies else NO_OPS

    def launched(self, step: int) -> None:
        """Learn that what was given so far is being written."""
        del step
        self._launches += 1

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish the blocks that the step has filled, then do what the scheduler does between batches."""
        del step
        if self._prefix_cache:
            for request_id, length in accepted.items():
                sequence = self._live(request_id, "done")
                if length >= sequence.next_full:
                    self._publish(sequence, request_id, length)
        self._cache.maintain()

    def reset_cache(self) -> bool:
        """Forget every cached block; False: refused because sequences are live, or never offered."""
        if self._sequences or not self._cache.can_forget:
            return False
        self._cache.forget()
        return True

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array]:
        """Return the slots that the engine's indices give for what a sequence still holds."""
        self._live(request_id, "read_slots")
        return (self._cache.read_slots(request_id, self._lengths[request_id]),)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array]:
        """Return the slots that the engine's indices give for the tokens given since the last launch."""
        sequence, length = self._live(request_id, "write_slots"), self._lengths[request_id]
        start = sequence.given_from if sequence.given_in == self._launches else length
        return (self._cache.write_slots(request_id, start, length),)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        return (self._view.take(self._lengths, since),)

    def _keep(self, sequence: _Sequence, length: int) -> None:
        request_id = sequence.state.request_id
        sequence.state.position_offset = self._lengths[request_id] = length
        sequence.next_full = (sequence.settled // self._size + 1) * self._size
        self._sequences[request_id] = sequence

    def _publish(self, sequence: _Sequence, request_id: RequestId, length: int) -> None:
        state, size = sequence.state, self._size
        known_tokens = len(state.initial_tokens) + len(state.generated_tokens)
        if known_tokens < length:
            ids = TokenRun(sequence.content, known_tokens, length).token_ids(_VOCABULARY)
            state.generated_tokens.extend(ids.tolist())
        state.position_offset = sequence.settled
        self._cache.complete(state, length - sequence.settled)
        state.position_offset = self._lengths[request_id]
        sequence.settled, sequence.next_full = length, (length // size + 1) * size

    def _token_ids(self, prompt: TokenRun) -> list[int]:
        """Return a prompt's token ids; whoever waits at the head of the queue is asked for once a step."""
        if not self._prefix_cache:
            return []
        if self._asked is None or self._asked[0] != prompt:
            self._asked = (prompt, prompt.token_ids(_VOCABULARY).tolist())
        return self._asked[1]

    def _state(self, request_id: RequestId, token_ids: list[int]) -> Any:
        fields = {"request_id": request_id, "initial_tokens": token_ids, "max_new_tokens": _VOCABULARY}
        return self._request_state(**known(self._request_state, **fields))

    def _shortfall(self, state: Any, total_tokens: int) -> Refusal | None:
        """Return why the engine cannot store a prompt after its hits, by its own count; None: it can."""
        cache, usable = self._cache, self._pool.usable_blocks
        wanted = cache.blocks_wanted(state, total_tokens - state.position_offset)
        free, reclaimable = cache.num_free, len(cache.cached)
        if wanted <= free + reclaimable:
            return None
        never = len(cache.tables.get(state.request_id, ())) + wanted > usable
        return Refusal(
            needed_blocks=wanted,
            free_blocks=free,
            reclaimable_blocks=reclaimable,
            pool=self._pool.key,
            reason=RefusalReason.NEVER_FITS if never else RefusalReason.NO_BLOCKS,
        )

    def _live(self, request_id: RequestId, verb: str) -> _Sequence:
        try:
            return self._sequences[request_id]
        except KeyError:
            raise EngineError(
                f"{verb} of unknown sequence {request_id!r}: not among the {len(self._sequences)} live ones; "
                "it was never admitted, or was released before"
            ) from None

    def _misdriven(self, request_id: RequestId, tokens: TokenRun, lookahead_tokens: int) -> EngineError:
        self._live(request_id, "extend")
        if lookahead_tokens:
            return EngineError(f"{request_id}: {lookahead_tokens} look-ahead tokens asked, none are claimed")
        return EngineError(
            f"{request_id} holds {self._lengths[request_id]} tokens and is extended from {tokens.start}: "
            "tokens must follow what the sequence has"
        )


def _open_generation(opened: Opened) -> Cache:
    if detect(opened.cache, opened.version) is Generation.C:
        return BlockManagerCache(opened)
    return SectorCache(opened)
