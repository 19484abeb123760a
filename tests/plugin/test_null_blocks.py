"""A pool may keep blocks back for good; core cases ask only for what a sequence can own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CONFORMANCE = Path(__file__).parents[2] / "cases" / "conformance"


@pytest.mark.parametrize(
    ("case", "passed"),
    [("test_external_pressure.py", 12), ("test_tail_slack.py", 12)],
    ids=["pressure", "slack"],
)
def test_an_engine_with_a_null_block_passes(project: pytest.Pytester, case: str, passed: int) -> None:
    engine = project.path / "lib" / "acme_engine.py"
    opened = '"reference"), config)'
    assert opened in engine.read_text()
    with_null = '"reference"), replace(config, options={"null_blocks": 1}))'
    engine.write_text(engine.read_text().replace(opened, with_null))
    shutil.copy(CONFORMANCE / case, project.path / "cases" / "conformance")
    ended = project.runpytest("--engine=acme", f"cases/conformance/{case}")
    ended.assert_outcomes(passed=passed)
