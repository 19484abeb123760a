"""`kvsuite sweep --slo`: which controls are clocked, and how they are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")

from kvsuite.device.select import device_name
from kvsuite.record.reader import read_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.record.schema import DecisionLine
    from tests.cli.conftest import Ran

WORDS = ("sweep", "burst.jsonl", "--model", "tiny", "--layers", 32, "--no-prefix-cache", "--out", "run")
SIZES = ("--sizes", "1,2,4,8,16")
POOL = ("--pool", 4000 * 2048)
SLO = ("--slo", "ttft=1s,itl=4ms", "--calibration", "costs.json")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    """8 requests of 95 to 100 tokens at once; 1 ms a step and 10 us a table entry, or half a millisecond."""
    row = {"timestamp": 0, "input_length": 95, "output_length": 5}
    (tmp_path / "burst.jsonl").write_text("\n".join([json.dumps(row)] * 8), encoding="utf-8")
    blocks = {str(size): {"base_us": 1000, "table_entry_us": 10} for size in (1, 2, 4, 8, 16, 256, 512)}
    stated = {
        "device": device_name("cpu"), "kernel": "stated", "blocks": blocks, "control": {"base_us": 500}
    }  # fmt: skip
    (tmp_path / "costs.json").write_text(json.dumps(stated), encoding="utf-8")


def decision(folder: Path) -> DecisionLine:
    (line,) = read_record(folder / "run" / "run.jsonl").decisions
    return line


def test_one_control_is_clocked_and_judged_unless_others_are_named(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite(*WORDS, *SIZES, *POOL, *SLO)
    assert ran.code == 0, ran.out + ran.err
    row = decision(tmp_path).rows[-1]
    assert [r.option for r in decision(tmp_path).rows if r.control] == ["contiguous-one-block"]
    assert (row.verdict, row.cause, row.step_us) == ("inspect", "dominated", 500)
    assert "contiguous-one-block  steady" in ran.out
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "contiguous-one-block (control)" in page
    ran = kvsuite(*WORDS, *SIZES, *POOL, *SLO, "--controls", "contiguous-exact", "--core", "step")
    assert ran.code == 0, ran.out + ran.err
    assert [r.option for r in decision(tmp_path).rows if r.control] == ["contiguous-exact"]
    assert decision(tmp_path).rows[-1].slack_share is not None


def test_without_an_slo_three_controls_stand_beside_the_sizes(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    assert kvsuite(*WORDS, "--sizes", "16", *POOL).code == 0
    (line,) = read_record(tmp_path / "run" / "run.jsonl").sweeps
    assert [row.option for row in line.rows[1:]] == ["contiguous-max", "contiguous-pow2", "contiguous-exact"]


def test_a_recipe_names_no_control_where_every_size_is_refused(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    """200 slots, less tables: no block of 256; two reservations of 100."""
    ran = kvsuite(*WORDS, "--sizes", "256,512", "--pool", 200 * 2048, *SLO)
    assert ran.code == 2, "every size is refused: nothing was decided"
    line = decision(tmp_path)
    assert [row.refused is None for row in line.rows] == [False, False, True]
    assert line.recipe["engine"] == "reference"
    assert line.sentence.startswith(
        "No verdict: 0 block sizes ran, expected 5 or more. block 256 was refused: block tables of "
    )
