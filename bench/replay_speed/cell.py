"""One trace in one or more block sizes, in a process of its own so that its peak memory is its own.

    python -m bench.replay_speed.cell '{"workload": "azure", ...}'

takes an `Order` and prints a `Said`, both as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from bench.replay_speed.timing import cpu_s
from bench.replay_speed.workloads import WORKLOADS
from kvsuite.replay.compiled.columns import NUM_COLUMNS
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.trace.model import ABSENT, ForkKind

if TYPE_CHECKING:
    from kvsuite.replay.compiled.replay import CompiledReplay
    from kvsuite.trace.model import Trace

MAX_BUCKETS = 1024
_ROOT = Path(__file__).parents[2]


class Order(TypedDict):
    """What is asked for."""

    workload: str
    head: int | None
    """The first so many requests of the trace, or all."""
    copies: int
    block_sizes: list[int]
    threads: int
    runs: int


class Size(TypedDict):
    """What one block size came to; seconds are those of the thread, the median of the runs."""

    block_size: int
    seconds: list[float]
    steps: int
    blocks: int
    """Taken from the pool, and given back to it once."""
    written: int
    decoded: int
    preempted: int
    digest: str


class Said(TypedDict):
    """What the process came to."""

    requests: int
    reading_s: float
    converting_s: float
    wall_s: list[float]
    """Of all block sizes, one a run."""
    peak_bytes: int
    row_bytes: int
    sizes: list[Size]


class Tokens(NamedTuple):
    """Tokens of one replay."""

    written: int
    """Slots written, of prompts and of answers, and again after a preemption."""
    decoded: int
    """Those that were extended by one at a time."""


def tokens_of(trace: Trace, done: CompiledReplay) -> Tokens:
    """Return how many tokens a replay wrote; what a fork takes over from its parent is not decoded again."""
    forked = (trace.parent != ABSENT) & (trace.fork_kind != ForkKind.SPAWN) & (done.fates.arrived_step >= 0)
    taken_over = int((trace.fork_at - trace.prompt_tokens)[forked].sum())
    return Tokens(done.summary.total("written"), int(done.fates.generated_tokens.sum()) - taken_over)


def measured(order: Order) -> Said:
    """Run a cell here."""
    workload = WORKLOADS[order["workload"]]
    scheduler = workload.scheduler
    small = workload.trace(head=50)
    compiled_replay(small, workload.engine(64), scheduler, max_buckets=MAX_BUCKETS)
    reading_s, trace = cpu_s(lambda: workload.trace(head=order["head"], copies=order["copies"]))
    converting_s, requests = cpu_s(lambda: requests_of(trace, scheduler.step_us))

    def one(block_size: int) -> Size:
        started_s = time.thread_time()
        done = compiled_replay(
            trace, workload.engine(block_size), scheduler, requests=requests, max_buckets=MAX_BUCKETS
        )
        spent_s = time.thread_time() - started_s
        tokens = tokens_of(trace, done)
        return Size(
            block_size=block_size,
            seconds=[spent_s],
            steps=done.summary.num_steps,
            blocks=done.summary.total("allocated"),
            written=tokens.written,
            decoded=tokens.decoded,
            preempted=done.summary.total("preempted"),
            digest=done.summary.digest,
        )

    walls: list[float] = []
    sizes: list[Size] = []
    for _ in range(order["runs"]):
        started_s = time.perf_counter()
        with ThreadPoolExecutor(order["threads"]) as threads:
            now = list(threads.map(one, order["block_sizes"]))
        walls.append(time.perf_counter() - started_s)
        for before, size in zip(sizes, now, strict=False):
            size["seconds"] += before["seconds"]
        sizes = now
    return Said(
        requests=len(trace),
        reading_s=reading_s,
        converting_s=converting_s,
        wall_s=walls,
        peak_bytes=_peak_bytes(),
        row_bytes=8 * (1 + NUM_COLUMNS),
        sizes=sizes,
    )


def in_own_process(order: Order) -> Said:
    """Run a cell in a fresh process.

    **Raises:** `SystemExit` with what it printed, where it failed.
    """
    command = [sys.executable, "-m", "bench.replay_speed.cell", json.dumps(order)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{order} ended with {done.returncode}:\n{done.stderr}")
    said: Said = json.loads(done.stdout)
    return said


def _peak_bytes() -> int:
    """Return the most memory that this process has held; ``ru_maxrss`` would be its parent's, if larger."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no VmHWM: Linux is needed")


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
