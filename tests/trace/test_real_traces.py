"""Public traces, where they are at hand: published sums, twins in other formats, hits of a cold cache."""

from __future__ import annotations

import csv
import gzip
import json
import random
from typing import TYPE_CHECKING

import pytest

from kvsuite.trace.identity import canonical_text, content_hash
from kvsuite.trace.load import LengthSummary, load_trace, summarize
from kvsuite.trace.writer import export_mooncake, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AZURE = "azure/AzureLLMInferenceTrace_conv.csv"
VIDUR = "vidur/splitwise_conv.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"


def test_azure_conversation_figures(real_trace: Callable[[str], Path]) -> None:
    summary = summarize(load_trace(real_trace(AZURE)))

    assert (summary.requests, summary.rows_read, dict(summary.dropped)) == (19_366, 19_366, {})
    assert (summary.prompt.total, summary.output.total) == (22_361_870, 4_088_665)
    assert (summary.prompt.p50, summary.prompt.p90, summary.prompt.p99) == (1_020, 2_735, 4_142)
    assert (summary.prompt.minimum, summary.prompt.maximum, summary.output.maximum) == (2, 14_050, 1_000)
    # 18:15:46.6805900 to 19:14:08.4025270.
    assert summary.duration_us == 3_501_721_937


def test_azure_and_vidur_hold_the_same_lifecycles(real_trace: Callable[[str], Path]) -> None:
    azure, vidur = load_trace(real_trace(AZURE)), load_trace(real_trace(VIDUR))

    assert content_hash(azure) == content_hash(vidur)
    assert content_hash(azure).startswith("kvt1-b9662dfd")
    assert content_hash(azure.head(19_365)) != content_hash(vidur)


def test_mooncake_conversation_figures(real_trace: Callable[[str], Path]) -> None:
    trace = load_trace(real_trace(MOONCAKE))
    summary = summarize(trace)

    assert (summary.requests, summary.block_size) == (12_031, 512)
    assert (summary.prompt.total, summary.output.total) == (144_793_823, 4_122_048)
    assert summary.prompt == LengthSummary(144_793_823, 891, 6_909, 27_367, 85_401, 126_195)
    assert summary.prefix_nodes == 182_790
    assert summary.duration_us == 3_536_999_000
    assert summary.hit_share == pytest.approx(0.3736, abs=5e-5)
    assert content_hash(trace).startswith("kvt1-d2d41463")
    assert len(canonical_text(trace)) == 484_911


def test_mooncake_hit_share_against_sets_of_prefixes(real_trace: Callable[[str], Path]) -> None:
    path = real_trace(MOONCAKE)
    seen: set[tuple[int, int]] = set()
    hits = 0
    with path.open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            ends = [min(512 * (k + 1), row["input_length"]) for k in range(len(row["hash_ids"]))]
            # An id of this file never has two parents, so (id, end) names a prefix.
            found = [end for raw, end in zip(row["hash_ids"], ends, strict=True) if (raw, end) in seen]
            hits += max(found, default=0)
            seen.update(zip(row["hash_ids"], ends, strict=True))

    assert summarize(load_trace(path)).hit_tokens == hits


def test_mooncake_rewritten_hashes_alike(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    path = real_trace(MOONCAKE)
    chooser = random.Random(5)
    names: dict[int, int] = {}
    lines = [""]
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        row["hash_ids"] = [names.setdefault(raw, chooser.randrange(2**53)) for raw in row["hash_ids"]]
        row["timestamp"] = float(row["timestamp"] + 1_700_000_000_000)
        lines += [json.dumps(dict(reversed(row.items()))), " "]
    headed = json.dumps({"schema": "kvsuite.trace", "version": 1, "block_size": 512, "tail": "ceil"})
    text = "\r\n".join(lines).rstrip()
    plain, canonical = tmp_path / "plain", tmp_path / "canonical"
    plain.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    canonical.write_bytes(gzip.compress(b"\xef\xbb\xbf" + (headed + text).encode()))

    hashes = {content_hash(load_trace(found)) for found in (path, plain, canonical)}

    assert len(hashes) == 1


def test_mooncake_survives_both_written_forms(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    trace = load_trace(real_trace(MOONCAKE))
    write_trace(trace, tmp_path / "canonical.jsonl.gz")

    assert export_mooncake(trace, tmp_path / "plain.jsonl") == ()
    for name in ("canonical.jsonl.gz", "plain.jsonl"):
        assert content_hash(load_trace(tmp_path / name)) == content_hash(trace)


def test_azure_sums_against_the_csv_module(real_trace: Callable[[str], Path]) -> None:
    path = real_trace(AZURE)
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    trace = load_trace(path)

    assert trace.prompt_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row["GeneratedTokens"]) for row in rows]
