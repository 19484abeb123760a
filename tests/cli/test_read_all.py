"""`kvsuite replay --read-all` judges a short trace as drawn lifecycles are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

TRACE = """{"schema":"kvsuite.trace","version":1,"block_size":4}
{"timestamp":0,"input_length":12,"output_length":4}
{"timestamp":0,"input_length":80,"output_length":0}
"""
"""Beside 3 blocks, the second prompt of 20 does not fit 22 blocks: one that lets it in breaks a promise."""
WORDS = ("--pool", "22 blocks", "--block-size", "4", "--model", "tiny", "--max-step-tokens", "32")


def test_what_only_the_model_sees_is_an_exit_code(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(TRACE)
    command = (
        "replay",
        "two.jsonl",
        *WORDS,
        "--max-sequences",
        "6",
        "--engine",
        "mutant:first-chunk-admission",
    )
    assert kvsuite(*command).code == 0
    judged = kvsuite(*command, "--read-all")
    assert judged.code == 1
    assert "VIOLATED promise at step 0" in judged.out


def test_a_clean_engine_passes(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(TRACE)
    ran = kvsuite("replay", "two.jsonl", *WORDS, "--max-sequences", "6", "--read-all")
    assert ran.code == 0, ran.out
    assert ran.figure("requests") == "2 finished"
