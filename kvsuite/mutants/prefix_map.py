"""Prefixes lost or kept by the map: entries that outlive their block, or come before its content."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.cache.prefix_cache import PrefixCache
from kvsuite.engine.contract import Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from array import array
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from kvsuite.trace.model import RequestId

_KEY = "conformance/test_key.py::"
_MAP = "conformance/test_prefix_map.py::"


class _StillMappedCache(PagedCache):
    def _take(self, count: int) -> array[int]:
        return self.pool.take(count)[0]

    def publish(self, sequence: str, keys: Sequence[Hashable]) -> None:
        assert self.prefixes is not None
        table = self._table(sequence, "publish")
        start = table.published_blocks
        self.prefixes.forget(table.blocks[start : start + len(keys)])
        super().publish(sequence, keys)


@mutant(
    "evicted-still-mapped",
    caught_by="content",
    shown_by="an evicted prompt asked for while a request fills its block",
    kind="KEY",
    killer=f"{_MAP}test_an_evicted_block_belongs_to_its_new_owner_alone",
)
class EvictedStillMapped(ReferenceEngine):
    """An evicted block stays in the map until its new owner has filled it: it is handed out twice."""

    cache_type = _StillMappedCache


class _TwinKeyPrefixes(PrefixCache):
    def publish(self, block: int, key: Hashable) -> bool:
        if key in self._blocks:
            self.key_of.setdefault(block, key)
        return super().publish(block, key)

    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._blocks.pop(self.key_of.pop(block, None), None)


class _TwinKeyCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prefixes = _TwinKeyPrefixes()


@mutant(
    "twin-takes-key-along",
    caught_by="hits",
    shown_by="two blocks of one content, one of them evicted",
    kind="KEY",
    killer=f"{_KEY}test_a_twin_outlives_the_other",
)
class TwinTakesKeyAlong(ReferenceEngine):
    """Two blocks of one content both carry the key; the one evicted first takes it off the map for both."""

    cache_type = _TwinKeyCache


class _DanglingPrefixes(PrefixCache):
    def publish(self, block: int, key: Hashable) -> bool:
        fresh = super().publish(block, key)
        self._blocks[key] = block
        return fresh


class _DanglingCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prefixes = _DanglingPrefixes()

    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        free = set(self.pool._free)
        return list(takewhile(lambda block: block not in free, super()._hits(keys, limit)))


@mutant(
    "twin-overwrites-entry",
    caught_by="content",
    shown_by="two equal prompts in one step, the second of which ends first",
    kind="KEY",
    killer=f"{_KEY}test_twins_in_one_step",
)
class TwinOverwritesEntry(ReferenceEngine):
    """The second of two equal blocks takes over the entry in the map, which outlives that block."""

    cache_type = _DanglingCache


class _GrowingPrefixes(PrefixCache):
    def forget(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.key_of.pop(block, None)


class _GrowingMapCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prefixes = _GrowingPrefixes()

    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        free = set(self.pool._free)
        return list(takewhile(lambda block: block not in free, super()._hits(keys, limit)))


@mutant(
    "map-never-shrinks",
    caught_by="keys",
    shown_by="more prompts one after another than the pool has blocks",
    kind="KEY",
    killer=f"{_MAP}test_there_are_never_more_prefixes_than_blocks",
)
class MapNeverShrinks(ReferenceEngine):
    """An evicted block forgets its key, and the map keeps the entry: it grows without bound."""

    cache_type = _GrowingMapCache


class _GhostCache(PagedCache):
    def _take(self, count: int) -> array[int]:
        evicts = count > self.pool.num_free
        taken = super()._take(count)
        if evicts and self.prefixes is not None:
            descendants = self.pool.forget_idle()
            self.prefixes.forget(descendants)
            self.pool._touched.difference_update(descendants)
        return taken


@mutant(
    "descendants-leave-untold",
    caught_by="changes",
    shown_by="the eviction of one block of a chain",
    kind="KEY",
    killer=f"{_MAP}test_what_is_evicted_is_told",
)
class DescendantsLeaveUntold(ReferenceEngine):
    """With an evicted block its descendants leave the cache too, and changed snapshots do not say so."""

    cache_type = _GhostCache


class _ConsumedCache(PagedCache):
    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        hits = super()._hits(keys, limit)
        if self.prefixes is not None:
            self.prefixes.forget([block for block in hits if not self._ref_counts[block]])
        return hits


@mutant(
    "hit-wipes-key",
    caught_by="hits",
    shown_by="a prompt asked for a third time",
    kind="KEY",
    killer=f"{_MAP}test_chunks_that_cut_a_block",
)
class HitWipesKey(ReferenceEngine):
    """A cached block that is found loses its key, and is not found again."""

    cache_type = _ConsumedCache


@mutant(
    "publishes-one-token-early",
    caught_by="keys",
    shown_by="a prompt asked for when one token of its block is missing",
    kind="KEY",
    killer=f"{_MAP}test_a_block_is_found_once_its_last_token_is_computed",
)
class PublishesOneTokenEarly(ReferenceEngine):
    """A block can be found when all but its last token are computed."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Count the token that is yet to come."""
        super().done(step, accepted)
        size = self.cache.block_size
        for request_id, length in accepted.items():
            if self.cache.prefixes is not None and length % size == size - 1 > 0:
                block = length // size
                key = self._contents[request_id].prefix_key((block + 1) * size)
                self.cache.prefixes.publish(self.cache.tables[request_id].blocks[block], key)


