"""How fast traces are read and hashed: ``pytest bench/test_trace_reading.py -o addopts= --benchmark-only``.

On the public traces where ``KVSUITE_TRACES`` names their folder, else on made ones with as many rows and ids.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.writer import canonical_lines

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

AZURE_ROWS = 19_366
MOONCAKE_ROWS = 12_031


def _public(relative: str) -> Path | None:
    root = os.environ.get("KVSUITE_TRACES")
    path = None if root is None else Path(root) / relative
    return path if path is not None and path.exists() else None


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of an Azure file of 19,366 rows."""
    found = _public("azure/AzureLLMInferenceTrace_conv.csv")
    if found is not None:
        return found
    rows = (
        f"2030-01-02 18:{k // 330:02}:{k % 330 * 0.18:010.7f},{k % 4000 + 2},{k % 600}"
        for k in range(AZURE_ROWS)
    )
    path = tmp_path_factory.mktemp("azure") / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(rows), newline="")
    return path


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a Mooncake file of 12,031 rows and about 290,000 ids."""
    found = _public("mooncake/conversation_trace.jsonl")
    if found is not None:
        return found
    draws = np.random.RandomState(1)
    lines: list[str] = []
    fresh = 1
    for k in range(MOONCAKE_ROWS):
        blocks = int(draws.randint(2, 47))
        ids = [0, *range(fresh, fresh + blocks - 1)]
        fresh += blocks - 1
        row = {"timestamp": k * 294, "input_length": blocks * 512 - 7, "output_length": 350, "hash_ids": ids}
        lines.append(json.dumps(row) + "\n")
    path = tmp_path_factory.mktemp("mooncake") / "mooncake.jsonl"
    path.write_text("".join(lines))
    return path


def test_read_azure(benchmark: BenchmarkFixture, azure: Path) -> None:
    """Read 19,366 rows."""
    assert len(benchmark(load_trace, azure)) == AZURE_ROWS


def test_read_and_hash_mooncake(benchmark: BenchmarkFixture, mooncake: Path) -> None:
    """Read 12,031 rows, name their prefixes, hash the trace."""
    assert benchmark(lambda: content_hash(load_trace(mooncake))).startswith("kvt1-")


def test_read_canonical(
    benchmark: BenchmarkFixture, mooncake: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Read the same trace from its canonical form, content hash checked."""
    path = tmp_path_factory.mktemp("canonical") / "canonical.jsonl"
    path.write_bytes(canonical_lines(load_trace(mooncake)))

    assert len(benchmark(load_trace, path)) == MOONCAKE_ROWS
