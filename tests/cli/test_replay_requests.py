"""`kvsuite replay` on an engine that schedules by itself: what it could see, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.record.reader import read_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

TRACE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,30,3
2023-11-16 18:15:46.0000000,16,1
2023-11-16 18:15:46.0000000,900,4
"""
ENGINE = ("--engine", "reference-requests", "--model", "tiny", "--pool", "8 blocks")


def test_what_was_seen_is_printed(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """30 + 3 tokens in 2 blocks, 3 as the 33rd is never computed; 904 tokens need 57 of 8 blocks."""
    (tmp_path / "three.csv").write_bytes(TRACE)
    ran = kvsuite("replay", "three.csv", *ENGINE)
    assert ran.code == 0, ran.err
    assert ran.figure("engine").startswith("reference-requests 1")
    assert ran.figure("scheduler").startswith("the engine's own (max_sequences 256, max_step_tokens 8192)")
    assert ran.figure("requests") == "2 finished, 1 rejected"
    assert ran.figure("refused") == "r2: needs 57 blocks"
    assert ran.figure("peak").startswith("2 of 8 blocks")
    assert ran.figure("content") == "unchecked: the slots are the engine's own"
    assert "blocks in use follow from the lengths at every step" in ran.out
    assert "pool closes at every step" in ran.out
    assert "all blocks returned" in ran.out
    assert "not judged: content in pool device/g0/r0" in ran.out


def test_the_record_says_what_could_not_be_judged(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite("replay", "boundary", *ENGINE[:-1], "512 blocks", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    record = read_record(tmp_path / "out" / "run.jsonl")
    assert [line.mode for line in record.contents] == ["none"]
    assert [line.not_judged for line in record.cases] == [["content (slots)"]]
    assert "content unchecked" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_limits_are_handed_to_the_engine(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("replay", "boundary", *ENGINE[:-1], "512 blocks", "--max-sequences", "3")
    assert ran.code == 0, ran.err
    assert ran.figure("scheduler").startswith("the engine's own (max_sequences 3, max_step_tokens 8192)")


@pytest.mark.parametrize(
    "option", [("--read-all",), ("--slots", "probe"), ("--lookahead-tokens", "2")], ids=lambda words: words[0]
)
def test_what_the_suite_cannot_do_there_is_refused(
    kvsuite: Callable[..., Ran], option: tuple[str, ...]
) -> None:
    ran = kvsuite("replay", "boundary", *ENGINE, *option)
    assert ran.code == 2
    assert f"{option[0]}: reference-requests schedules and samples by itself" in ran.err
