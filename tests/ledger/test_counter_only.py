"""The rejected control agrees with clean engines, and with engines that are badly broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
from kvsuite.ledger.counter_only import counter_only

SPEC = PoolSpec(PoolKey(), num_blocks=8, block_size=4, bytes_per_token=2, never_allocatable_blocks=1)


def ids(*blocks: int) -> Any:
    return np.array(blocks, np.int32)


def snapshot(**more: Any) -> PoolSnapshot:
    """Eight blocks: 0 null, 1 and 2 held by a, 2 and 3 by b, 4 cached, 5 quarantined, 6 and 7 free."""
    fields: dict[str, Any] = {
        "request_ids": ("a", "b"),
        "lengths": np.array([8, 8]),
        "table_rows": ids(0, 1),
        "table_offsets": np.array([0, 2, 4]),
        "table_blocks": ids(1, 2, 2, 3),
        "free": ids(6, 7),
        "cached": ids(4),
        "quarantined": ids(5),
        "never_allocatable": ids(0),
        "null_ids": ids(0),
        "ref_count_ids": ids(1, 2, 3),
        "ref_counts": ids(1, 2, 1),
    }
    return PoolSnapshot(key=PoolKey(), revision=1, since=None, **(fields | more))


def test_the_counts_of_a_clean_pool_agree() -> None:
    assert counter_only(snapshot(), SPEC) == 0
    assert counter_only(snapshot(ref_count_ids=None, ref_counts=None), SPEC) == 0


def test_a_pinned_block_counts_once() -> None:
    pinned = snapshot(pinned=ids(5), ref_count_ids=ids(1, 2, 3, 5), ref_counts=ids(1, 2, 1, 1))
    assert counter_only(pinned, SPEC) == 0


def test_a_null_in_a_table_is_in_use_by_nobody() -> None:
    holes = snapshot(table_blocks=ids(0, 1, 2, 3), ref_count_ids=None, ref_counts=None)
    assert counter_only(holes, SPEC) == 0


@pytest.mark.parametrize(
    ("more", "gap"),
    [
        ({"free": ids(6)}, -1),
        ({"cached": ids(4, 6)}, 1),
        ({"ref_count_ids": ids(1, 2), "ref_counts": ids(1, 2)}, -1),
        ({"ref_counts": ids(1, 2, 0)}, -1),
        ({"quarantined": ids()}, -1),
    ],
)
def test_a_block_that_one_side_alone_loses_or_gains_is_seen(more: dict[str, Any], gap: int) -> None:
    assert counter_only(snapshot(**more), SPEC) == gap


@pytest.mark.parametrize(
    "more",
    [
        {"free": ids(6, 6)},
        {"free": ids(1, 7)},
        {"cached": ids(6)},
        {"table_blocks": ids(1, 1, 2, 3)},
        {"table_blocks": ids(6, 2, 2, 7)},
        {"ref_counts": ids(1, 9, 1)},
        {"lengths": np.array([80, 1])},
        {"free": ids(6), "ref_count_ids": ids(1, 2, 3, 7), "ref_counts": ids(1, 2, 1, 1)},
    ],
    ids=[
        "free twice",
        "free and in use",
        "free and cached",
        "another's block",
        "free blocks in tables",
        "too many holders",
        "lengths past the tables",
        "leaked",
    ],
)
def test_it_is_blind_to_which_blocks_they_are(more: dict[str, Any]) -> None:
    assert counter_only(snapshot(**more), SPEC) == 0
