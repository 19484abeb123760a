"""The laws of forks, each held against numbers worked out by hand and shown to fail."""

from __future__ import annotations

import doctest
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSnapshot, PoolSpec
from kvsuite.ledger.sharing import (
    Demand,
    PoolStep,
    Rest,
    available_blocks,
    fork_answered,
    fork_undone,
    full_blocks_shared,
    growth_answered,
    removal_orders_agree,
    step_demand,
)
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from kvsuite.ledger.invariants import Violation

POOL = PoolSpec(PoolKey(), num_blocks=12, block_size=4, bytes_per_token=10)
A, B, C = (RequestId(name) for name in "abc")


def snapshot(
    tables: dict[RequestId, list[int]], lengths: dict[RequestId, int], **others: Any
) -> PoolSnapshot:
    held = {block for table in tables.values() for block in table}
    fields: dict[str, Any] = {
        "free": np.array([block for block in range(12) if block not in held], np.int32),
        "cached": np.zeros(0, np.int32),
        **others,
    }
    return PoolSnapshot(
        key=POOL.key,
        revision=1,
        since=None,
        request_ids=tuple(tables),
        lengths=np.array([lengths[name] for name in tables], np.int64),
        table_rows=np.arange(len(tables), dtype=np.int32),
        table_offsets=np.cumsum([0, *map(len, tables.values())], dtype=np.int64),
        table_blocks=np.array([block for table in tables.values() for block in table], np.int32),
        **fields,
    )


SHARED = snapshot({A: [0, 1], B: [0, 1], C: [0, 1]}, {A: 6, B: 6, C: 6})
"""Three at 6 tokens: block 0 full, block 1 half full, both held by all."""


def names(found: list[Violation]) -> list[str]:
    return [violation.invariant for violation in found]


@pytest.mark.parametrize("module", ["kvsuite.ledger.sharing", "kvsuite.ledger.prefix_keys"])
def test_examples_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize(
    ("growth", "new", "copies"),
    [
        ({A: 1}, 0, 1),
        ({A: 1, B: 1}, 0, 2),
        ({A: 1, B: 1, C: 1}, 0, 2),
        ({A: 3}, 1, 1),
        ({A: 7, B: 7, C: 7}, 6, 2),
        ({}, 0, 0),
    ],
)
def test_demand_of_a_step_on_a_shared_half_full_block(
    growth: dict[RequestId, int], new: int, copies: int
) -> None:
    assert step_demand(POOL, SHARED, growth) == Demand(new, copies)


def test_demand_at_a_boundary_is_new_blocks_alone() -> None:
    full = snapshot({A: [0, 1], B: [0, 1]}, {A: 8, B: 8})
    assert step_demand(POOL, full, {A: 1, B: 1}) == Demand(2, 0)


def test_demand_counts_no_copy_for_a_sole_holder_and_no_block_that_is_there_already() -> None:
    ahead = snapshot({A: [0, 1, 2], B: [3, 4]}, {A: 6, B: 6})
    assert step_demand(POOL, ahead, {A: 3, B: 3}) == Demand(1, 0)


def test_demand_of_a_state_is_a_copy_at_every_length() -> None:
    states = snapshot({A: [5], B: [5]}, {A: 4, B: 4})
    assert step_demand(replace(POOL, kind=PoolKind.STATE), states, {A: 9, B: 9}) == Demand(0, 1)


@pytest.mark.parametrize(
    ("had", "left", "granted", "broken"),
    [
        (3, 0, [True, True, True], False),
        (4, 1, [True, True, True], False),
        (2, 0, [True, True, False], False),
        (3, 1, [True, True, False], True),
        (2, 0, [True, True, True], True),
        (9, 5, [True, True, True], True),
    ],
)
def test_growth_is_granted_exactly_where_its_demand_fits(
    had: int, left: int, granted: list[bool], broken: bool
) -> None:
    """Three writers need 1 new block and 2 copies."""
    line = PoolStep(POOL.key, had, left, Demand(1, 2))
    assert names(list(growth_answered([line], granted, 7))) == ["demand"] * broken


def test_growth_may_be_refused_by_another_pool() -> None:
    lines = [PoolStep(POOL.key, 9, 9, Demand(1, 0)), PoolStep(PoolKey(1), 0, 0, Demand(1, 0))]
    assert not list(growth_answered(lines, [False], 7))
    assert names(list(growth_answered(lines, [True], 7))) == ["demand", "demand"]


def test_a_fork_is_refused_only_without_a_block_for_its_copy() -> None:
    empty = replace(SHARED, free=np.zeros(0, np.int32))
    assert available_blocks(empty) == 0
    assert not list(fork_answered(POOL.key, empty, 6, 4, granted=False, step=1))
    assert not list(fork_answered(POOL.key, SHARED, 6, 4, granted=True, step=1))
    assert names(list(fork_answered(POOL.key, empty, 8, 4, granted=False, step=1))) == ["demand"]
    assert names(list(fork_answered(POOL.key, SHARED, 6, 4, granted=False, step=1))) == ["demand"]


def test_a_full_block_that_was_copied_is_named() -> None:
    tables = {A: [0, 1], B: [0, 2], C: [3, 4]}
    assert not list(full_blocks_shared(POOL, {A: [0, 1], B: [0, 2]}, 6, 1))
    (found,) = full_blocks_shared(POOL, tables, 6, 1)
    assert found.invariant == "sharing"
    assert "{'a': 0, 'b': 0, 'c': 3}" in found.message


def test_orders_that_end_otherwise_are_named() -> None:
    whole, short = Rest(frozenset({0, 1}), frozenset()), Rest(frozenset({0}), frozenset())
    ends: dict[tuple[str, ...], Rest] = {("a", "b"): whole, ("b", "a"): whole}
    assert not list(removal_orders_agree(POOL.key, ends, 3))
    (found,) = removal_orders_agree(POOL.key, {**ends, ("b", "a"): short}, 3)
    assert "removed as b, a: 1 blocks free" in found.message


@pytest.mark.parametrize(
    "change",
    [
        {"cached": np.array([3], np.int32), "free": SHARED.free[SHARED.free != 3]},
        {"ref_count_ids": np.array([0], np.int32), "ref_counts": np.array([3], np.int32)},
        {"table_blocks": np.array([0, 1, 0, 1, 0, 2], np.int32)},
    ],
)
def test_what_a_child_leaves_behind_is_named(change: dict[str, Any]) -> None:
    assert not list(fork_undone(POOL.key, SHARED, replace(SHARED, free=SHARED.free[::-1]), 1))
    assert names(list(fork_undone(POOL.key, SHARED, replace(SHARED, **change), 1))) == ["undone"]
