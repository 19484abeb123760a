"""bench/gpu_check.sh with an interpreter that only writes down what it was asked to run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.sh"
FAKE = """#!/usr/bin/env bash
case "$*" in
*resolve_device*) echo "$*" >> "{log}"; echo "{card}"; exit {card_code} ;;
*) echo "$*" >> "{log}" ;;
esac
case "$*" in *gpu_attention*) echo "a line"; echo "summary triton, 8 x 2048: ratio 1.01" ;; esac
case "$*" in *calibrate*) echo "live, all    differ by 3.0%" ;; esac
case "$*" in *"{fails}"*) exit 7 ;; esac
"""


def run(
    folder: Path, *words: str, card_code: int = 0, fails: str = "nothing at all"
) -> tuple[int, str, str, str]:
    log = folder / "log"
    python = folder / "python"
    card = "Error: no card here" if card_code else "A card"
    python.write_text(FAKE.format(log=log, card=card, card_code=card_code, fails=fails))
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": str(python)},
    )
    return done.returncode, done.stdout, done.stderr, log.read_text()


def test_everything_runs_on_the_card_and_the_table_comes_last(tmp_path: Path) -> None:
    code, out, _, log = run(tmp_path, "-x")
    assert code == 0
    asked = log.splitlines()
    assert asked[0] == "-c import kvsuite, pytest, torch"
    assert "resolve_device('cuda')" in asked[1]
    assert any(line.endswith("--device cuda cases -x") for line in asked)
    assert any("bench/gpu_attention.py --device cuda" in line and "--quick" not in line for line in asked)
    assert any("calibrate --device cuda" in line and "--small" not in line for line in asked)
    assert any("tests/device/test_card.py" in line and "--ignore" not in line for line in asked)
    table = out[out.index("card: A card") :].splitlines()
    rows = [line.split()[0] for line in table[1:] if line.endswith(" s")]
    assert rows[:5] == ["closure", "device", "cases", "attention", "calibration"]
    assert table[-2:] == ["  triton, 8 x 2048: ratio 1.01", "live, all    differ by 3.0%"]


def test_a_stage_that_fails_is_told_and_the_others_still_run(tmp_path: Path) -> None:
    code, out, _, log = run(tmp_path, fails="--device cuda cases")
    assert code == 1
    assert "cases        FAILED (7)" in out
    assert "attention    ok" in out
    assert "calibrate" in log


def test_the_allowed_seconds_of_all_stages_come_to_less_than_eight_minutes() -> None:
    allowed = [
        int(words[2])
        for words in map(str.split, SCRIPT.read_text().splitlines())
        if words[:1] == ["stage"] and words[2:] and words[2].isdigit()
    ]
    assert len(allowed) >= 6
    assert sum(allowed) < 480


def test_a_dry_run_takes_the_same_stages_on_the_cpu_and_says_so(tmp_path: Path) -> None:
    code, out, _, log = run(tmp_path, "--dry-run")
    assert code == 0
    assert "cuda" not in log
    assert "gpu_attention.py --device cpu --quick" in log
    assert "dry run on this CPU with small shapes: nothing below speaks of a card" in out


@pytest.mark.parametrize("words", [(), ("-x",)])
def test_without_a_card_nothing_runs(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, out, err, log = run(tmp_path, *words, card_code=1)
    assert (code, out) == (3, "")
    assert "no usable CUDA card: no card here" in err
    assert "--dry-run" in err
    assert len(log.splitlines()) == 2


def test_an_interpreter_without_the_packages_is_told_at_once(tmp_path: Path) -> None:
    code, out, err, log = run(tmp_path, "--dry-run", fails="import kvsuite")
    assert (code, out) == (3, "")
    assert "cannot run it" in err
    assert "install kvsuite[dev], or set PYTHON" in err
    assert len(log.splitlines()) == 1
