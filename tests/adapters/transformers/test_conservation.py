"""Whole traces through each generation: every block in one place at every step, changes equal to all."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from tests.adapters.transformers.built import transformers

SLACK_ALONE = {"slack"}


@pytest.mark.parametrize(("version", "laws"), [("5.17.0", SLACK_ALONE), ("5.18.0", set()), ("5.24.0", set())])
@pytest.mark.parametrize("block_size", [16, 64])
def test_churn_with_forks_in_a_pool_that_is_short(version: str, laws: set[str], block_size: int) -> None:
    """Changed snapshots are held against full ones at intervals, by the law ``changes``."""
    trace = load_trace("churn")
    done = replay(trace, transformers(version, usable_blocks=4_096 // block_size, block_size=block_size))
    assert {violation.invariant for violation in done.violations} == laws
    assert done.content.mismatches == 0
    (pool,) = done.timeline.pools
    kinds = ("payload", "slack", "over_reserved", "cached", "free", "never_allocatable")
    slots = np.sum([pool.column(kind) for kind in kinds], axis=0)
    assert (slots == (4_096 // block_size + 2) * block_size).all()
    assert pool.column("copied").sum() > 0
    assert pool.column("hit").sum() > 0
    assert pool.column("refused_admissions").sum() + pool.column("refused_growths").sum() > 0


@pytest.mark.parametrize("version", ["5.18.0", "5.24.0"])
def test_live_blocks_follow_from_lengths_alone(version: str) -> None:
    """Without sharing, sum of ceil(n / b) over the live lengths: the ledger's slack is its remainder."""
    trace = load_trace("chat")
    done = replay(trace, transformers(version, usable_blocks=2_500, prefix_cache=False))
    assert done.violations == ()
    (pool,) = done.timeline.pools
    assert np.array_equal(pool.column("live_blocks") * 16, pool.column("logical") + pool.column("slack"))
    assert (pool.column("slack") <= 15 * pool.column("running")).all()
    assert (pool.column("cached") == 0).all()
