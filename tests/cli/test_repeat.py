"""`--repeat`: the trace again and again, after what is cut from it and laid over it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran


def test_a_trace_is_cut_then_overlaid_then_repeated(kvsuite: Callable[..., Ran]) -> None:
    words = ("trace", "info", "churn", "--limit", 20, "--overlay", "cancel:every=5,after=0")
    once, thrice = kvsuite(*words), kvsuite(*words, "--repeat", 3)

    assert once.code == thrice.code == 0, thrice.err
    assert thrice.figure("rows read") == "20 = 20 kept + 0 dropped, 40 added"
    assert "repeat: repeat:copies=3 (seed 0)" in thrice.out
    assert int(thrice.figure("cancels")) == 3 * int(once.figure("cancels")) > 0
    assert kvsuite(*words, "--repeat", 1).out == once.out


def test_a_repeated_trace_is_converted_and_read_again(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("trace", "convert", "chat", "twice.jsonl.gz", "--limit", 15, "--repeat", 2)
    assert ran.code == 0, ran.err

    assert kvsuite("trace", "hash", "twice.jsonl.gz").out.strip() == ran.figure("content hash")


def test_copies_share_nothing_in_a_replay(kvsuite: Callable[..., Ran]) -> None:
    words = ("replay", "shared-prompts", "--limit", 30, "--pool", "8192 blocks", "--model", "tiny")
    once, twice = kvsuite(*words), kvsuite(*words, "--repeat", 2)

    assert once.code == twice.code == 0, twice.err
    hits = [int(re.sub(",", "", ran.figure("prefix hits").split()[0])) for ran in (once, twice)]
    assert hits[1] == 2 * hits[0] > 0


@pytest.mark.parametrize("verb", [("replay", "chat"), ("sweep", "chat"), ("trace", "info", "chat")])
def test_less_than_once_is_refused(verb: tuple[str, ...], kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite(*verb, "--repeat", 0)

    assert ran.code == 2
    assert "--repeat" in ran.err
