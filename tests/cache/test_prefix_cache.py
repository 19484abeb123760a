"""Keys and blocks of `PrefixCache`, by hand."""

from kvsuite.cache.prefix_cache import PrefixCache


def test_a_match_stops_at_the_first_unknown_key() -> None:
    prefixes = PrefixCache()
    prefixes.publish(4, "a")
    prefixes.publish(5, "c")
    assert prefixes.match(["a", "b", "c"], limit=3) == [4]


def test_a_match_never_passes_its_limit() -> None:
    prefixes = PrefixCache()
    for block, key in enumerate("abc"):
        prefixes.publish(block, key)
    assert prefixes.match("abc", limit=2) == [0, 1]
    assert prefixes.match("abc", limit=0) == []


def test_the_first_block_keeps_a_key_and_a_block_keeps_its_first_key() -> None:
    prefixes = PrefixCache()
    assert prefixes.publish(1, "a")
    assert not prefixes.publish(2, "a")
    assert not prefixes.publish(1, "b")
    assert prefixes.match(["a"], 1) == [1]
    assert prefixes.match(["b"], 1) == []
    assert len(prefixes) == 1


def test_a_forgotten_block_is_never_found_and_can_be_published_anew() -> None:
    prefixes = PrefixCache()
    prefixes.publish(1, "a")
    prefixes.forget([1, 9])
    assert prefixes.match(["a"], 1) == []
    assert prefixes.key_of == {}
    assert prefixes.publish(1, "b")
