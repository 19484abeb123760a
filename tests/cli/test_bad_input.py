"""Every kind of bad input: a message that names the place and the remedy, and the documented exit code."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

ROWS = (
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    {"timestamp": 250, "input_length": 1030, "output_length": 7, "hash_ids": [0, 2, 3]},
    {"timestamp": 500, "input_length": 40, "output_length": 2, "hash_ids": [4]},
)


def mooncake(**changes: object) -> bytes:
    """Return three rows, the second one changed."""
    rows = [ROWS[0], {**ROWS[1], **changes}, ROWS[2]]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (mooncake()[:-20], "line 3"),
        (gzip.compress(mooncake(), mtime=0)[:-12], "trace.jsonl"),
        (mooncake(output_length=-1), "line 2"),
        (mooncake(input_length=-1030), "line 2"),
        (mooncake(timestamp=900), "line 3"),
        (mooncake(hash_ids=[0, 2]), "block"),
        (mooncake(input_lenght=5), "input_lenght"),
        (b"", "empty"),
        (b"\x00\x01\x02 nothing known\n", "trace.jsonl"),
    ],
    ids=[
        "cut",
        "cut-gzip",
        "negative-output",
        "negative-input",
        "back-in-time",
        "ids",
        "key",
        "empty",
        "noise",
    ],
)
def test_a_bad_file_is_refused_with_its_place(
    content: bytes, says: str, kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "trace.jsonl").write_bytes(content)
    ran = kvsuite("replay", "trace.jsonl", "--pool", "4096 blocks")
    assert ran.code == 2
    assert ran.err.startswith("kvsuite: ")
    assert "trace.jsonl" in ran.err
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "reports").exists()


def test_the_sound_file_is_accepted(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(mooncake())
    ran = kvsuite("replay", "trace.jsonl", "--pool", "4096 blocks")
    assert ran.code == 0, ran.err
    assert ran.figure("rows read") == "3 = 3 kept + 0 dropped"


def test_a_prompt_of_no_tokens_is_dropped_and_counted(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(mooncake(input_length=0, hash_ids=[]))
    ran = kvsuite("trace", "info", "trace.jsonl")
    assert ran.code == 0, ran.err
    assert ran.figure("rows read").startswith("3 = 2 kept + 1 dropped (1 ")


def test_a_block_size_that_fits_no_row_is_refused(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(mooncake())
    ran = kvsuite("replay", "trace.jsonl", "--trace-block-size", 256)
    assert ran.code == 2
    assert "256" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pool", "1MiB"], "smaller than one block"),
        (["handbook", "--pool", "3 blocks"], "the smallest has 50 tokens and needs 4 blocks"),
        (["--block-size", "0"], "block size 0"),
        (["--block-size", "-16"], "block size -16"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--model", "gpt-17"], "unknown model 'gpt-17'"),
        (["--engine", "acme"], "unknown engine 'acme'"),
        (["--option", "window_tokens=8"], "unknown option 'window_tokens', expected null_blocks"),
        (["--option", "null_blocks=two"], "null_blocks is 'two'"),
        (["--option", "null_blocks=true"], "null_blocks is True"),
        (["--option", "null_blocks"], "option 'null_blocks': expected NAME=VALUE"),
        (["--option", "null_blocks="], "option 'null_blocks=': expected NAME=VALUE"),
        (["--option", "=1"], "option '=1': expected NAME=VALUE"),
        (["--option", "null_blocks=1", "--option", "null_blocks=2"], "option null_blocks is given twice"),
        (["--engine", "mutant:none-such"], "unknown mutant"),
        (["no-such-trace"], "neither a file nor"),
        (["--pool", "twenty"], "pool size 'twenty'"),
        (["--pool", "99999999999999999999GiB"], "block ids are 32-bit"),
        (["--overlay", "fork:every=1,n=999999999"], "at most 4096 children"),
        (["--step", "50"], "duration '50'"),
        (["--overlay", "vanish:every=2"], "unknown overlay rule"),
        (["--slots", "some"], "unknown slots"),
        (["--device", "abacus"], "unknown device"),
        (["--max-step-tokens", "8"], "budget of 8"),
        (["--layers", "0"], "--layers"),
        (["--no-such-option"], "No such option"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused(
    words: list[str], says: str, kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite("replay", *words)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["churn", "--pool", "4096 blocks"], "give it in bytes"),
        (["churn", "--sizes", "16,many"], "block sizes"),
        (["churn", "--controls", ""], "no contiguous control"),
        (["churn", "--controls", "buddy"], "'buddy' is no contiguous control"),
    ],
)
def test_a_bad_sweep_is_refused(words: list[str], says: str, kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("sweep", *words)
    assert ran.code == 2
    assert says in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-tokens", "1000"], "the longest request holds 1051 tokens"),
        (["--churn-tokens", "2000"], "does not hold one reservation of 2048"),
    ],
)
def test_a_bad_comparison_is_refused(words: list[str], says: str, kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("compare", *words)
    assert ran.code == 2
    assert says in ran.err


def test_a_record_cut_short_is_refused_or_marked(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    assert kvsuite("replay", "boundary", "--pool", "64 blocks", "--out", "run").code == 0
    record = tmp_path / "run" / "run.jsonl"
    whole = record.read_bytes()
    record.write_bytes(whole[:-10])
    ran = kvsuite("report", "run", "--out", "page.html")
    assert ran.code == 2
    assert "run.jsonl" in ran.err
    assert not (tmp_path / "page.html").exists()
    record.write_bytes(whole.replace(b'"schema_version":"1.', b'"schema_version":"9.', 1))
    ran = kvsuite("report", "run")
    assert ran.code == 2
    assert "schema version 9." in ran.err


def test_goldens_that_are_not_there(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("golden", "list", "--goldens", "nowhere")
    assert ran.code == 2
    assert "nowhere: no such folder" in ran.err
    ran = kvsuite("golden", "baseline", "acme", "0123abcd")
    assert ran.code == 2
    assert "record goldens first" in ran.err


@pytest.mark.parametrize("verb", [("replay",), ("sweep", "churn"), ("compare",)])
def test_a_place_that_is_no_folder_is_refused_before_the_work(
    verb: tuple[str, ...], kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("mine")
    ran = kvsuite(*verb, "--out", "taken")
    assert ran.code == 2
    assert "taken is a file: choose another folder with --out" in ran.err
    assert "requests  " not in ran.out
    assert "block 1 " not in ran.out
    assert (tmp_path / "taken").read_text() == "mine"
    ran = kvsuite(*verb, "--out", "taken/below")
    assert ran.code == 2
    assert "is a file" in ran.err