@mutant(
    "preempt-publishes-unwritten",
    caught_by="keys",
    shown_by="a preemption between a token's slot and its step",
    kind="KEY",
    killer=f"{_MAP}test_preempted_and_resumed",
)
class PreemptPublishesUnwritten(ReferenceEngine):
    """A preempted sequence leaves all its full blocks to be found, computed or not."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Settle by what has a slot."""
        if reason is Release.PREEMPT:
            self.done(0, {request_id: self.cache.tables[request_id].length})
        super().release(request_id, reason)


@mutant(
    "cancel-publishes-unwritten",
    caught_by="keys",
    shown_by="a request that is cancelled before it is computed",
    kind="KEY",
    killer=f"{_MAP}test_cancelled_in_the_middle_of_its_prompt",
)
class CancelPublishesUnwritten(ReferenceEngine):
    """A cancelled request leaves the blocks allocated for its next chunk to be found."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Settle by what has a slot."""
        if reason is Release.CANCEL:
            self.done(0, {request_id: self.cache.tables[request_id].length})
        super().release(request_id, reason)


class _LongMemoryCache(PagedCache):
    def reset_prefixes(self) -> bool:
        if self._tables:
            return False
        self.pool.forget_idle()
        return True

    def _take(self, count: int) -> array[int]:
        taken = super()._take(count)
        if self.prefixes is not None:
            self.prefixes.forget(taken)
        return taken

    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        hits = super()._hits(keys, limit)
        for block in hits:
            if block in self.pool._free:
                self.pool._free.remove(block)
                self.pool._idle[block] = None
        return hits


@mutant(
    "reset-keeps-keys",
    caught_by="keys",
    shown_by="a reset, and a prompt computed before it",
    kind="KEY",
    killer=f"{_MAP}test_nothing_is_found_after_a_reset",
)
class ResetKeepsKeys(ReferenceEngine):
    """A reset empties the cached blocks and leaves the map: what it forgot is found again."""

    cache_type = _LongMemoryCache


class _EvictsFirstCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        short = super()._shortfall(total_blocks, hits)
        if short is not None and self.prefixes is not None:
            self.prefixes.forget(self.pool.forget_idle())
        return short


@mutant(
    "refusal-empties-the-cache",
    caught_by="atomic",
    shown_by="a refusal while blocks are cached",
    kind="KEY",
    killer=f"{_KEY}test_a_refusal_in_between",
)
class RefusalEmptiesTheCache(ReferenceEngine):
    """Cached blocks are evicted to make room for a prompt before it is known whether that is enough."""

    cache_type = _EvictsFirstCache
