"""Free list, ref counts and eviction order of `BlockPool`, by hand."""

import pytest

from kvsuite.cache.block_pool import BlockPool
from kvsuite.errors import BlockError, ConfigError


def taken(pool: BlockPool, count: int) -> list[int]:
    return list(pool.take(count)[0])


def state(pool: BlockPool) -> tuple[list[int], list[int], list[int]]:
    whole = pool.take_all()
    return whole.free.tolist(), whole.cached.tolist(), list(pool.ref_counts)


def test_first_blocks_out_are_0_1_2() -> None:
    pool = BlockPool(4)
    assert taken(pool, 1) + taken(pool, 2) == [0, 1, 2]


def test_null_blocks_never_go_out() -> None:
    pool = BlockPool(4, never_allocatable_blocks=2)
    assert pool.usable_blocks == pool.num_free == 2
    assert taken(pool, 2) == [2, 3]


@pytest.mark.parametrize(("num_blocks", "kept_back"), [(2, 2), (1, 3), (2, -1)])
def test_a_pool_without_a_usable_block_is_refused(num_blocks: int, kept_back: int) -> None:
    with pytest.raises(ConfigError, match="at least one block must be usable"):
        BlockPool(num_blocks, never_allocatable_blocks=kept_back)


def test_a_table_given_back_from_its_tail_comes_out_again_in_the_same_order() -> None:
    pool = BlockPool(5)
    table = taken(pool, 3)
    pool.drop(table[::-1])
    assert taken(pool, 3) == [0, 1, 2]


def test_a_block_stays_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    taken(pool, 1)
    pool.hold([0])
    pool.drop([0])
    assert pool.ref_count(0) == 1
    assert pool.num_free == 1
    pool.drop([0])
    assert pool.num_free == 2


def test_idle_blocks_are_evicted_oldest_first_and_only_when_nothing_is_free() -> None:
    pool = BlockPool(4)
    taken(pool, 3)
    pool.drop([2, 0, 1], keep={0, 1, 2})
    blocks, evicted = pool.take(3)
    assert (list(blocks), evicted) == ([3, 2, 0], [2, 0])
    assert state(pool) == ([], [1], [1, 0, 1, 1])


def test_a_hit_saves_an_idle_block_and_its_release_makes_it_the_newest() -> None:
    pool = BlockPool(2)
    taken(pool, 2)
    pool.drop([0, 1], keep={0, 1})
    pool.hold([0])
    assert pool.num_cached == 1
    pool.drop([0], keep={0})
    assert pool.take(1)[1] == [1]


def test_taking_more_than_there_is_changes_nothing() -> None:
    pool = BlockPool(3)
    taken(pool, 2)
    pool.drop([1], keep={1})
    before = state(pool)
    with pytest.raises(BlockError, match="3 blocks asked of a pool with 1 free and 1 cached"):
        pool.take(3)
    assert state(pool) == before


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([0, 2], "block 2 has ref_count 0, expected at least 1"),
        ([0, 1, 1], "block 1 has ref_count 1, expected at least 2"),
    ],
)
def test_a_double_free_is_named_and_changes_nothing(blocks: list[int], message: str) -> None:
    pool = BlockPool(3)
    taken(pool, 2)
    before = state(pool)
    with pytest.raises(BlockError, match=f"double free: {message}"):
        pool.drop(blocks)
    assert state(pool) == before


def test_holding_a_free_block_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(3)
    taken(pool, 1)
    before = state(pool)
    with pytest.raises(BlockError, match="block 2 is neither held nor cached"):
        pool.hold([0, 2])
    assert state(pool) == before


def test_forgetting_idle_blocks_of_an_empty_pool_restores_the_first_order() -> None:
    pool = BlockPool(3)
    taken(pool, 3)
    pool.drop([1, 0, 2], keep={0, 2})
    assert pool.forget_idle() == [0, 2]
    assert taken(pool, 3) == [0, 1, 2]


def test_forgetting_idle_blocks_leaves_held_ones_alone() -> None:
    pool = BlockPool(3)
    taken(pool, 3)
    pool.drop([1, 0], keep={0, 1})
    pool.forget_idle()
    assert state(pool) == ([0, 1], [], [0, 0, 1])


def test_changes_name_final_states_once() -> None:
    pool = BlockPool(4)
    taken(pool, 3)
    pool.take_all()
    pool.drop([2])
    pool.drop([1], keep={1})
    pool.hold([0])
    changes = pool.take_changes()
    assert changes.free.tolist() == [2]
    assert changes.cached.tolist() == [1]
    assert changes.live.tolist() == []
    assert (changes.counted.tolist(), changes.ref_counts.tolist()) == ([0, 1, 2], [2, 0, 0])


def test_what_is_undone_between_two_readings_is_no_change() -> None:
    pool = BlockPool(2)
    pool.drop(taken(pool, 1))
    changes = pool.take_changes()
    assert not len(changes.free)
    assert not len(changes.live)
    assert not len(changes.counted)


def test_an_evicted_block_that_is_held_again_counts_as_come_into_use() -> None:
    pool = BlockPool(1)
    pool.drop(taken(pool, 1), keep={0})
    pool.take_changes()
    pool.take(1)
    changes = pool.take_changes()
    assert (changes.live.tolist(), changes.cached.tolist()) == ([0], [])
