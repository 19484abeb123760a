"""The Triton kernel, in Triton's interpreter: every block size and dtype it claims against float64."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import Dtype
from tests.device.attention.scenes import BLOCK_SIZES

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
CLAIMED = [Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT32]


@pytest.fixture(scope="session")
def interpreted(torch: ModuleType) -> dict[str, tuple[float, float]]:
    """Error and bound of each case, from one run in an interpreter of its own."""
    del torch
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install kvsuite[triton]")
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.attention.interpreted"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["case"]: (line["error"], line["bound"]) for line in lines}


@pytest.mark.parametrize("dtype", CLAIMED, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_it_is_right_at_every_block_size_and_number_of_splits(
    block_size: int, dtype: Dtype, interpreted: dict[str, tuple[float, float]]
) -> None:
    for splits in (1, 3):
        error, bound = interpreted[f"{dtype.value} block {block_size} splits {splits}"]
        assert error <= bound


@pytest.mark.parametrize("dtype", CLAIMED, ids=lambda dtype: dtype.value)
def test_it_is_right_for_every_grouping_of_heads(
    dtype: Dtype, interpreted: dict[str, tuple[float, float]]
) -> None:
    found = [figures for case, figures in interpreted.items() if case.startswith(f"{dtype.value} heads")]
    assert len(found) == 3
    assert all(error <= bound for error, bound in found)


def test_wrong_calls_are_told_by_the_same_check(interpreted: dict[str, tuple[float, float]]) -> None:
    error, bound = interpreted["right"]
    assert error <= bound
    wrong = {case: figures for case, figures in interpreted.items() if case.startswith("wrong")}
    assert len(wrong) == 2
    assert not any(error <= bound for error, bound in wrong.values())


def test_the_contiguous_control_is_the_same_bits(interpreted: dict[str, tuple[float, float]]) -> None:
    found = [error for case, (error, _) in interpreted.items() if case.startswith("control")]
    assert found == [0.0] * 9
