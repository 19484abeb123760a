"""Forks and frees gone wrong: holders miscounted, blocks given back twice or to two."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.content import TolerantCache
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Admission
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_SHARE = "conformance/test_share.py::"


class _PerEntryCache(PagedCache):
    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self.pool.hold(self._tables[child].blocks[:1])


@mutant(
    "fork-counts-entries",
    caught_by="recount",
    shown_by="a fork",
    kind="SHARE",
    killer=f"{_SHARE}test_each_holder_counts_once",
)
class ForkCountsEntries(ReferenceEngine):
    """A fork counts a block once for each place it had in a ring of blocks, and not once a holder."""

    cache_type = _PerEntryCache


class _FlatFamilyCache(TolerantCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._children: set[str] = set()

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        if parent in self._children:
            self._drop(self._tables[child].blocks)
        self._children.add(child)


@mutant(
    "grandchild-not-counted",
    caught_by="recount",
    shown_by="a fork of a fork",
    kind="SHARE",
    killer=f"{_SHARE}test_forks_of_forks_share_as_far_as_they_agree",
)
class GrandchildNotCounted(ReferenceEngine):
    """Only the forks of a root are counted among the holders of its blocks, not the forks of those."""

    cache_type = _FlatFamilyCache


class _ParentWaitsCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parent_of: dict[str, str] = {}

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self._parent_of[child] = parent

    def release(self, sequence: str) -> None:
        if sequence in self._parent_of.values():
            self.pool.hold(self._tables[sequence].blocks[:1])
        self._parent_of.pop(sequence, None)
        super().release(sequence)


@mutant(
    "parent-waits-for-children",
    caught_by="commute",
    shown_by="a parent that ends before its child",
    kind="SHARE",
    killer=f"{_SHARE}test_three_generations_leave_in_any_order",
)
class ParentWaitsForChildren(ReferenceEngine):
    """A parent that ends before its children keeps a block for them that none of them ever gives back."""

    cache_type = _ParentWaitsCache


class _SessionTailCache(PagedCache):
    last_tail: int | None = None

    def _drop(self, blocks: Sequence[int]) -> None:
        super()._drop([block for block in blocks if self._ref_counts[block]])

    def release(self, sequence: str) -> None:
        self.last_tail = self._tables[sequence].blocks[-1]
        super().release(sequence)


@mutant(
    "session-tail-aliased",
    caught_by="partition",
    shown_by="a prompt that begins with what an ended sequence computed",
    kind="SHARE",
    killer=f"{_SHARE}test_a_session_closed_and_opened_again_shares_no_block_by_mistake",
)
class SessionTailAliased(ReferenceEngine):
    """A session opened again takes its old last block, given back at the close, for its new one."""

    cache_type = _SessionTailCache

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Alias the last block of a prompt that was found in part; free and held still add up."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        tail = self.cache.last_tail if isinstance(self.cache, _SessionTailCache) else None
        if admission.hit_tokens and tail is not None:
            self.cache.tables[request_id].blocks[-1] = tail
        return admission


class _NullFreedCache(PagedCache):
    def release(self, sequence: str) -> None:
        super().release(sequence)
        if 0 not in self.pool._free:
            self.pool._free.insert(0, 0)


@mutant(
    "null-block-freed",
    caught_by="partition",
    shown_by="a release",
    kind="SHARE",
    killer=f"{_SHARE}test_free_ids_come_once_and_are_never_null",
)
class NullBlockFreed(ReferenceEngine):
    """A sequence gives back the null block too, as a placeholder in its table: it enters the free list."""

    cache_type = _NullFreedCache

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, options={**config.options, "null_blocks": 1}))


@mutant(
    "fork-as-if-private",
    caught_by="demand",
    shown_by="a wide fork of a long prompt",
    kind="SHARE",
    killer="conformance/test_divergence.py::test_a_wide_beam_that_fits_is_let_in",
)
class ForkAsIfPrivate(ReferenceEngine):
    """A fork is refused unless the pool could hold every member of the family without sharing."""

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Ask for width times depth."""
        width = len(self.cache.tables) + 1
        if width * len(self.cache.tables[parent_id].blocks) > self.cache.pool.usable_blocks:
            return False
        return super().fork(parent_id, child_id)


class _UnwrittenChildCache(PagedCache):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._forked_at: dict[str, int] = {}

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self._forked_at[child] = self._tables[child].length

    def release(self, sequence: str) -> None:
        table = self._tables[sequence]
        if self._forked_at.pop(sequence, None) == table.length:
            self.pool.hold(table.blocks[-1:])
        super().release(sequence)


@mutant(
    "unwritten-child-stays",
    caught_by="undone",
    shown_by="a child that goes before it writes",
    kind="SHARE",
    killer=f"{_SHARE}test_a_fork_that_is_taken_back_is_nothing",
)
class UnwrittenChildStays(ReferenceEngine):
    """A child that goes before its first token still counts among the holders of the last block."""

    cache_type = _UnwrittenChildCache
