"""Engines that let go of a block while somebody may still touch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Release
from kvsuite.engine.extensions.async_steps import AsyncEngine
from kvsuite.engine.extensions.pins import PinnedCache
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.engine.extensions.window import WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.content import TolerantCache
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.extensions.tiers import Chain, Move
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_FILE = "conformance/test_early.py::"


@mutant(
    "window-freed-on-scheduled-count",
    kind="EARLY",
    caught_by="window",
    shown_by="a window one settled token short of letting a block go",
    killer=_FILE + "test_a_window_lets_go_on_the_settled_count",
)
class WindowFreedOnScheduledCount(WindowEngine):
    """A window lets go as soon as tokens are scheduled, before the step that reads the block is done."""

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Let go at once."""
        extended = super().extend(request_id, tokens, lookahead_tokens=lookahead_tokens)
        start, stop = self._let_go.get(request_id, 0), self.due(tokens.stop)
        if extended and stop > start:
            self.cache.let_go(request_id, start, stop)
            self._let_go[request_id] = stop
        return extended


@mutant(
    "cancelled-load-freed-at-once",
    kind="EARLY",
    caught_by="content",
    shown_by="a cancel while a load is under way, and a new request",
    killer=_FILE + "test_a_cancelled_load_keeps_its_target_until_it_ends",
)
class CancelledLoadFreedAtOnce(TiersEngine):
    """The cancel of a request that is loading frees the blocks that are still being written from outside."""

    def forget(self, request_id: RequestId) -> None:
        """End the request's loads here and now."""
        for ref, move in list(self._moves.items()):
            if not move.to_host and move.transfer.request_id == request_id:
                self.transfer_done(ref, ok=False)


@mutant(
    "copied-out-block-unpinned",
    kind="EARLY",
    caught_by="content",
    shown_by="a preemption, a store under way, and another that takes the blocks",
    killer=_FILE + "test_a_block_that_is_copied_out_is_not_overwritten",
)
class CopiedOutBlockUnpinned(TiersEngine):
    """A block that is being copied out can be evicted: another's tokens are saved under its key."""

    def _begin(self, chain: Chain, source: int, target: int, *, to_host: bool) -> None:
        super()._begin(chain, source, target, to_host=to_host)
        if to_host:
            self.cache.unpin([source])

    def _device_pins(self) -> list[int]:
        return [move.device_block for move in self._moves.values() if not move.to_host]

    def _release_ends(self, move: Move) -> None:
        self.host.unpin(move.host_block)
        if not move.to_host:
            self.cache.unpin([move.device_block])


@mutant(
    "late-load-believed",
    kind="EARLY",
    caught_by="content",
    shown_by="a load that ends after its deadline, with its source reused",
    killer=_FILE + "test_a_load_that_ends_after_its_deadline_is_not_believed",
)
class LateLoadBelieved(TiersEngine):
    """The deadline of a load frees its source alone: what arrives later is taken for the prompt."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._lapsed: set[int] = set()

    def tick(self, now_us: int) -> None:
        """Let go of sources."""
        self._now_us = now_us
        for ref, move in self._moves.items():
            if move.deadline_us <= now_us and not move.to_host and ref not in self._lapsed:
                self._lapsed.add(ref)
                self.host.unpin(move.host_block)

    def _host_pins(self) -> list[int]:
        return [move.host_block for ref, move in self._moves.items() if ref not in self._lapsed]

    def _release_ends(self, move: Move) -> None:
        self.cache.unpin([move.device_block])
        if move.transfer.ref not in self._lapsed:
            self.host.unpin(move.host_block)


class _DuplicateFreeingCache(TolerantCache):
    def publish(self, sequence: str, keys: Sequence[Hashable]) -> None:
        table = self._table(sequence, "publish")
        offered = table.blocks[table.published_blocks : table.published_blocks + len(keys)]
        super().publish(sequence, keys)
        if self.prefixes is not None:
            self._drop([block for block in offered if block not in self.prefixes.key_of])


@mutant(
    "duplicate-freed-under-its-table",
    kind="EARLY",
    caught_by="partition",
    shown_by="two equal prompts computed in one step",
    killer=_FILE + "test_two_equal_prompts_at_once_keep_their_own_blocks",
)
class DuplicateFreedUnderItsTable(ReferenceEngine):
    """A block whose key another block has already is freed, and the running table still points at it."""

    cache_type = _DuplicateFreeingCache


class _ChunkFreeingCache(TolerantCache):
    frees_keyed = False

    def _drop(self, blocks: Sequence[int]) -> None:
        if self.frees_keyed:
            self.pool.drop(list(blocks))
        else:
            super()._drop(blocks)


@mutant(
    "preempted-chunk-still-keyed",
    kind="EARLY",
    caught_by="content",
    shown_by="a preemption between two chunks, and another that takes the blocks",
    killer=_FILE + "test_a_chunk_in_the_cache_is_gone_when_its_blocks_are_reused",
)
class PreemptedChunkStillKeyed(ReferenceEngine):
    """A preemption frees blocks that the prefix map still offers."""

    cache_type = _ChunkFreeingCache
    cache: _ChunkFreeingCache

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Free under the map."""
        self.cache.frees_keyed = reason is Release.PREEMPT
        super().release(request_id, reason)
        self.cache.frees_keyed = False


@mutant(
    "freed-in-flight",
    kind="EARLY",
    caught_by="fence",
    shown_by="a release with a step in flight",
    killer=_FILE + "test_what_a_launched_step_uses_is_not_given_away",
)
class FreedInFlight(AsyncEngine):
    """Released blocks are free at once, whatever step still reads or writes them."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Know of no step."""
        ReferenceEngine.release(self, request_id, reason)


@mutant(
    "quarantine-ends-with-any-step",
    kind="EARLY",
    caught_by="content",
    shown_by="a release with two steps in flight, one of which is done",
    killer=_FILE + "test_quarantine_ends_with_the_last_step_in_flight",
)
class QuarantineEndsWithAnyStep(AsyncEngine):
    """Quarantine ends when the next step is done, although a younger one still uses the blocks."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Take one step for all."""
        for left in self._quarantine:
            left.steps.intersection_update({step})
        super().done(step, accepted)


class _TolerantPinnedCache(TolerantCache, PinnedCache):
    pass


@mutant(
    "shared-block-not-quarantined",
    kind="EARLY",
    caught_by="recount",
    shown_by="a parent released in flight while its child runs on",
    killer=_FILE + "test_a_shared_block_outlives_the_one_who_left",
)
class SharedBlockNotQuarantined(AsyncEngine):
    """Quarantine takes the place of every other holder: what is shared is counted for the one who left."""

    cache_type = _TolerantPinnedCache

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Let go of shared blocks for both."""
        shared = [
            block
            for left in self._quarantine
            if left.steps == {step}
            for block in left.blocks
            if self.cache.pool.ref_count(block) > 1
        ]
        super().done(step, accepted)
        self.cache.unpin(shared)


@mutant(
    "quarantine-not-listed",
    kind="EARLY",
    caught_by="partition",
    shown_by="a release with a step in flight",
    killer=_FILE + "test_what_a_launched_step_uses_is_not_given_away",
)
class QuarantineNotListed(AsyncEngine):
    """Blocks in quarantine stand in no list: nobody can tell them from lost ones."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Leave them out."""
        return ReferenceEngine.snapshot(self)
