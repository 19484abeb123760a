"""Engines that go wrong where a sequence outgrows the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvsuite.cache.block_table import BlockTable
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_ADMIT = "conformance/test_admit.py::"
_PRESSURE = "conformance/test_admit_pressure.py::"


class _GraspingCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        if super()._grow(sequence, table, length):
            return True
        table.blocks.extend(self._take(self.pool.available_blocks))
        self._changed.add(sequence)
        return False


@mutant(
    "growth-half-taken",
    caught_by="atomic",
    shown_by="growth by more blocks than there are",
    kind="ADMIT",
    killer=f"{_ADMIT}test_growth_is_all_or_nothing",
)
class GrowthHalfTaken(ReferenceEngine):
    """A sequence that is refused growth keeps the blocks it had got hold of by then."""

    cache_type = _GraspingCache


@mutant(
    "growth-refused-for-good",
    caught_by="progress",
    shown_by="sequences that outgrow the pool together",
    kind="ADMIT",
    killer=f"{_PRESSURE}test_promises_beyond_the_pool_end_nobody",
)
class GrowthRefusedForGood(ReferenceEngine):
    """Once the pool was full, nobody may grow any more, however much comes free."""

    _was_full = False

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Refuse for ever after the first refusal."""
        self._was_full = self._was_full or not super().extend(
            request_id, tokens, lookahead_tokens=lookahead_tokens
        )
        return not self._was_full


class _BlocklessCache(PagedCache):
    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        if not super()._grow(sequence, table, length):
            table.length = length
        return True

    def publish(self, sequence: str, keys: Sequence[Hashable]) -> None:
        table = self._tables[sequence]
        super().publish(sequence, keys[: len(table.blocks) - table.published_blocks])


@mutant(
    "growth-without-blocks",
    caught_by="slack",
    shown_by="sequences that outgrow the pool together",
    kind="ADMIT",
    killer=f"{_PRESSURE}test_a_packed_batch_tells_nothing_of_churn",
)
class GrowthWithoutBlocks(ReferenceEngine):
    """With the pool full a sequence goes on growing, and its table does not."""

    cache_type = _BlocklessCache
