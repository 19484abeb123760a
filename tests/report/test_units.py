from __future__ import annotations

import pytest

from kvsuite.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (15_204_352, "14.5 MiB"),
        (107 * 2**20, "107 MiB"),
        (20 * 2**30, "20.0 GiB"),
        (-2048, "-2.00 KiB"),
        (0.4, "0 B"),
        (None, "not observed"),
    ],
)
def test_bytes_in_binary_units(value: float | None, text: str) -> None:
    assert units.human_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0 %"),
        (0.974, "97.4 %"),
        (1, "100.0 %"),
        (0.0052, "0.52 %"),
        (0.00001, "< 0.01 %"),
        (None, "not observed"),
    ],
)
def test_shares(value: float | None, text: str) -> None:
    assert units.percent(value) == text


def test_exact_values_counts_and_durations() -> None:
    assert units.exact_bytes(21_474_836_480) == "21,474,836,480 B"
    assert units.exact_bytes(None) == units.count(None) == "not observed"
    assert (units.count(1234), units.count(1234.56)) == ("1,234", "1,234.6")
    assert [units.seconds(s) for s in (0.0123, 59.94, 90, 7260)] == ["12 ms", "59.9 s", "2 min", "2 h 01 min"]
    assert units.plural(1, "golden") == "1 golden"
    assert units.plural(0, "mismatch", "mismatches") == "0 mismatches"
