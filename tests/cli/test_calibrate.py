"""`kvsuite calibrate` on a grid of seconds, and where nothing can be timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.errors import ConfigError
from kvsuite.record.reader import read_record
from kvsuite.sweep.calibration_file import read_calibration

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.cache.layout import Layout
    from kvsuite.device.attention.call import DecodeAttention
    from kvsuite.sweep.calibrate import Subject
    from tests.cli.conftest import Ran

SMALL = ("calibrate", "--model", "tiny", "--small", "--sizes", "1,16", "--out", "made/calibration.json")


@pytest.fixture
def compiler() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install kvsuite[device]")
    from kvsuite.device.attention.compiler import find_compiler
    from kvsuite.errors import KernelUnavailable

    try:
        find_compiler()
    except KernelUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("compiler")
def test_a_calibration_is_written_for_this_device_alone(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    from kvsuite.cli.calibrate_run import deciding_kernel, subject_of

    ran = kvsuite(*SMALL, "--layers", 3, "--live", "churn", "--limit", 40, "--live-steps", 2)
    assert ran.code == 0, ran.out + ran.err
    layout = model_layout("tiny").with_(num_layers=3)

    def subject(kernel: DecodeAttention, layout: Layout) -> Subject:
        return subject_of("cpu", kernel.name, kernel.source_hash, layout)

    kernel = deciding_kernel("cpu", layout, None)
    made = read_calibration(tmp_path / "made/calibration.json", subject(kernel, layout))
    assert made.block_sizes == (1, 16)
    assert (made.layers, made.layers_timed, made.factors["attention"]) == (3, 1, 3)
    assert made.costs(16).base_us > 0
    rows = [line.split()[0] for line in ran.out.splitlines() if line[:2] in ("1 ", "16")]
    assert rows == ["1", "16"]
    assert "3 layers, 1 timed: factor 3" in ran.figure("model")
    assert "of 2 steps" in ran.figure("live, block 16")
    assert "of 4 steps" in ran.figure("live, all")
    with pytest.raises(ConfigError, match="layout"):
        read_calibration(tmp_path / "made/calibration.json", subject(kernel, model_layout("tiny")))
    plain = deciding_kernel("cpu", layout, "c-plain")
    with pytest.raises(ConfigError, match="kernel c-prefetch, wanted c-plain"):
        read_calibration(tmp_path / "made/calibration.json", subject(plain, layout))


@pytest.mark.usefixtures("compiler")
def test_a_sweep_decides_by_a_calibration(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    sizes = ("--sizes", "1,2,4,8,16")
    assert kvsuite("calibrate", "--model", "tiny", "--small", *sizes, "--out", "c.json").code == 0
    asked = ("sweep", "churn", "--limit", 30, *sizes, "--controls", "contiguous-one-block", "--model", "tiny")
    slo = ("--pool", "1MiB", "--slo", "ttft=10s,itl=10s", "--calibration", "c.json")
    ran = kvsuite(*asked, *slo, "--out", "run")
    assert ran.code == 0, ran.out + ran.err
    # The largest of the small grid is 2 sequences of 256 tokens of 64 bytes, one layer of the tiny model.
    assert "the calibration read 0.03 MiB at the most, which caches hold" in ran.out
    (line,) = read_record(tmp_path / "run" / "run.jsonl").decisions
    assert not line.projected
    found = {row.verdict for row in line.rows}
    assert found <= {"ship", "reject", "inspect"}
    assert [(row.control, row.table_depth, row.unjudged) for row in line.rows[-1:]] == [(True, 0, None)]
    other = kvsuite(*asked, "--layers", 5, *slo, "--out", "other")
    assert other.code == 2
    assert "calibration of something else: layout" in other.err


def test_without_a_compiler_it_says_that_no_verdict_can_be_given(
    kvsuite: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install kvsuite[device]")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    ran = kvsuite(*SMALL)
    assert ran.code == 3
    assert "no latency verdict can be given on cpu" in ran.err
    assert "no C compiler" in ran.err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--kernel", "gather-sdpa"), 3, "no latency verdict can be given on cpu: the time of gather-sdpa"),
        (("--kernel", "fast"), 2, "unknown attention kernel 'fast'"),
        (("--rounds", 8), 2, "Invalid value for '--rounds'"),
        (("--dtype", "fp8"), 3, "no latency verdict can be given on cpu"),
        (("--sizes", "0"), 2, "block sizes '0'"),
        (("--model", "deepseek-v3"), 2, "not shaped like Llama"),
        (("--live", "no-such-trace"), 2, "no-such-trace"),
    ],
)
@pytest.mark.usefixtures("compiler")
def test_what_cannot_be_calibrated_is_told_before_anything_is_timed(
    kvsuite: Callable[..., Ran], tmp_path: Path, words: tuple[object, ...], code: int, told: str
) -> None:
    ran = kvsuite(*SMALL, *words)
    assert (ran.code, told in " ".join(ran.err.split())) == (code, True), ran.err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("out", "told"), [("there", "there is a folder"), ("file/c.json", "file is a file")])
@pytest.mark.usefixtures("compiler")
def test_where_nothing_can_be_written_nothing_is_timed(
    kvsuite: Callable[..., Ran], tmp_path: Path, out: str, told: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    ran = kvsuite(*SMALL, "--out", out)
    assert (ran.code, told in ran.err, ran.out) == (2, True, "")


@pytest.mark.parametrize("words", [("--step", "5ms"), ("--limit", "9")])
def test_what_belongs_to_live_batches_is_refused_without_them(
    kvsuite: Callable[..., Ran], words: tuple[str, str]
) -> None:
    ran = kvsuite("calibrate", "--small", *words)
    assert ran.code == 2
    assert f"{words[0]} is of the replay behind --live" in ran.err
