"""`kvsuite sweep` over several traces, pools and engines, from what an earlier run left, and failing."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from kvsuite.record.reader import read_record
from kvsuite.sweep import cells

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

ONE = ("sweep", "boundary", "--limit", 20, "--model", "tiny", "--pool", "256KiB", "--out", "run")
ENGINE_COLUMN = '<th scope="col">Option</th><th scope="col">Engine</th>'
SMALL = ("--sizes", "8,16", "--controls", "contiguous-exact", "--workers", "threads:2")


def head(ran: Ran) -> list[str]:
    """Return the names of the columns of the table."""
    (line,) = [line for line in ran.out.splitlines() if line.startswith("option ") and " slack " in line]
    return re.split(r"  +", line.strip())


def test_several_traces_pools_and_engines_are_rows_of_one_table(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    words = ("sweep", "boundary", "thrash", *ONE[2:6], "--pool", "256KiB,512KiB", "--out", "run")
    ran = kvsuite(*words, "--engine", "reference,reference-eager", *SMALL)
    assert ran.code == 0, ran.out + ran.err
    assert head(ran)[:5] == ["option", "engine", "pool", "trace", "slack"]
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("block 16 ")]
    assert [tuple(row[2:5]) for row in rows] == [
        (engine, pool, trace)
        for trace in ("boundary", "thrash")
        for pool in ("256KiB", "512KiB")
        for engine in ("reference", "reference-eager")
    ]
    record = read_record(tmp_path / "run" / "run.jsonl")
    assert [(line.trace, line.pool_bytes) for line in record.sweeps] == [
        ("boundary", 2**18),
        ("boundary", 2**19),
        ("thrash", 2**18),
        ("thrash", 2**19),
    ]
    assert [(row.option, row.engine) for row in record.sweeps[0].rows] == [
        ("block 8", "reference"),
        ("block 16", "reference"),
        ("block 8", "reference-eager"),
        ("block 16", "reference-eager"),
        ("contiguous-exact", "contiguous-exact"),
    ]
    assert len(record.ledgers) == 20
    assert len({ledger.ref for ledger in record.ledgers}) == 20
    assert len({engine.ref for engine in record.engines}) == 20
    assert {ledger.trace for ledger in record.ledgers} == {"boundary", "thrash"}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ENGINE_COLUMN in page
    assert "Mean over steps, reference-eager" in page


def test_one_of_each_has_no_column_for_it(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(*ONE, *SMALL)
    assert ran.code == 0, ran.out + ran.err
    assert head(ran)[:2] == ["option", "slack"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ENGINE_COLUMN not in page
    assert "Mean over steps" in page


def test_a_second_run_goes_on_from_what_is_done_unless_it_starts_afresh(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    first = kvsuite(*ONE, *SMALL)
    assert "from an earlier run" not in first.out
    before = read_record(tmp_path / "run" / "run.jsonl").sweeps
    more = kvsuite(*ONE, *SMALL[2:], "--sizes", "8,16,32")
    assert more.figure("from an earlier run") == "3 of 4 cells (--fresh runs them again)"
    after = read_record(tmp_path / "run" / "run.jsonl").sweeps
    assert [*after[0].rows[:2], after[0].rows[3]] == before[0].rows
    assert "from an earlier run" not in kvsuite(*ONE, *SMALL, "--fresh").out
    assert len(list((tmp_path / "run" / "cells").iterdir())) == 3
    other = kvsuite(*ONE, *SMALL, "--max-sequences", 3)
    assert "from an earlier run" not in other.out, "what was asked differs"


def test_a_damaged_cell_is_named_and_run_again(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    kvsuite(*ONE, *SMALL)
    path = min((tmp_path / "run" / "cells").iterdir())
    path.write_bytes(b"{}")
    ran = kvsuite(*ONE, *SMALL)
    assert ran.code == 0, ran.out + ran.err
    assert path.name in ran.figure("run again")
    assert ran.figure("from an earlier run").startswith("2 of 3 cells")


@pytest.mark.parametrize("core", ["step", "compiled", "auto"])
def test_each_core_gives_the_same_figures_and_says_what_it_leaves_out(
    core: str, kvsuite: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if core == "compiled":
        pytest.importorskip("numba")
    if core == "auto":
        monkeypatch.setattr(cells, "has_numba", lambda: False)
    ran = kvsuite(*ONE, *SMALL, "--core", core)
    assert ran.code == 0, ran.out + ran.err
    assert ("The reference engine ran on the compiled core" in ran.out) is (core == "compiled")
    record = read_record(tmp_path / "run" / "run.jsonl")
    mode = "none" if core == "compiled" else "probe"
    assert [content.mode for content in record.contents] == [mode, mode, "probe"]
    assert kvsuite(*ONE[:-1], "other", *SMALL, "--core", "step").code == 0
    assert read_record(tmp_path / "other" / "run.jsonl").sweeps[0].rows == record.sweeps[0].rows


def test_a_cell_that_fails_is_named_and_the_others_are_written(
    kvsuite: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "lost-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lost\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[kvsuite.engines]\nlost = lost_engine:Lost\n", encoding="utf-8")
    (site / "lost_engine.py").write_text(
        "from kvsuite.engine.reference import ReferenceEngine\n\n\n"
        "class Lost(ReferenceEngine):\n"
        "    def admit(self, *args, **kwargs):\n"
        "        raise LookupError('lost its way')\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "lost_engine", raising=False)
    ran = kvsuite(*ONE, *SMALL, "--engine", "lost,reference")
    assert ran.code == 2
    assert "lost block 8: FAILED, tried 2 times: " in ran.out
    assert "lost its way" in ran.out
    assert [line for line in ran.out.splitlines() if line.startswith("retried ")] == [
        f"{'retried':<24}lost block 8",
        f"{'retried':<24}lost block 16",
    ]
    record = read_record(tmp_path / "run" / "run.jsonl")
    rows = record.sweeps[0].rows
    assert [row.failed is not None for row in rows] == [True, True, False, False, False]
    assert [row.steps is not None for row in rows] == [False, False, True, True, True]
    errors = [line for line in record.cases if line.outcome == "error"]
    assert [(line.case, line.engine) for line in errors] == [
        ("sweep/boundary/lost block 8", "lost block 8"),
        ("sweep/boundary/lost block 16", "lost block 16"),
    ]
    assert all("lost its way" in line.message for line in errors)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "</span> failed</span>" in page
    assert len(list((tmp_path / "run" / "cells").iterdir())) == 3, "what failed is not kept"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--workers", "fork:2"),
            "workers 'fork:2': ModuleNotFoundError: No module named 'fork'; expected threads:N",
        ),
        (("--core", "gpu"), "unknown core 'gpu': expected one of auto, compiled, step"),
        (("--engine", "reference,reference"), "engine reference is given twice"),
        (("--pool", "1MiB,1024KiB"), "pool 1MiB is given twice"),
        (("--pool", "1MiB,64 blocks"), "a pool of 64 blocks is another pool at each block size"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(
    words: tuple[str, str], says: str, kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite(*ONE, *SMALL, *words)
    assert ran.code == 2
    assert says in ran.err
    assert not (tmp_path / "run").exists()


def test_an_engine_that_nobody_knows_is_refused_before_anything_runs(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite(*ONE, *SMALL, "--engine", "nosuch")
    assert ran.code == 2
    assert "unknown engine 'nosuch'" in ran.err
    assert not (tmp_path / "run").exists()


def test_a_sweep_in_which_nothing_ran_says_why(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    words = ("sweep", "boundary", "--limit", 20, "--model", "tiny", "--pool", "1KiB", "--out", "run")
    ran = kvsuite(*words, "--sizes", "512", "--controls", "contiguous-one-block")
    assert ran.code == 0, ran.err
    assert "refused" in ran.out
    assert "no option ran to its end" in (tmp_path / "run" / "report.html").read_text("utf-8")
