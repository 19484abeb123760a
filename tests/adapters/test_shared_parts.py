"""What the adapters share: the journal of blocks, the demand of a prompt, what an extension follows."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.engine.adapters.admission import Demand, check_follows
from kvsuite.engine.adapters.block_journal import CACHED, FREE, LIVE, BlockJournal
from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import EngineError
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

POOL = PoolSpec(PoolKey(), num_blocks=11, block_size=4, bytes_per_token=2, never_allocatable_blocks=1)


def test_a_journal_tells_what_moved_and_only_once() -> None:
    journal = BlockJournal(6, [0])
    journal.mark([1, 2, 3], LIVE)
    journal.mark([3], FREE)  # back where it was told to be
    journal.mark(np.array([2]), CACHED)
    moved = journal.take()
    assert (moved.live.tolist(), moved.free.tolist(), moved.cached.tolist()) == ([1], [], [2])
    assert moved.touched.tolist() == [1, 2, 3]
    journal.mark([1], FREE)
    journal.mark([2], CACHED)  # as it was
    moved = journal.take()
    assert (moved.live.tolist(), moved.free.tolist(), moved.cached.tolist()) == ([], [1], [])
    assert [len(ids) for ids in (journal.take().live, journal.take().touched)] == [0, 0]


def test_a_journal_gives_columns_of_the_snapshot_s_type() -> None:
    journal = BlockJournal(3)
    assert {ids.dtype for ids in (journal.take().free, journal.take().live)} == {np.dtype(np.int32)}
    journal.mark([1], LIVE)
    assert journal.take().live.dtype == np.int32


@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        (Demand(total=10, hits=0, idle_hits=0, free=10, cached=0), None),
        (Demand(total=11, hits=11, idle_hits=0, free=10, cached=0), RefusalReason.NEVER_FITS),
        (Demand(total=5, hits=0, idle_hits=0, free=3, cached=2), None),
        (Demand(total=5, hits=0, idle_hits=0, free=3, cached=1), RefusalReason.NO_BLOCKS),
        # Two of the cached are its own hits: found, and no room.
        (Demand(total=5, hits=2, idle_hits=2, free=1, cached=4), None),
        (Demand(total=5, hits=2, idle_hits=2, free=1, cached=3), RefusalReason.NO_BLOCKS),
        (Demand(total=5, hits=0, idle_hits=0, free=7, cached=0, promised=2), None),
        (Demand(total=5, hits=0, idle_hits=0, free=7, cached=0, promised=3), RefusalReason.PROMISED),
    ],
)
def test_a_prompt_gets_in_where_it_fits(demand: Demand, reason: RefusalReason | None) -> None:
    """Fits: total - hits <= free + cached - idle hits - promised, and total <= 10 usable blocks."""
    refusal = demand.refusal(POOL)
    assert (None if refusal is None else refusal.reason) == reason
    if refusal is not None:
        told = (refusal.needed_blocks, refusal.free_blocks, refusal.reclaimable_blocks, refusal.pool)
        expected = (demand.total - demand.hits, demand.free, demand.cached - demand.idle_hits, POOL.key)
        assert told == expected


def test_an_extension_follows_what_is_held() -> None:
    run = TokenRun(TokenContent((1,), ()), 5, 6)
    check_follows(RequestId("r"), 5, run, 0)
    with pytest.raises(EngineError, match="r holds 4 tokens and is extended from 5"):
        check_follows(RequestId("r"), 4, run, 0)
    with pytest.raises(EngineError, match="2 look-ahead tokens asked"):
        check_follows(RequestId("r"), 5, run, 2)
