"""A full disk, a folder that may not be written, a card that is not there: each in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_CHILD = """
{before}
from kvsuite.cli.main import main
main()
"""
SMALL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
UNPRIVILEGED = """
import ctypes
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
assert libc.capget(header, sets) == 0
sets[0] &= ~0b110
assert libc.capset(header, sets) == 0
"""
"""Give up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root passes over permissions."""


def child(before: str, *words: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a child that first does ``before``."""
    return subprocess.run(
        [sys.executable, "-B", "-c", _CHILD.format(before=before), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


REPLAY = ("replay", "boundary", "--pool", "64 blocks", "--out", "run")


def sizes(folder: Path) -> dict[str, int]:
    """Run once with room, and return the bytes of what was written."""
    done = child("", *REPLAY, folder=folder)
    assert done.returncode == 0, done.stderr
    return {path.name: path.stat().st_size for path in (folder / "run").iterdir()}


@pytest.mark.parametrize("name", ["run.jsonl", "report.html"])
def test_a_full_disk_leaves_the_older_files_whole(name: str, tmp_path: Path) -> None:
    limit = sizes(tmp_path)[name] // 2
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    done = child(SMALL_DISK.format(limit=limit), *REPLAY, folder=tmp_path)
    assert done.returncode == 2
    assert name in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "report.html").read_bytes() == before["report.html"]
    if name == "run.jsonl":
        assert (tmp_path / "run" / "run.jsonl").read_bytes() == before["run.jsonl"]


def test_a_full_disk_keeps_a_converted_trace_away(tmp_path: Path) -> None:
    done = child(SMALL_DISK.format(limit=500), "trace", "convert", "churn", "out.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert "cannot write out.jsonl" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [REPLAY, ("trace", "convert", "boundary", "out.jsonl"), ("compare", "--out", "run")],
    ids=["replay", "convert", "compare"],
)
def test_a_folder_that_may_not_be_written(words: tuple[str, ...], tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    done = child(UNPRIVILEGED, *words, folder=tmp_path)
    tmp_path.chmod(0o755)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_may_not_be_read(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,2\n")
    trace.chmod(0o000)
    done = child(UNPRIVILEGED, "trace", "hash", "trace.csv", folder=tmp_path)
    assert done.returncode == 2
    assert "trace.csv" in done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize("words", [("--device", "cuda"), ("--device", "cuda", "--slots", "probe")])
def test_cuda_without_a_card_is_an_error_and_no_fallback(words: tuple[str, ...], tmp_path: Path) -> None:
    done = child("", "replay", *words, folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "device cuda was asked for, but" in done.stderr
    assert "--device cpu" in done.stderr
    assert list(tmp_path.iterdir()) == []
