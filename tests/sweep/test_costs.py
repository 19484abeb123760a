"""Costs that are stated in a file, and files that state none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.costs import read_costs

if TYPE_CHECKING:
    from pathlib import Path


def test_stated_costs_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text('{"device": "d", "kernel": "k", "blocks": {"16": {"base_us": 5}}}')
    source = read_costs(path)
    assert source.costs(16) == StepCosts(base_us=5)
    with pytest.raises(ConfigError, match="no costs for blocks of 8 tokens: there are some for 16"):
        source.costs(8)
    with pytest.raises(ConfigError, match="no costs of a contiguous control are stated"):
        source.draw_control(0)
    path.write_text('{"device": "d", "kernel": "k", "blocks": {"16": {}}, "control": {"base_us": 4}}')
    assert read_costs(path).draw_control(0) == StepCosts(base_us=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no calibration"),
        ('{"device": "d", "kernel": "k", "blocks": {}}', "expected a device, a kernel, one block size"),
        (
            '{"device": "d", "kernel": "k", "blocks": {"16": {"base_us": -1}}}',
            "base_us is -1.0, expected 0 or more",
        ),
        ('{"device": "d", "kernel": "k", "blocks": {"0": {}}}', "a size of 1 or more"),
        (
            '{"device": "d", "kernel": "k", "blocks": {"1": {}}, "control": {"table_entry_us": 2}}',
            "no table_entry_us and no block_us, .*; found 2 and 0",
        ),
        (
            '{"device": "d", "kernel": "k", "blocks": {"1": {}}, "control": {"block_us": 3}}',
            "found 0 and 3",
        ),
        (
            '{"device": "d", "kernel": "k", "blocks": {"16": {"base": 9}}}',
            "block size 16: 'base' is none of base_us, sequence_us",
        ),
        (
            '{"device": "d", "kernel": "k", "blocks": {"16": {"base_us": 1e300}}}',
            "a cost of 1e.300 us: expected 1e.12 or less",
        ),
        (
            '{"device": "d", "kernel": "k", "spread": 1000, "blocks": {"16": {"base_us": 9}}}',
            "a spread of 1000: expected 1 or less",
        ),
    ],
)
def test_files_that_are_no_calibration(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_costs(path)
    with pytest.raises(ConfigError, match="cannot read the calibration"):
        read_costs(tmp_path / "none.json")
