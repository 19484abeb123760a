"""An engine may keep blocks back at admission, whatever it was asked: core cases count with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CONFORMANCE = Path(__file__).parents[2] / "cases" / "conformance"
CASES = (
    "test_admit.py",
    "test_admit_pressure.py",
    "test_divergence.py",
    "test_early.py",
    "test_edge.py",
    "test_external_pressure.py",
    "test_frag.py",
    "test_prefix_map.py",
)


@pytest.mark.parametrize("kept", [1, 2])
def test_an_engine_with_a_watermark_of_its_own_passes(project: pytest.Pytester, kept: int) -> None:
    engine = project.path / "lib" / "acme_engine.py"
    opened = '"reference"), config)'
    assert opened in engine.read_text()
    watermark = f'"reference"), replace(config, watermark_blocks=max({kept}, config.watermark_blocks)))'
    engine.write_text(engine.read_text().replace(opened, watermark))
    for case in CASES:
        shutil.copy(CONFORMANCE / case, project.path / "cases" / "conformance")
    ended = project.runpytest("--engine=acme", *(f"cases/conformance/{case}" for case in CASES))
    outcomes = ended.parseoutcomes()
    assert outcomes.keys() <= {"passed", "skipped"}, outcomes
    assert outcomes["passed"] > 150
