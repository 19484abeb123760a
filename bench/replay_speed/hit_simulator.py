"""The LRU of PyPI's ``kvcache-simulator``, its own C++ core, on one trace and one budget of blocks.

Run by an interpreter that has it: ``python hit_simulator.py TRACE BLOCK_SIZE BUDGET RUNS``. What it prints, a
JSON object, has the CPU seconds of the core's whole process (it reads three arrays, makes the tree of
prefixes, and replays), and those of one replay alone: what each of `REPEATS` more budgets adds to a process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The package is in this interpreter and not in that of the suite, whose mypy cannot see it.
from kvcache_sim.cpp_backend import (  # type: ignore[import-not-found]
    _write_binary_trace,
    ensure_cpp_simulator,
)
from kvcache_sim.trace import parse_trace_file  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Sequence

REPEATS = 20


def main() -> None:
    """Measure and print."""
    path, block_size, budget, runs = sys.argv[1], *map(int, sys.argv[2:5])
    trace = parse_trace_file(path, block_size=block_size)
    core = str(ensure_cpp_simulator())
    with tempfile.TemporaryDirectory() as folder:
        files = _write_binary_trace(trace, Path(folder))
        common = [
            *("--ids", str(files.ids), "--tokens", str(files.tokens)),
            *("--request-ends", str(files.request_ends), "--request-count", str(trace.request_count)),
            *("--total-blocks", str(len(trace.ids)), "--warmup-requests", str(trace.request_count // 2)),
        ]

        def batch(times: int) -> tuple[float, Any]:
            budgets = ",".join([str(budget)] * times)
            return spent([core, *common, "--policy", "batch", "--policies", "lru", "--capacities", budgets])

        pairs = [(batch(1), batch(1 + REPEATS)) for _ in range(runs)]
        whole = [spent([core, *common, "--policy", "lru", "--capacity", str(budget)])[0] for _ in range(runs)]
    said = pairs[-1][0][1]["points"][0]["lru"]
    found = {
        "version": version("kvcache-simulator"),
        "hit_tokens": said["hitTokens"],
        "total_tokens": said["totalTokens"],
        "first_request": trace.request_count // 2,
        "blocks": len(trace.ids),
        "process_s": whole,
        "replay_s": [(many - one) / REPEATS for (one, _), (many, _) in pairs],
    }
    print(json.dumps(found))


def spent(command: Sequence[str]) -> tuple[float, Any]:
    """Return the CPU seconds of a process, and the JSON that it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(said)


if __name__ == "__main__":
    main()
