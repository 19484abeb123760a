"""Interrupts, readers that go away, terminals and names that are no text: real child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAIN = [sys.executable, "-B", "-c", "from kvsuite.cli.main import main; main()"]
REPLAY = ("replay", "boundary", "--pool", "64 blocks", "--out", "run")


def start(*words: str | bytes, folder: Path, **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*MAIN, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*words: str | bytes, folder: Path, **environ: str) -> tuple[int, str, str]:
    with start(*words, folder=folder, **environ) as child:
        out, err = child.communicate(timeout=60)
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace")


@pytest.mark.parametrize("words", [REPLAY, ("trace", "hash", "churn")], ids=["replay", "hash"])
def test_a_reader_that_has_gone_ends_it_quietly(words: tuple[str, ...], tmp_path: Path) -> None:
    with start(*words, folder=tmp_path) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert child.returncode == 141
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", ["threads:1", "processes:2"])
def test_an_interrupt_keeps_the_cells_that_are_done_and_nothing_half_written(
    workers: str, tmp_path: Path
) -> None:
    """A sweep of many cells is interrupted as soon as one is done; a second one goes on from there."""
    small = ("--limit", "60", "--pool", "4MiB", "--model", "tiny", "--core", "step")
    words = ("sweep", "churn", *small, "--workers", workers, "--out", "run")
    cells = tmp_path / "run" / "cells"
    with start(*words, folder=tmp_path) as child:
        while not list(cells.glob("*.json")):
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 130
    assert b"Traceback" not in said
    done = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in done} == {cells}
    assert all(json.loads(path.read_bytes())["result"]["row"]["steps"] for path in done)
    assert len(done) < 12
    code, out, err = run(*words, folder=tmp_path)
    assert (code, err) == (0, "")
    assert f"{'from an earlier run':<24}{len(done)} of 12 cells" in out


def test_an_interrupt_before_the_first_cell_leaves_no_file(tmp_path: Path) -> None:
    """The figures of the trace are out before the sweep begins."""
    words = ("sweep", "churn", "--sizes", "1", "--core", "step", "--out", "run")
    with start(*words, folder=tmp_path, PYTHONUNBUFFERED="1") as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b"trace ")
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 130
    assert b"Traceback" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "cells"] == []


def test_a_terminal_that_shows_no_more_than_ascii_is_no_error(tmp_path: Path) -> None:
    name = "caf\u00e9.csv"
    (tmp_path / name).write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n")
    code, out, err = run("trace", "info", name, folder=tmp_path, PYTHONIOENCODING="ascii:strict")
    assert (code, err) == (0, "")
    assert "caf\\xe9.csv" in out


def test_names_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    trace, out = b"\xff<b>.csv", b"to\n\xfe"
    (tmp_path / os.fsdecode(trace)).write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n")
    code, _, err = run("replay", trace, "--pool", "64 blocks", "--out", out, folder=tmp_path)
    assert (code, err) == (0, "")
    record = (tmp_path / os.fsdecode(out) / "run.jsonl").read_text(encoding="utf-8")
    assert "\\\\udcff<b>.csv" in record
    page = (tmp_path / os.fsdecode(out) / "report.html").read_text(encoding="utf-8")
    assert "\\udcff&lt;b&gt;.csv" in page
    assert "\\udcff<b>" not in page
    code, _, err = run("trace", "convert", trace, "out.jsonl", folder=tmp_path)
    assert (code, err) == (0, "")
