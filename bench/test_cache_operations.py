"""What the cache costs: ``pytest bench/test_cache_operations.py -o addopts= --benchmark-only``.

Each round does its operation for many sequences or blocks, so that a call of the timer does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.block_pool import BlockPool
from kvsuite.cache.paged import Admitted, PagedCache
from kvsuite.cache.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

BLOCK_SIZE = 16
SEQUENCES = 64
NAMES = tuple(f"r{k}" for k in range(SEQUENCES))
PROMPT_TOKENS = 1001
"""63 blocks, the last of them with 9 tokens."""
BLOCKS = 63
ROUNDS = 50


def prefilled(*, prefix_cache: bool = False, blocks: int = 2 * SEQUENCES * BLOCKS) -> PagedCache:
    """Return a cache with every sequence of `NAMES` admitted, each with its own prompt."""
    cache = PagedCache(blocks, BLOCK_SIZE, prefix_cache=prefix_cache)
    for name in NAMES:
        assert isinstance(cache.admit(name, PROMPT_TOKENS), Admitted)
    return cache


def each_time(
    benchmark: BenchmarkFixture, make: Callable[[], PagedCache], act: Callable[[PagedCache], object]
) -> PagedCache:
    """Measure ``act`` on what ``make`` returns anew for each round; return the last one."""
    made: list[PagedCache] = []

    def fresh() -> tuple[tuple[PagedCache], dict[str, object]]:
        made[:] = [make()]
        return (made[0],), {}

    benchmark.pedantic(act, setup=fresh, rounds=ROUNDS)  # type: ignore[no-untyped-call]
    return made[0]


@pytest.mark.parametrize("count", [1, 64])
def test_take_and_drop(benchmark: BenchmarkFixture, count: int) -> None:
    """Take blocks from a pool, one or many at once, and give them back: 4,096 in all."""
    pool = BlockPool(16_384)

    def run() -> None:
        for _ in range(4096 // count):
            taken, _ = pool.take(count)
            pool.drop(taken[::-1])
        pool.take_changes()

    benchmark(run)
    assert pool.num_free == 16_384


def test_take_by_eviction(benchmark: BenchmarkFixture) -> None:
    """Take 1,024 blocks that are all cached and idle, and let them become so again."""
    pool = BlockPool(1024)
    every = frozenset(range(1024))
    pool.drop(pool.take(1024)[0], keep=every)

    def run() -> None:
        taken, evicted = pool.take(1024)
        assert len(evicted) == 1024
        pool.drop(taken, keep=every)

    benchmark(run)
    assert pool.num_cached == 1024


def test_admit(benchmark: BenchmarkFixture) -> None:
    """Admit 64 prompts of 1,001 tokens, nothing found."""

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.admit(name, PROMPT_TOKENS)

    cache = each_time(benchmark, lambda: PagedCache(2 * SEQUENCES * BLOCKS, BLOCK_SIZE), run)
    assert cache.pool.num_free == SEQUENCES * BLOCKS


def test_extend_inside_a_block(benchmark: BenchmarkFixture) -> None:
    """Extend 64 sequences by 1 token; no block is taken."""

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.extend(name, 1)

    cache = each_time(benchmark, prefilled, run)
    assert cache.pool.num_free == SEQUENCES * BLOCKS


def test_extend_into_a_new_block(benchmark: BenchmarkFixture) -> None:
    """Extend 64 sequences by 8 tokens: their blocks had room for 7."""

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.extend(name, 8)

    cache = each_time(benchmark, prefilled, run)
    assert cache.pool.num_free == SEQUENCES * (BLOCKS - 1)


def test_fork(benchmark: BenchmarkFixture) -> None:
    """Fork 64 sequences of 63 blocks."""

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.fork(name, name + "-b")

    cache = each_time(benchmark, prefilled, run)
    assert len(cache.tables) == 2 * SEQUENCES


def test_copy_on_write(benchmark: BenchmarkFixture) -> None:
    """Extend 64 children by 1 token: each gets a copy of the 9 tokens in its last block."""

    def forked() -> PagedCache:
        cache = prefilled()
        for name in NAMES:
            cache.fork(name, name + "-b")
        return cache

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.extend(name + "-b", 1)

    cache = each_time(benchmark, forked, run)
    assert [copy.num_tokens for copy in cache.take_copies()] == [9] * SEQUENCES


def test_release(benchmark: BenchmarkFixture) -> None:
    """Release 64 sequences of 63 blocks."""

    def run(cache: PagedCache) -> None:
        for name in NAMES:
            cache.release(name)

    cache = each_time(benchmark, prefilled, run)
    assert cache.pool.num_free == 2 * SEQUENCES * BLOCKS


def test_look_up_a_prefix(benchmark: BenchmarkFixture) -> None:
    """Find 62 blocks by their keys, 64 times."""
    prefixes = PrefixCache()
    keys = [[(sequence, block) for block in range(62)] for sequence in range(SEQUENCES)]
    for sequence, own in enumerate(keys):
        for block, key in enumerate(own):
            prefixes.publish(62 * sequence + block, key)

    def run() -> int:
        return sum(len(prefixes.match(own, 62)) for own in keys)

    assert benchmark(run) == SEQUENCES * 62
