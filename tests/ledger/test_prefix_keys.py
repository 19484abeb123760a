"""The laws of prefix identity, each shown to hold and to fail."""

from __future__ import annotations

import pytest

from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSpec
from kvsuite.ledger.prefix_keys import (
    ComputedPrefixes,
    cached_full,
    hit_unit,
    hits_computed,
    hits_kept,
    map_fits,
    shared_alike,
)
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

POOL = PoolSpec(PoolKey(), num_blocks=4, block_size=4, bytes_per_token=10, never_allocatable_blocks=1)
A, B = RequestId("a"), RequestId("b")
SYSTEM_ONE, SYSTEM_TWO = TokenContent((3, 5), (8,)), TokenContent((3, 9), (8,))
"""They share their first 8 tokens."""


def test_hits_come_in_what_is_whole_in_every_group() -> None:
    wide = PoolSpec(PoolKey(1), 4, 6, 10)
    state = PoolSpec(PoolKey(2), 4, 7, 10, kind=PoolKind.STATE)
    host = PoolSpec(PoolKey(tier="host"), 4, 5, 10)
    assert hit_unit([POOL]) == 4
    assert hit_unit([POOL, wide, state, host]) == 12


@pytest.fixture
def computed() -> ComputedPrefixes:
    known = ComputedPrefixes(4)
    known.written(SYSTEM_ONE, 0, 6)
    known.written(SYSTEM_ONE, 6, 13)
    return known


@pytest.mark.parametrize(
    ("content", "tokens", "longest"),
    [(SYSTEM_ONE, 4, 0), (SYSTEM_ONE, 5, 4), (SYSTEM_ONE, 13, 12), (SYSTEM_ONE, 99, 12), (SYSTEM_TWO, 99, 8)],
)
def test_the_longest_prefix_that_may_be_found(
    computed: ComputedPrefixes, content: TokenContent, tokens: int, longest: int
) -> None:
    prompt = TokenRun(content, 0, tokens)
    assert computed.longest(prompt) == longest
    for hit in range(0, longest + 1, 4):
        assert not list(hits_computed(POOL.key, "r", prompt, hit, computed, 1))
        assert bool(list(hits_kept(POOL.key, "r", prompt, hit, computed, 1))) == (hit < longest)
    for wrong in (longest + 4, longest + 1, -4):
        (found,) = hits_computed(POOL.key, "r", prompt, wrong, computed, 1)
        assert found.invariant == "keys"


def test_a_chunk_computed_after_a_hit_does_not_vouch_for_the_hit() -> None:
    known = ComputedPrefixes(4)
    known.written(SYSTEM_ONE, 4, 12)
    assert known.longest(TokenRun(SYSTEM_ONE, 0, 13)) == 0


def test_a_map_is_no_larger_than_its_pool() -> None:
    assert not list(map_fits(POOL, 3, 1))
    (found,) = map_fits(POOL, 4, 1)
    assert "4 different blocks can be found in a pool of 3 usable ones" in found.message


@pytest.mark.parametrize(
    ("table", "alike"),
    [([1, 2, 4], True), ([1, 2, 3], False), ([2, 1, 4], False), ([1, 1, 4], False), ([0, 0, 4], True)],
)
def test_a_block_in_two_tables_holds_one_content(table: list[int], alike: bool) -> None:
    """a holds blocks 1, 2, 3 and b shares its first 8 tokens; 0 is the null block."""
    tables = {A: [1, 2, 3], B: table}
    contents = {A: SYSTEM_ONE, B: SYSTEM_TWO}
    found = list(shared_alike(POOL, tables, contents, {A: 9, B: 9}, 1, null_ids=[0]))
    assert bool(found) == (not alike)


@pytest.mark.parametrize(
    ("cached", "tokens", "broken"), [(0, 3, 0), (1, 3, 1), (1, 4, 0), (2, 7, 1), (2, 8, 0), (3, 8, 1)]
)
def test_no_more_blocks_are_cached_than_were_filled(cached: int, tokens: int, broken: int) -> None:
    """In blocks of 4: three tokens fill none, seven fill one, eight fill two."""
    found = list(cached_full(POOL, cached, tokens, 5))
    assert [(v.invariant, v.step, v.pool) for v in found] == [("keys", 5, str(POOL.key))] * broken
    assert all(f"{cached} blocks are cached, of which {tokens // 4} were filled" in v.message for v in found)
