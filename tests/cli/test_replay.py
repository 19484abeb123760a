"""`kvsuite replay`: what it prints is what happened, and what it writes says the same."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import pytest

from kvsuite.record.reader import read_record
from kvsuite.trace.model import ForkKind
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

TRACE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,30,3
2023-11-16 18:15:46.0000000,16,1
2023-11-16 18:15:56.0000000,5,2
"""
"""Two requests at once, a third after the first two have ended, under steps of 50 ms."""


def test_every_figure_of_three_requests_by_hand(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """At block 16 and one decode a step, with A = 30 + 3, B = 16 + 1 and C = 5 + 2 tokens.

    step      0: A 30, B 16    1: A 31, B 17    2: A 32    3: A 33    200: C 5    201: C 6    202: C 7
    blocks    2 + 1            2 + 2            2          3          1           1           1
    """
    (tmp_path / "three.csv").write_bytes(TRACE)
    ran = kvsuite("replay", "three.csv", "--pool", "8 blocks", "--model", "tiny")
    assert ran.code == 0, ran.err
    payload = [46, 48, 32, 33, 5, 6, 7]
    held = [3 * 16, 4 * 16, 2 * 16, 3 * 16, 16, 16, 16]
    assert ran.figure("rows read") == "3 = 3 kept + 0 dropped"
    assert ran.figure("tokens asked") == "51 prompt, 6 output"
    assert ran.figure("requests") == "3 finished"
    assert ran.figure("peak").startswith("4 of 8 blocks, 8.0 KiB (50.0% of the pool)")
    assert ran.figure("utilisation").startswith(f"{sum(payload) / (7 * 128):.2%} of the pool")
    assert ran.figure("allocation efficiency").startswith(f"{sum(payload) / sum(held):.2%} of what")
    assert ran.figure("slack share").startswith(f"{1 - sum(payload) / sum(held):.2%} of what")
    finals = [33, 17, 7]
    static = 1 - sum(finals) / sum(ceil(n / 16) * 16 for n in finals)
    assert ran.figure("static tail slack").startswith(f"{static:.2%} at block 16")
    assert ran.figure("content").startswith("57 tokens written, ")
    assert ", 0 mismatches (probe slots)" in ran.figure("content")
    assert ran.figure("preemptions") == "0, 0 tokens computed again"
    assert ran.figure("refusals") == "0 of admission, 0 of growth"
    assert ran.figure("prefix hits").startswith("0 tokens")
    assert "pool closes at every step: 7 steps" in ran.out
    assert "all blocks returned" in ran.out
    assert ran.err == ""


def test_the_embedded_default_shows_pressure_and_writes_both_files(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite("replay")
    assert ran.code == 0, ran.err
    assert int(ran.figure("preemptions").partition(",")[0]) > 0
    assert "no_blocks" in ran.figure("refusals")
    assert ran.figure("fork families")
    folder = tmp_path / "reports" / "replay-churn-reference-b16"
    assert (folder / "report.html").stat().st_size > 100_000
    assert "reports/replay-churn-reference-b16/report.html" in ran.out
    record = read_record(folder / "run.jsonl")
    (ledger,) = record.ledgers
    assert record.end is not None
    assert record.end.exit_status == 0
    assert ledger.closing_gap_bytes == 0
    assert ledger.pool.pool_bytes == 384 * 2**20
    assert record.engine(ledger.engine) is record.engines[0]
    assert record.trace(ledger.trace) is record.traces[0]
    assert record.contents[0].ledger == ledger.ref
    assert (record.cases[0].outcome, record.cases[0].device) == ("passed", "cpu")
    assert record.header.command == ["kvsuite", "replay"]
    assert f"{record.contents[0].tokens_read:,} read back" in ran.figure("content")
    assert f"pool closes at every step: {ledger.steps_total:,} steps" in ran.out


@pytest.mark.parametrize(
    ("fault", "invariant"),
    [("leak-on-cancel", "drain"), ("copy-skipped", "content"), ("free-missing", "closure")],
)
def test_a_broken_engine_ends_with_1_and_the_name_of_the_law(
    fault: str, invariant: str, kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite("replay", "--engine", f"mutant:{fault}", "--out", "run")
    assert ran.code == 1
    assert f"VIOLATED {invariant}" in ran.out
    assert ("pool closes at every step" in ran.out) == ("VIOLATED closure" not in ran.out)
    assert ("all blocks returned" in ran.out) == ("VIOLATED drain" not in ran.out)
    record = read_record(tmp_path / "run" / "run.jsonl")
    assert record.end is not None
    assert record.end.exit_status == 1
    assert record.cases[0].outcome == "failed"
    assert invariant in record.cases[0].invariants


@pytest.mark.parametrize("engine", ["contiguous-max", "contiguous-pow2", "contiguous-exact"])
def test_a_control_runs_too_and_shows_what_it_over_reserves(engine: str, kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("replay", "boundary", "--engine", engine, "--pool", "4096 blocks", "--block-size", 1)
    assert ran.code == 0, ran.out + ran.err
    assert ran.figure("slack share").startswith("0.00%") or "slack share" not in ran.out
    assert "over-reserved share" in ran.out


def test_forks_of_an_engine_that_cannot_fork_are_told(kvsuite: Callable[..., Ran]) -> None:
    forks = sum(
        request.fork_kind in {ForkKind.SAMPLE, ForkKind.BEAM} for request in synthetic("churn").head(60)
    )
    words = ("replay", "churn", "--limit", 60, "--pool", "8192 blocks", "--block-size", 1, "--model", "tiny")
    ran = kvsuite(*words, "--engine", "contiguous-max")
    said = f"{forks} replayed as requests of their own: contiguous-max does not claim FORK"
    assert ran.figure("forks") == said
    ran = kvsuite(*words)
    assert f" with {forks} children, " in ran.figure("fork families")
    assert "\nforks  " not in ran.out


def test_options_reach_the_engine_and_the_scheduler(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(
        *("replay", "shared-prefix", "--block-size", 8, "--pool", "16MiB", "--model", "tiny", "--layers", 4),
        *("--dtype", "fp16", "--tp", 2, "--watermark-blocks", 3, "--no-prefix-cache", "--max-sequences", 7),
        *("--max-step-tokens", 512, "--step", "200ms", "--limit", 20, "--out", "run"),
        *("--overlay", "cancel:every=5", "--overlay-seed", 3),
    )
    assert ran.code == 0, ran.out + ran.err
    record = read_record(tmp_path / "run" / "run.jsonl")
    (engine,), (ledger,), (trace,) = record.engines, record.ledgers, record.traces
    assert engine.dtype == "float16"
    assert "L4" in engine.layout
    assert "tp2" in engine.layout
    assert engine.effective["watermark_blocks"] == 3
    assert engine.effective["prefix_cache"] is False
    # 4 layers of k and v, 1 of 2 heads on this rank, 8 elements of 2 bytes
    assert ledger.pool.bytes_per_token == 4 * 2 * 1 * 8 * 2
    assert ledger.pool.num_blocks == 16 * 2**20 // (8 * 128)
    assert ledger.recipe == {
        "max_sequences": 7,
        "max_step_tokens": 512,
        "step_us": 200_000,
        "lookahead_tokens": 0,
    }
    assert ledger.step_us == 200_000
    assert (ledger.totals["hit"], ledger.peaks["running"]) == (0, 7)
    assert (trace.requests, trace.cancels) == (20, 4)
    assert trace.filled == ["cancel: cancel:every=5 (seed 3)"]


def test_options_of_the_engine_s_own_reach_it(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """Two numbers, and one that is true and makes a third pool."""
    words = ("replay", "boundary", "--pool", "64 blocks", "--model", "tiny", "--out", "run")
    ran = kvsuite(*words, "--option", "null_blocks=3", "--option", "index_bits=32")
    assert ran.code == 0, ran.out + ran.err
    (engine,) = read_record(tmp_path / "run" / "run.jsonl").engines
    assert (engine.effective["null_blocks"], engine.effective["index_bits"]) == (3, 32)
    ran = kvsuite(*words, "--layers", 3, "--engine", "reference-groups", "--option", "third_group=true")
    assert ran.code == 0, ran.out + ran.err
    assert len(read_record(tmp_path / "run" / "run.jsonl").ledgers) == 3


def test_full_slots_hold_the_same_ledger_and_are_observed(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="full slots need torch")
    words = ("replay", "boundary", "--pool", "32 blocks", "--model", "tiny")
    probe = kvsuite(*words, "--out", "probe")
    full = kvsuite(*words, "--slots", "full", "--out", "full")
    assert (probe.code, full.code) == (0, 0), full.out + full.err
    assert full.figure("content").replace("full", "probe") == probe.figure("content")
    one, other = (read_record(tmp_path / name / "run.jsonl") for name in ("probe", "full"))
    assert one.ledgers[0].rows == other.ledgers[0].rows
    assert [content.mode for content in (*one.contents, *other.contents)] == ["probe", "full"]
    assert not one.memories


def test_a_record_makes_the_page_again(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    assert kvsuite("replay", "boundary", "--pool", "64 blocks", "--out", "run").code == 0
    first = (tmp_path / "run" / "report.html").read_bytes()
    ran = kvsuite("report", "run", "--out", "again.html")
    assert ran.code == 0
    assert (tmp_path / "again.html").read_bytes() == first


def test_a_bar_is_drawn_only_on_a_terminal(
    kvsuite: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kvsuite("replay", "boundary", "--pool", "64 blocks").err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "replay boundary" in kvsuite("replay", "boundary", "--pool", "64 blocks").err
