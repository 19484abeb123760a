"""Engines that reserve too much, too little or for too long ahead of their sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.extensions.lookahead import LookaheadCache, LookaheadEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.trace.model import RequestId


class _TailKeptCache(LookaheadCache):
    def settle(self, sequence: str, length: int) -> None:
        self._table(sequence, "settle").length = length

    def release(self, sequence: str) -> None:
        table = self._table(sequence, "release")
        del table.blocks[self.blocks_for(table.length) :]
        super().release(sequence)


@mutant(
    "draft-tail-kept",
    caught_by="drain",
    shown_by="an end after a look-ahead of a block or more",
    kind="SPEC",
    killer="conformance/test_spec.py::test_traffic_with_drafts_closes_and_drains",
)
class DraftTailKept(LookaheadEngine):
    """What was reserved for drafts does not count as held, and stays behind when the sequence ends."""

    cache_type = _TailKeptCache


class _PagedRollbackCache(LookaheadCache):
    def settle(self, sequence: str, length: int) -> None:
        table = self._table(sequence, "settle")
        if self.block_size > 1:
            del table.blocks[self.blocks_for(length) :]
            self._changed.add(sequence)
        super().settle(sequence, length)


@mutant(
    "paged-rollback-leaks",
    caught_by="recount",
    shown_by="a rejected draft that had begun a block, in blocks of two tokens or more",
    kind="SPEC",
    killer="conformance/test_spec.py::test_free_tokens_at_the_end_do_not_depend_on_the_block_size",
)
class PagedRollbackLeaks(LookaheadEngine):
    """Rolled-back drafts give their slots back in blocks of one token only."""

    cache_type = _PagedRollbackCache


class _OneMoreCache(LookaheadCache):
    def reach(self, length: int) -> int:
        return super().reach(length + 1) if self.lookahead_tokens else length


@mutant(
    "draft-slot-too-many",
    caught_by="count",
    shown_by="a look-ahead that ends on a block boundary",
    kind="SPEC",
    killer="conformance/test_spec.py::test_a_look_ahead_holds_exactly_what_is_due",
)
class DraftSlotTooMany(LookaheadEngine):
    """A look-ahead of k tokens reserves slots for k + 1."""

    cache_type = _OneMoreCache


class _UnclampedCache(LookaheadCache):
    def reach(self, length: int) -> int:
        return length + self.lookahead_tokens


@mutant(
    "draft-past-the-end",
    caught_by="range",
    shown_by="a look-ahead at the longest sequence",
    kind="SPEC",
    killer="conformance/test_spec.py::test_look_ahead_stops_at_the_longest_sequence",
)
class DraftPastTheEnd(LookaheadEngine):
    """Slots for drafts are reserved beyond the longest sequence, in a column that the table has not got."""

    cache_type = _UnclampedCache


class _ShortenedCache(LookaheadCache):
    def extend(self, sequence: str, num_tokens: int) -> bool:
        length = self._table(sequence, "extend").length + num_tokens
        if self.max_tokens is not None and length + self.lookahead_tokens > self.max_tokens:
            return False
        return super().extend(sequence, num_tokens)


@mutant(
    "drafts-shorten-the-sequence",
    caught_by="capacity",
    shown_by="a sequence within k tokens of the longest one",
    kind="SPEC",
    killer="conformance/test_spec.py::test_a_sequence_with_drafts_grows_to_its_declared_length",
)
class DraftsShortenTheSequence(LookaheadEngine):
    """The longest sequence is cut by the look-ahead instead of the look-ahead by the longest sequence."""

    cache_type = _ShortenedCache


class _ModuloCache(LookaheadCache):
    def reach(self, length: int) -> int:
        ahead = length + self.lookahead_tokens % self.block_size
        return ahead if self.max_tokens is None else max(length, min(ahead, self.max_tokens))


@mutant(
    "look-ahead-modulo-block",
    caught_by="monotone",
    shown_by="a look-ahead of a block",
    kind="SPEC",
    killer="conformance/test_spec.py::test_more_look_ahead_never_takes_fewer_blocks",
)
class LookAheadModuloBlock(LookaheadEngine):
    """Whole blocks of a look-ahead are forgotten: only its remainder is reserved."""

    cache_type = _ModuloCache


class _PartialGrabCache(LookaheadCache):
    def extend(self, sequence: str, num_tokens: int) -> bool:
        if super().extend(sequence, num_tokens):
            return True
        if self.lookahead_tokens:
            self._table(sequence, "extend").blocks.extend(self._take(self.pool.num_free))
            self._changed.add(sequence)
        return False


@mutant(
    "refused-drafts-keep-blocks",
    caught_by="atomic",
    shown_by="a look-ahead that finds some of its blocks and not all",
    kind="SPEC",
    killer="conformance/test_spec.py::test_a_refused_look_ahead_changes_nothing",
)
class RefusedDraftsKeepBlocks(LookaheadEngine):
    """A refused look-ahead keeps the blocks that it had found before it ran short."""

    cache_type = _PartialGrabCache


class _NoRollbackCache(LookaheadCache):
    def settle(self, sequence: str, length: int) -> None:
        super().settle(sequence, max(length, self._table(sequence, "settle").length))


@mutant(
    "rejected-drafts-stay",
    caught_by="lengths",
    shown_by="a rejected draft",
    kind="SPEC",
    killer="conformance/test_spec.py::test_rejected_drafts_are_rolled_back",
)
class RejectedDraftsStay(LookaheadEngine):
    """Rejected drafts go on counting as tokens of the sequence."""

    cache_type = _NoRollbackCache


class _EagerRollbackCache(LookaheadCache):
    def settle(self, sequence: str, length: int) -> None:
        table = self._table(sequence, "settle")
        rejected = length < table.length
        super().settle(sequence, length)
        if rejected and length % self.block_size and len(table.blocks) > 1:
            self._drop([table.blocks.pop()])


@mutant(
    "rollback-takes-the-tail",
    caught_by="slack",
    shown_by="a rejected draft that leaves a block part full",
    kind="SPEC",
    killer="conformance/test_spec.py::test_rejected_drafts_are_rolled_back",
)
class RollbackTakesTheTail(LookaheadEngine):
    """A rollback lets go of the block that holds the last accepted tokens."""

    cache_type = _EagerRollbackCache


@mutant(
    "look-ahead-published",
    caught_by="content",
    shown_by="a rejected draft that had filled a block of a prompt asked for again",
    kind="SPEC",
    killer="conformance/test_spec.py::test_a_rejected_draft_is_never_found_by_others",
)
class LookAheadPublished(LookaheadEngine):
    """Blocks that drafts have filled can be hit before the drafts are verified."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish by the tokens that have slots, then settle by those that were accepted."""
        for request_id in accepted:
            self._publish(request_id, self.cache.tables[request_id].length)
        super().done(step, accepted)
