"""Admission, growth, copy-on-write and release of `PagedCache`; expected values worked out by hand."""

from itertools import permutations

import pytest

from kvsuite.cache.paged import Admitted, Copy, PagedCache, Shortfall
from kvsuite.errors import BlockError, ConfigError


def blocks(cache: PagedCache, sequence: str) -> list[int]:
    return cache.tables[sequence].blocks.tolist()


def live_blocks(cache: PagedCache) -> int:
    return len({block for table in cache.tables.values() for block in table.blocks})


def digest(cache: PagedCache) -> object:
    """Everything a refused operation must leave alone."""
    whole = cache.pool.take_all()
    keys = None if cache.prefixes is None else dict(cache.prefixes.key_of)
    tables = {name: (t.blocks.tolist(), t.length, t.promised_blocks) for name, t in cache.tables.items()}
    return whole.free.tolist(), whole.cached.tolist(), list(cache.pool.ref_counts), keys, tables


def admitted(cache: PagedCache, sequence: str, num_tokens: int, keys: str = "") -> None:
    assert isinstance(cache.admit(sequence, num_tokens, keys=keys), Admitted)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
def test_a_sequence_holds_one_block_per_started_block_size(length: int) -> None:
    whole, grown = PagedCache(4, 4), PagedCache(4, 4)
    admitted(whole, "r", length)
    admitted(grown, "r", 1)
    for _ in range(length - 1):
        assert grown.extend("r", 1)
    expected = {1: 1, 3: 1, 4: 1, 5: 2, 7: 2, 8: 2, 9: 3}[length]
    assert blocks(whole, "r") == blocks(grown, "r") == list(range(expected))
    assert 0 <= expected * 4 - length <= 3


def test_chunks_end_where_one_shot_ends() -> None:
    chunked, whole = PagedCache(8, 4), PagedCache(8, 4)
    admitted(whole, "r", 14)
    assert chunked.admit("r", 14, first_chunk_tokens=5) == Admitted(0, 5)
    assert chunked.extend("r", 6)
    assert chunked.extend("r", 3)
    assert blocks(chunked, "r") == blocks(whole, "r")


def test_block_size_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="block size 0 is not positive"):
        PagedCache(4, 0)


