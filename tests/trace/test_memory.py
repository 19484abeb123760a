"""How much memory reading takes: what docs/traces.md states for a request and for a prefix id."""

from __future__ import annotations

import gc
import gzip
import json
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvsuite.trace import ragged
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.readers.registry import detect
from kvsuite.trace.readers.source import ReadOptions, open_trace_file
from kvsuite.trace.tile import tiled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.trace.model import Trace

REQUEST_BYTES = 60
"""A request while it is read, as docs/traces.md says."""
REQUEST_WITH_IDS_BYTES = 130
"""A request that has prefix ids, beside these."""
ID_BYTES = 24
"""A prefix id while it is read."""
COLUMN_BYTES = 24
"""A request without prefix ids afterwards: its arrival, prompt and output."""
FEW, MANY = 2_000, 6_000
BATCH_ROWS = 256


def azure(rows: int) -> str:
    lines = [
        f"2030-01-{k // 80_000 + 1:02} {k // 3600 % 24:02}:{k // 60 % 60:02}:{k % 60:02}.{k % 10}000000,"
        f"{k % 4000 + 300},{k % 600}\n"
        for k in range(rows)
    ]
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(lines)


def vidur(rows: int) -> str:
    lines = [f"{k}.{k:012},{k % 4000 + 300},{k % 600}\n" for k in range(rows)]
    return "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(lines)


def mooncake(rows: int) -> str:
    """Conversations of two turns of 10 and 20 ids."""
    lines: list[str] = []
    for k in range(rows):
        ids = list(range(k // 2 * 20, k // 2 * 20 + 10 * (k % 2 + 1)))
        row = {"timestamp": k * 180, "input_length": len(ids) * 512, "output_length": 9, "hash_ids": ids}
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def one_id(rows: int) -> str:
    lines = [
        f'{{"timestamp":{k * 180},"input_length":{k % 400 + 90},"output_length":9,"hash_ids":[{k}]}}\n'
        for k in range(rows)
    ]
    return '{"schema":"kvsuite.trace","version":1,"block_size":512}\n' + "".join(lines)


def canonical(rows: int) -> str:
    body = mooncake(rows).splitlines(keepends=True)
    named = [f'{{"request_id":"r{k}",{line[1:]}' for k, line in enumerate(body)]
    return '{"schema":"kvsuite.trace","version":1,"block_size":512}\n' + "".join(named)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk takes what it takes however many rows there are: made small, so that few rows fill many."""
    monkeypatch.setattr(ragged, "CHUNK", 256)


def peak_bytes(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read(path: Path) -> Trace:
    with open_trace_file(path, BATCH_ROWS) as file:
        return detect(file).read(file, ReadOptions(sort=True))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        pytest.param(azure, 0, id="azure"),
        pytest.param(vidur, 0, id="vidur"),
        pytest.param(mooncake, 15, id="mooncake"),
        pytest.param(canonical, 15, id="canonical"),
        pytest.param(one_id, 1, id="one id a request"),
    ],
)
def test_reading_takes_little_more_than_the_columns(
    text: Callable[[int], str], ids: int, packed: bool, put: Callable[..., Path]
) -> None:
    peaks: list[int] = []
    for rows in (FEW, FEW, MANY):  # The first time fills caches too.
        data = text(rows).encode()
        path = put(gzip.compress(data, 1) if packed else data)
        del data
        peaks.append(peak_bytes(partial(read, path)))

    grown = (peaks[2] - peaks[1]) / (MANY - FEW)
    assert grown <= (REQUEST_WITH_IDS_BYTES if ids else REQUEST_BYTES) + ids * ID_BYTES
    assert grown >= COLUMN_BYTES + ids * 8, "the columns that stay are not counted"


def test_hashing_takes_no_text_of_the_whole(put: Callable[..., Path]) -> None:
    traces = [load_trace(put(azure(rows))) for rows in (FEW, FEW, MANY)]
    peaks = [peak_bytes(partial(content_hash, trace)) for trace in traces]

    assert (peaks[2] - peaks[1]) / (MANY - FEW) <= 10


def test_a_copy_takes_its_columns_alone(put: Callable[..., Path]) -> None:
    trace = load_trace(put(azure(1000)))
    peaks = [peak_bytes(partial(tiled, trace, copies)) for copies in (10, 10, 210)]

    assert COLUMN_BYTES <= (peaks[2] - peaks[1]) / 200_000 <= 2 * COLUMN_BYTES
