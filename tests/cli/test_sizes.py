from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cli.sizes import PoolSize, format_bytes, parse_block_sizes, parse_duration_us, parse_pool
from kvsuite.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count", "unit"),
    [
        ("20GiB", 21_474_836_480, "bytes"),
        ("512MiB", 536_870_912, "bytes"),
        ("1.5 KiB", 1536, "bytes"),
        ("2GB", 2_000_000_000, "bytes"),
        ("4096 blocks", 4096, "blocks"),
        ("1 block", 1, "blocks"),
        ("1000000", 1_000_000, "bytes"),
        ("7B", 7, "bytes"),
    ],
)
def test_pool_sizes(text: str, count: int, unit: str) -> None:
    assert parse_pool(text) == PoolSize(count, unit)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("lots", "cannot be read"),
        ("-5GiB", "cannot be read"),
        ("20 gigs", "unknown unit 'gigs'"),
        ("20gib", "unknown unit 'gib'"),
        ("0", "whole number of 1 or more"),
        ("0.5 blocks", "whole number of 1 or more"),
        ("0.3B", "whole number of 1 or more"),
    ],
)
def test_pool_sizes_that_are_none(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_pool(text)


@given(st.integers(1, 2**50))
def test_a_number_alone_is_bytes(count: int) -> None:
    assert parse_pool(str(count)) == PoolSize(count, "bytes")


@pytest.mark.parametrize(
    ("text", "us"), [("50ms", 50_000), ("0.2s", 200_000), ("250us", 250), ("1 s", 1_000_000)]
)
def test_durations(text: str, us: int) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize("text", ["50", "50 min", "0ms", "0.1us", "-1ms", "", "9" * 400 + "s"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="duration"):
        parse_duration_us(text)


def test_block_sizes_keep_their_order() -> None:
    assert parse_block_sizes("16, 1,256") == (16, 1, 256)


@pytest.mark.parametrize("text", ["", "16,", "0,1", "a", "16;32", "-1", "16,16"])
def test_block_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="block sizes"):
        parse_block_sizes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (-3 * 2**29, "-1.5 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_are_shown_in_the_largest_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text