class TestPrefixHits:
    def test_published_blocks_are_hit_and_held(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "r1", 10, "ab")
        cache.publish("r1", "ab")
        assert cache.admit("r2", 10, keys="ab") == Admitted(8, 10)
        assert (blocks(cache, "r1"), blocks(cache, "r2")) == ([0, 1, 2], [0, 1, 3])
        assert list(cache.pool.ref_counts[:4]) == [2, 2, 1, 1]

    def test_nothing_is_hit_before_it_is_published(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "r1", 10, "ab")
        assert cache.admit("r2", 10, keys="ab") == Admitted(0, 10)

    @pytest.mark.parametrize(("length", "hit"), [(4, 0), (5, 4), (8, 4), (9, 8)])
    def test_one_token_at_least_is_left_to_compute(self, length: int, hit: int) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "r1", 9, "ab")
        cache.publish("r1", "ab")
        answer = cache.admit("r2", length, keys="ab"[: length // 4])
        assert answer == Admitted(hit, length)

    def test_the_second_of_two_equal_blocks_stays_without_a_key(self) -> None:
        cache = PagedCache(8, 4)
        for name in ("r1", "r2"):
            admitted(cache, name, 5, "a")
        for name in ("r1", "r2"):
            cache.publish(name, "a")
        cache.release("r2")
        assert (cache.pool.num_free, cache.pool.num_cached) == (6, 0)
        cache.release("r1")
        assert (cache.pool.num_free, cache.pool.num_cached) == (7, 1)

    def test_a_hit_counts_chunks_from_where_it_ends(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "r1", 9, "ab")
        cache.publish("r1", "ab")
        assert cache.admit("r2", 16, first_chunk_tokens=2, keys="abcd") == Admitted(8, 10)

    def test_only_full_blocks_are_published(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "r1", 7)
        with pytest.raises(BlockError, match="r1 holds 7 tokens: its first 2 blocks of 4 are not all full"):
            cache.publish("r1", "ab")

    def test_without_a_prefix_cache_nothing_stays(self) -> None:
        cache = PagedCache(8, 4, prefix_cache=False)
        admitted(cache, "r1", 8, "ab")
        cache.publish("r1", "ab")
        cache.release("r1")
        assert (cache.pool.num_free, cache.pool.num_cached) == (8, 0)


class TestEviction:
    def cache_with_two_idle_chains(self) -> PagedCache:
        cache = PagedCache(4, 2)
        for name, keys in (("r1", "ab"), ("r2", "cd")):
            admitted(cache, name, 4, keys)
            cache.publish(name, keys)
        cache.release("r1")
        cache.release("r2")
        return cache

    def test_the_oldest_chain_goes_first_and_its_tail_before_its_head(self) -> None:
        cache = self.cache_with_two_idle_chains()
        assert cache.pool.take_all().cached.tolist() == [1, 0, 3, 2]
        admitted(cache, "r3", 6)
        assert blocks(cache, "r3") == [1, 0, 3]
        assert cache.pool.take_all().cached.tolist() == [2]

    def test_an_evicted_block_is_not_hit_and_what_is_left_of_its_chain_is(self) -> None:
        cache = self.cache_with_two_idle_chains()
        admitted(cache, "r3", 1)
        assert cache.admit("r4", 5, keys="ab") == Admitted(2, 5)
        assert blocks(cache, "r4") == [0, 3, 2]

    def test_a_hit_makes_a_chain_the_newest(self) -> None:
        cache = self.cache_with_two_idle_chains()
        assert cache.admit("r3", 3, keys="a") == Admitted(2, 3)
        cache.release("r3")
        assert cache.pool.take_all().cached.tolist() == [3, 2, 0]
        assert cache.pool.take_all().free.tolist() == [1]

    def test_a_reset_frees_everything_in_the_first_order(self) -> None:
        cache = self.cache_with_two_idle_chains()
        assert cache.reset_prefixes()
        assert (cache.pool.num_free, cache.pool.num_cached) == (4, 0)
        admitted(cache, "r3", 8, "abcd")
        assert blocks(cache, "r3") == [0, 1, 2, 3]

    def test_a_reset_is_refused_while_a_sequence_is_live(self) -> None:
        cache = self.cache_with_two_idle_chains()
        admitted(cache, "r3", 1)
        before = digest(cache)
        assert not cache.reset_prefixes()
        assert digest(cache) == before


class TestCopyOnWrite:
    def test_the_first_writer_copies_and_the_last_holder_keeps_the_block(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "p", 6)
        cache.fork("p", "c")
        assert cache.extend("p", 1)
        assert cache.take_copies() == [Copy(source=1, target=2, num_tokens=2, sequence="p")]
        assert cache.extend("c", 1)
        assert cache.take_copies() == []
        assert (blocks(cache, "p"), blocks(cache, "c")) == ([0, 2], [0, 1])

    def test_full_blocks_are_never_copied(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "p", 8)
        cache.fork("p", "c")
        assert cache.extend("p", 1)
        assert cache.extend("c", 1)
        assert cache.take_copies() == []
        assert (blocks(cache, "p"), blocks(cache, "c")) == ([0, 1, 2], [0, 1, 3])

    def test_a_copy_and_new_blocks_come_together_or_not_at_all(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "p", 6)
        cache.fork("p", "c")
        before = digest(cache)
        assert not cache.extend("c", 11)  # a copy and three blocks, with two free
        assert digest(cache) == before
        assert cache.take_copies() == []
        assert cache.extend("c", 6)  # a copy and one block
        assert blocks(cache, "c") == [0, 2, 3]

    @pytest.mark.parametrize("children", [1, 2, 3])
    @pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
    def test_a_divergence_burst_takes_what_the_formula_says(self, length: int, children: int) -> None:
        full, partial = divmod(length, 4)
        cache = PagedCache(32, 4, prefix_cache=False)
        admitted(cache, "p", length)
        for child in range(children):
            cache.fork("p", f"c{child}")
        assert live_blocks(cache) == full + (1 if partial else 0)
        for sequence in tuple(cache.tables):
            assert cache.extend(sequence, 1)
        assert live_blocks(cache) == full + children + 1
        copies = cache.take_copies()
        assert len(copies) == (children if partial else 0)
        assert sum(copy.num_tokens for copy in copies) == children * partial

    def test_a_burst_larger_than_the_pool_is_refused_for_the_one_that_finds_no_block(self) -> None:
        cache = PagedCache(3, 4)
        admitted(cache, "p", 6)
        for child in ("c1", "c2"):
            cache.fork("p", child)
        assert cache.extend("p", 1)  # demand of the burst: 3 holders - 1 = 2 copies, 1 block free
        assert not cache.extend("c1", 1)
        cache.release("c2")
        assert cache.extend("c1", 1)  # the last holder needs no copy

    def test_a_copy_to_a_block_that_nobody_holds_any_more_is_dropped(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "p", 6)
        cache.fork("p", "c")
        cache.extend("c", 1)
        cache.release("c")
        assert cache.take_copies() == []

    @pytest.mark.parametrize("prefix_cache", [True, False])
    def test_every_removal_order_of_a_family_ends_equal(self, prefix_cache: bool) -> None:
        family = ("p", "c1", "c2", "g")
        ends = set()
        for order in permutations(family):
            cache = PagedCache(16, 4, prefix_cache=prefix_cache)
            admitted(cache, "p", 10, "ab")
            cache.publish("p", "ab")
            cache.fork("p", "c1")
            cache.fork("p", "c2")
            cache.extend("c1", 3)
            cache.fork("c1", "g")
            for sequence in order:
                cache.extend(sequence, 1)
            for sequence in order:
                cache.release(sequence)
            whole = cache.pool.take_all()
            ends.add((frozenset(whole.free.tolist()), frozenset(whole.cached.tolist())))
            assert not any(cache.pool.ref_counts)
        cached = frozenset({0, 1} if prefix_cache else ())
        assert ends == {(frozenset(range(16)) - cached, cached)}

    def test_fork_and_cancel_is_as_if_nothing_had_been(self) -> None:
        cache = PagedCache(8, 4)
        admitted(cache, "p", 6)
        before = digest(cache)
        cache.fork("p", "c")
        cache.release("c")
        assert digest(cache) == before


class TestGate:
    @pytest.mark.parametrize(("num_blocks", "fits"), [(2, False), (3, True), (4, True)])
    def test_a_prompt_needs_its_blocks_and_no_more(self, num_blocks: int, fits: bool) -> None:
        cache = PagedCache(num_blocks, 4)
        answer = cache.admit("r", 9)
        assert isinstance(answer, Admitted) is fits
        if isinstance(answer, Shortfall):
            assert answer == Shortfall(3, 2, 0, 0, never_fits=True)

    def test_the_whole_prompt_must_fit_although_only_a_chunk_is_taken(self) -> None:
        cache = PagedCache(6, 4)
        admitted(cache, "r1", 12)
        assert cache.admit("r2", 16, first_chunk_tokens=4) == Shortfall(4, 3, 0, 0, never_fits=False)
        assert cache.admit("r2", 12, first_chunk_tokens=4) == Admitted(0, 4)

    def test_two_prompts_in_chunks_never_count_on_the_same_block(self) -> None:
        cache = PagedCache(6, 4)
        assert cache.admit("r1", 16, first_chunk_tokens=4) == Admitted(0, 4)  # 1 taken, 3 promised
        assert cache.admit("r2", 12, first_chunk_tokens=4) == Shortfall(3, 5, 0, 3, never_fits=False)
        assert cache.admit("r2", 8, first_chunk_tokens=4) == Admitted(0, 4)
        for sequence, rest in (("r1", 12), ("r2", 4)):
            assert cache.extend(sequence, rest)
        assert cache.pool.num_free == 0

    def test_a_promise_ends_with_the_prompt_or_the_sequence(self) -> None:
        cache = PagedCache(6, 4)
        cache.admit("r1", 16, first_chunk_tokens=4)
        assert cache.extend("r1", 12)
        assert cache.tables["r1"].promised_blocks == 0
        cache.admit("r2", 8, first_chunk_tokens=1)
        cache.release("r2")
        admitted(cache, "r3", 8)

    def test_own_hits_that_lie_idle_are_not_also_room(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r1", 8, "ab")
        cache.publish("r1", "ab")
        cache.release("r1")
        admitted(cache, "r2", 4)
        # 2 idle hits, 1 free: 16 tokens need 2 new blocks, and evicting a hit would not help
        before = digest(cache)
        assert cache.admit("r3", 16, keys="abcd") == Shortfall(2, 1, 0, 0, never_fits=False)
        assert digest(cache) == before
        assert cache.admit("r3", 12, keys="abc") == Admitted(8, 12)

    def test_the_watermark_is_kept_and_waived_for_the_only_sequence(self) -> None:
        cache = PagedCache(4, 4, watermark_blocks=1)
        admitted(cache, "r1", 8)
        assert cache.admit("r2", 8) == Shortfall(2, 2, 0, 0, never_fits=False)
        assert cache.admit("r2", 4) == Admitted(0, 4)
        cache.release("r1")
        cache.release("r2")
        assert cache.admit("r3", 16) == Admitted(0, 16)

    def test_growth_is_refused_only_when_nothing_is_left(self) -> None:
        cache = PagedCache(2, 4)
        admitted(cache, "r", 8)
        before = digest(cache)
        assert not cache.extend("r", 1)
        assert digest(cache) == before


class TestMisuse:
    def test_unknown_sequences_are_named_with_the_verb(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r1", 1)
        for verb, call in (
            ("extend", lambda: cache.extend("r9", 1)),
            ("release", lambda: cache.release("r9")),
            ("fork", lambda: cache.fork("r9", "r10")),
            ("publish", lambda: cache.publish("r9", "a")),
            ("slot", lambda: cache.slot("r9", 0)),
        ):
            with pytest.raises(
                BlockError, match=f"{verb} of unknown sequence 'r9': not among the 1 live ones"
            ):
                call()

    def test_a_second_release_is_refused_and_changes_nothing(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r1", 1)
        cache.release("r1")
        before = digest(cache)
        with pytest.raises(BlockError, match="or was released before"):
            cache.release("r1")
        assert digest(cache) == before

    def test_a_live_name_cannot_be_used_again(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r1", 1)
        admitted(cache, "r2", 1)
        before = digest(cache)
        with pytest.raises(BlockError, match="r1 is live already"):
            cache.admit("r1", 1)
        with pytest.raises(BlockError, match="r2 is live already: a fork of r1"):
            cache.fork("r1", "r2")
        assert digest(cache) == before

    @pytest.mark.parametrize(("tokens", "chunk"), [(0, 1), (-3, 1), (4, 0)])
    def test_nothing_is_not_a_prompt(self, tokens: int, chunk: int) -> None:
        with pytest.raises(BlockError, match="at least 1 each"):
            PagedCache(4, 4).admit("r", tokens, first_chunk_tokens=chunk)

    def test_growth_by_nothing_is_refused(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r", 1)
        with pytest.raises(BlockError, match="r is extended by 0 tokens: at least 1"):
            cache.extend("r", 0)

    def test_a_slot_is_block_times_size_plus_offset(self) -> None:
        cache = PagedCache(4, 4)
        admitted(cache, "r1", 4)
        admitted(cache, "r2", 6)
        assert [cache.slot("r2", position) for position in (0, 3, 4, 5)] == [4, 7, 8, 9]
        with pytest.raises(BlockError, match="r2 holds 6 tokens: position 6 has no slot"):
            cache.slot("r2", 6)
