"""Engines that leave something behind when a request goes: a block, a pin, a key, an entry, an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvsuite.cache.block_table import BlockTable
from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.engine.contract import Admission, Release
from kvsuite.engine.extensions.async_steps import AsyncEngine, Quarantined
from kvsuite.engine.extensions.state import StateEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.cache.prefix_cache import PrefixCache
    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_FILE = "conformance/test_leak.py::"


@mutant(
    "state-slot-lost-to-a-refusal",
    kind="LEAK",
    caught_by="atomic",
    shown_by="a request refused for want of token room, beside free states",
    killer=_FILE + "test_a_refused_request_takes_nothing_from_any_pool",
)
class StateSlotLostToARefusal(StateEngine):
    """The state slot is taken before the tokens are, and not given back when those are refused."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Lose a slot."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        states = self.states.cache.pool
        if not admission.accepted and states.available_blocks:
            states.take(1)
        return admission


class _BoundaryLeakCache(PagedCache):
    def release(self, sequence: str) -> None:
        table = self._table(sequence, "release")
        if table.length % self.block_size == 0:
            self.pool.hold(table.blocks[-1:])
        super().release(sequence)


@mutant(
    "full-tail-lost",
    kind="LEAK",
    caught_by="slope",
    shown_by="a release at a length that is a multiple of the block size",
    killer=_FILE + "test_fifty_cycles_leave_no_block_behind",
)
class FullTailLost(ReferenceEngine):
    """The last block of a sequence is not given back when it is exactly full."""

    cache_type = _BoundaryLeakCache


@mutant(
    "published-at-release",
    kind="LEAK",
    caught_by="content",
    shown_by="a prompt cancelled before it is computed, then asked for again",
    killer=_FILE + "test_a_prompt_removed_before_it_is_settled_is_not_found",
)
class PublishedAtRelease(ReferenceEngine):
    """What a sequence holds is registered for reuse when it is removed, computed or not."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Publish first."""
        self._publish(request_id, self.cache.tables[request_id].length)
        super().release(request_id, reason)


class _PartialGrabCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        if shortfall is not None:
            self._take(min(1, self.pool.num_free))
        return shortfall


@mutant(
    "partial-grab-kept",
    kind="LEAK",
    caught_by="atomic",
    shown_by="a refused admission beside a free block",
    killer=_FILE + "test_a_warm_up_that_fails_half_way_gives_all_back",
)
class PartialGrabKept(ReferenceEngine):
    """An admission that fails half-way keeps the block that it got first."""

    cache_type = _PartialGrabCache


@mutant(
    "prefix-maps-never-die",
    kind="LEAK",
    caught_by="metadata",
    shown_by="many engines opened and dropped in one process",
    killer=_FILE + "test_many_engines_leave_no_object_behind",
)
class PrefixMapsNeverDie(ReferenceEngine):
    """The prefix map of every engine is still referred to when the engine is gone."""

    _maps: ClassVar[list[PrefixCache | None]] = []

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._maps.append(self.cache.prefixes)


@mutant(
    "waiting-request-in-a-table",
    kind="LEAK",
    caught_by="lengths",
    shown_by="a request cancelled while it waits",
    killer=_FILE + "test_a_waiting_request_that_is_cancelled_leaves_nothing",
)
class WaitingRequestInATable(ReferenceEngine):
    """A refused request has a row in the block tables, which its cancel does not remove."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._ghosts: set[RequestId] = set()

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Enter whoever is refused."""
        if request_id in self._ghosts:
            self._ghosts.discard(request_id)
            del self.cache._tables[request_id]
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if not admission.accepted:
            self._ghosts.add(request_id)
            self.cache._tables[request_id] = BlockTable((), 0)
        return admission


@mutant(
    "cancelled-quarantine-never-ends",
    kind="LEAK",
    caught_by="drain",
    shown_by="a cancel with a step in flight",
    killer=_FILE + "test_what_left_in_flight_is_back_when_the_steps_are_done",
)
class CancelledQuarantineNeverEnds(AsyncEngine):
    """Blocks of a request that is cancelled with a step in flight wait for a step that nobody will launch."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Wait for one step more."""
        super().release(request_id, reason)
        if reason is Release.CANCEL and self._in_flight:
            left = self._quarantine[-1]
            self._quarantine[-1] = Quarantined(left.request_id, left.blocks, left.steps | {-1})
