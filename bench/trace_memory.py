"""Memory and time of reading large traces: ``python bench/trace_memory.py [--requests N]``.

Writes an Azure-like and a Mooncake-like file of N requests, plain and gzip, to a temporary folder, reads each
in a process of its own and prints what that took. Seconds are of processor time. Peak memory is the largest
resident set of that process, and what it grew by from before it read is given for a request; ``held`` are
the trace's own columns.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REQUESTS = 1_000_000
SESSION_TURNS = 4
"""Mooncake-like requests come in conversations: each turn repeats the ids before it."""
GAP_MS = 180

READ = """
import json, resource, sys, time

import numpy as np

from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Trace
from kvsuite.trace.identity import content_hash

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

before, start = peak(), time.process_time()
trace = load_trace(sys.argv[1])
seconds, after = time.process_time() - start, peak()
columns = [value for value in vars(trace).values() if isinstance(value, np.ndarray)]
held = sum(0 if column.strides == (0,) else column.nbytes for column in columns)
start = time.process_time()
content_hash(trace)
print(json.dumps({
    "requests": len(trace), "ids": len(trace.nodes), "nodes": trace.num_nodes, "seconds": seconds,
    "before": before, "peak": after, "held": held, "hash": time.process_time() - start, "hash_peak": peak(),
}))
"""


def azure_lines(requests: int) -> Iterator[str]:
    """Yield an Azure file: CRLF, seven decimals, about 5.5 requests a second."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    start = datetime(2030, 1, 2)
    for row in range(requests):
        at = start + timedelta(milliseconds=row * GAP_MS)
        yield f"{at:%Y-%m-%d %H:%M:%S.%f}0,{row * 7919 % 4000 + 2},{row * 31 % 600}\r\n"


def mooncake_lines(requests: int) -> Iterator[str]:
    """Yield a Mooncake file: conversations of `SESSION_TURNS` behind one block, 6 blocks longer a turn."""
    fresh = 1
    for row in range(requests):
        if row % SESSION_TURNS == 0:
            ids = [0]
        ids += range(fresh, fresh + 6)
        fresh += 6
        length = len(ids) * 512 - row % 500
        yield (
            json.dumps(
                {"timestamp": row * GAP_MS, "input_length": length, "output_length": 350, "hash_ids": ids}
            )
            + "\n"
        )


def write(path: Path, lines: Iterator[str]) -> None:
    """Write lines, packed where the name ends in .gz."""
    with path.open("wb") as file:
        packed = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) if path.suffix == ".gz" else file
        with io.TextIOWrapper(packed, encoding="utf-8", newline="") as text:
            text.writelines(lines)


def read(path: Path) -> dict[str, Any]:
    """Read a file in a fresh interpreter and return what it measured."""
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print one line a file."""
    parser = argparse.ArgumentParser(description="Memory and time of reading large traces.")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--only", choices=("azure", "mooncake"), help="one form alone")
    asked = parser.parse_args()
    forms: dict[str, Callable[[int], Iterator[str]]] = {"azure": azure_lines, "mooncake": mooncake_lines}
    print(
        f"{'file':16}{'MB':>7}{'requests':>12}{'ids':>13}{'nodes':>12}{'read s':>8}{'start MiB':>11}"
        f"{'peak MiB':>10}{'grown B/req':>13}{'held B/req':>12}{'hash s':>8}{'hash peak':>11}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for form in (asked.only,) if asked.only else forms:
            for suffix in ("", ".gz"):
                path = Path(folder) / f"{form}{suffix}"
                write(path, forms[form](asked.requests))
                found, size = read(path), path.stat().st_size
                path.unlink()
                grown = (found["peak"] - found["before"]) / found["requests"]
                print(
                    f"{path.name:16}{size / 1e6:7.1f}{found['requests']:12,}{found['ids']:13,}"
                    f"{found['nodes']:12,}{found['seconds']:8.1f}{found['before'] / 2**20:11.0f}"
                    f"{found['peak'] / 2**20:10.0f}{grown:13.1f}{found['held'] / found['requests']:12.1f}"
                    f"{found['hash']:8.1f}{found['hash_peak'] / 2**20:11.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
