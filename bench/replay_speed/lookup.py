"""The look-up of prefixes alone beside ``kvcache-simulator``, on Mooncake's conversation trace."""

from __future__ import annotations

import json
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.replay_speed.timing import cpu_s, median_text, table
from bench.replay_speed.workloads import MOONCAKE, path_of
from kvsuite.replay.compiled.lookup import prefix_lookup
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.replay.compiled.requests import requests_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.model import Trace

SIMULATOR = Path(__file__).with_name("hit_simulator.py")
"""Runs in another interpreter."""
BUDGETS_BLOCKS = (1_000, 10_000, 50_000, 100_000)
"""Of 182,790 different blocks; the simulator reports nothing where half the trace does not fill the cache."""
HEAD = (
    *("blocks", "hit tokens, both", "share", "its process, ms", "its replay alone, ms"),
    *("look-up alone, ms", "times", "ns a block"),
)
NOT_RUN = "not run: name an interpreter that has kvcache-simulator and a C++ compiler with --simulator PYTHON"


def against_the_simulator(python: Path | None, budgets: Sequence[int], runs: int) -> str:
    """Return the table of hit tokens and CPU time by budget, and the full replay's rate beside it.

    **Raises:** `SystemExit` where the hit tokens differ, or the simulator fails.
    """
    if python is None:
        return NOT_RUN
    trace = MOONCAKE.trace(added=False)
    converting_s, requests = cpu_s(lambda: requests_of(trace, MOONCAKE.step_us))
    rows = []
    version = ""
    for budget in budgets:
        look_up = partial(prefix_lookup, trace, budget, requests=requests)
        look_up()  # whatever has to be compiled is now
        theirs = _simulated(python, budget, runs, trace.block_size)
        version = theirs["version"]
        ours = [cpu_s(look_up) for _ in range(runs)]
        found = int(ours[-1][1][theirs["first_request"] :].sum())
        if found != theirs["hit_tokens"]:
            raise SystemExit(
                f"{budget} blocks: {found} hit tokens, kvcache-simulator {theirs['hit_tokens']}, of requests "
                f"from {theirs['first_request']} on: nothing is compared"
            )
        rows.append(_row(budget, theirs, [seconds for seconds, _ in ours]))
    return (
        f"kvcache-simulator {version}, {len(trace):,} requests of Mooncake's conversation trace, blocks of "
        f"{trace.block_size} tokens, LRU;\nhit tokens of the second half of the requests; converting the "
        f"trace takes {converting_s * 1e3:.0f} ms more, once\n\n{table(HEAD, rows)}\n\n{_full(trace, runs)}"
    )


def _row(budget: int, theirs: dict[str, Any], ours_s: Sequence[float]) -> tuple[str, ...]:
    middle, replay = statistics.median(ours_s), statistics.median(theirs["replay_s"])
    return (
        f"{budget:,}",
        f"{theirs['hit_tokens']:,}",
        f"{theirs['hit_tokens'] / theirs['total_tokens']:.4f}",
        median_text([1e3 * seconds for seconds in theirs["process_s"]]),
        median_text([1e3 * seconds for seconds in theirs["replay_s"]]),
        median_text([1e3 * seconds for seconds in ours_s]),
        f"{replay / middle:.2f}",
        f"{middle / theirs['blocks'] * 1e9:.0f}",
    )


def _full(trace: Trace, runs: int) -> str:
    """Say what the whole replay takes, with decode, pool, and a row a step."""
    requests = requests_of(trace, MOONCAKE.step_us)
    config = MOONCAKE.engine(trace.block_size)
    compiled_replay(trace.head(50), config, MOONCAKE.scheduler)  # whatever has to be compiled is now
    seconds = [
        cpu_s(lambda: compiled_replay(trace, config, MOONCAKE.scheduler, requests=requests))[0]
        for _ in range(runs)
    ]
    rate = len(trace) / statistics.median(seconds)
    return (
        f"the full replay, {config.num_blocks:,} blocks, decode and a row a step: {median_text(seconds)} s, "
        f"{rate:,.0f} requests/s"
    )


def _simulated(python: Path, budget: int, runs: int, block_size: int) -> dict[str, Any]:
    command = [str(python), "-P", str(SIMULATOR), str(path_of(MOONCAKE.file))]
    done = subprocess.run(
        [*command, str(block_size), str(budget), str(runs)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"kvcache-simulator ended with {done.returncode}:\n{done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said
