"""The list of what vLLM does otherwise: every entry can be read, and names a case that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsuite.engine.adapters.vllm as adapter
from kvsuite.plugin.deviations import read_deviations

CASES = Path(__file__).parents[3] / "cases"


@pytest.mark.parametrize("name", ["deviations.toml", "deviations_window.toml"])
def test_every_deviation_names_a_case_that_there_is(name: str) -> None:
    entries = read_deviations(Path(adapter.__file__).parent / name)
    assert entries
    for entry in entries:
        file, _, test = entry.case.partition("::")
        assert f"def {test.partition('[')[0]}(" in (CASES / file).read_text(encoding="utf-8"), entry.case
        assert not entry.issue or entry.issue.startswith("https://github.com/vllm-project/vllm/"), entry.issue
