"""What the suite costs on top of a real engine: one trace through an adapter, with the shares of each part.

    python bench/engine_overhead.py --engine vllm@0.33.0 --trace AzureLLMInferenceTrace_conv.csv

The engine runs in an environment of its own, with scheduler and adapter beside it; ledger and slots are kept
here, in parallel. Prints where the time of a timed run went, the median of ``--runs``, and beside it the wall
of as many runs that nothing is timed in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.cache.layout import model_layout
from kvsuite.engine import environments
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.hosted.engine import open_hosted
from kvsuite.engine.hosted.process import HostProcess, end_hosts
from kvsuite.replay import driver
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.content import ContentCheck
from kvsuite.replay.recorder import Recorder
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.trace.model import Trace

HOST_FILE = Path(__file__).with_name("timed_host.py")
RESULT_VARIABLE = "KVSUITE_BENCH_RESULT"
SLOTS = ("step", "before_release", "forked")


class Bench:
    """One engine on one trace."""

    def __init__(self, order: argparse.Namespace, trace: Trace, result: Path) -> None:
        self._name, _, version = order.engine.partition("@")
        self._python = environments.ensure(self._name, version or environments.NEWEST).python
        self._trace = trace
        self._result = result
        self._config = EngineConfig(
            layout=model_layout(order.layout),
            block_size=order.block_size,
            num_blocks=order.pool_tokens // order.block_size,
            prefix_cache=order.prefix_cache,
        )
        self._scheduler = SchedulerConfig()
        self._here: defaultdict[str, float] = defaultdict(float)
        self.rows = ""

    def wall_s(self, factory: str) -> float:
        """Replay once in a fresh process; return the seconds of the replay alone."""
        end_hosts()
        engine: Any = open_hosted(self._python, factory, self._config)
        engine.host.know(self._trace)
        self._here.clear()
        started_s = perf_counter()
        done = driver.replay(self._trace, engine, scheduler=self._scheduler)
        wall_s = perf_counter() - started_s
        self.rows = f"{len(done.timeline):,} steps, {done.content.tokens_written:,} tokens written"
        return wall_s

    def plain(self) -> float:
        """Return the seconds of a replay that nothing is timed in."""
        return self.wall_s(self._name)

    def timed(self) -> dict[str, float]:
        """Return the seconds of each part of a replay that is timed throughout."""
        here = self._here
        undo = [
            _time(here, "waiting", HostProcess, "_receive"),
            _time(here, "recorder", Recorder, "take"),
            *(_time(here, "slots", ContentCheck, name) for name in SLOTS),
        ]
        try:
            wall_s = self.wall_s(f"{HOST_FILE}:{self._name}")
        finally:
            for back in undo:
                back()
        there = json.loads(self._result.read_text(encoding="utf-8"))
        of = {name: there.get(name, 0.0) for name in ("engine", "verbs", "snapshot", "packing", "sending")}
        return {
            ENGINE: of["engine"],
            "adapter around them": of["verbs"] - of["engine"],
            "snapshots": of["snapshot"],
            "packing": of["packing"],
            "sending, with waits for the other side": of["sending"],
            "scheduler": there["host"] - of["verbs"] - of["snapshot"] - of["packing"] - of["sending"],
            "waiting for the host": here["waiting"],
            "unpacking": wall_s - here["waiting"] - here["recorder"],
            "ledger": here["recorder"] - here["slots"],
            "slots": here["slots"],
            "wall": wall_s,
        }


def _time(seconds: defaultdict[str, float], name: str, owner: type, method: str) -> Callable[[], None]:
    """Add the seconds of a method to ``name``; return what undoes it."""
    before = getattr(owner, method)

    def call(*arguments: Any, **options: Any) -> Any:
        started_s = perf_counter()
        try:
            return before(*arguments, **options)
        finally:
            seconds[name] += perf_counter() - started_s

    setattr(owner, method, call)
    return lambda: setattr(owner, method, before)


ENGINE = "the engine's own calls"
HOST_PARTS = (
    *(ENGINE, "adapter around them", "snapshots", "scheduler"),
    *("packing", "sending, with waits for the other side"),
)
HERE_PARTS = ("unpacking", "ledger", "slots", "waiting for the host")


def table(walls_s: list[float], shares: list[dict[str, float]]) -> str:
    """Return the figures as a table in Markdown."""
    part = {name: statistics.median(run[name] for run in shares) for name in shares[0]}
    engine_s, ratio = part[ENGINE], statistics.median(run["wall"] / run[ENGINE] for run in shares)
    lines = ["| where | part | seconds | of the engine's |", "|---|---|---:|---:|"]
    for place, names in (("beside the engine", HOST_PARTS), ("ledger's side", HERE_PARTS)):
        lines += [f"| {place} | {n} | {part[n]:.2f} | {part[n] / engine_s:.2f} |" for n in names]
    lines.append(f"| both, in parallel | **wall** | **{part['wall']:.2f}** | **{ratio:.2f}** |")
    spread = f"{min(walls_s):.2f} to {max(walls_s):.2f} s"
    untimed = f"{statistics.median(walls_s):.2f} s with nothing timed ({spread})"
    return "\n".join([*lines, "", f"median of {len(walls_s)}; {untimed}"])


def machine() -> str:
    """Return what the figures were taken on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores, python = os.cpu_count(), platform.python_version()
    return f"{model or platform.machine()}, {cores} cores, Python {python}, NumPy {np.__version__}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", required=True, help="vllm, transformers or sglang, with @VERSION")
    parser.add_argument("--trace", default="shared-prompts", help="a file or the name of a workload")
    parser.add_argument("--requests", type=int, help="take the first N requests")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--pool-tokens", type=int, default=262_144)
    parser.add_argument("--layout", default="llama-3.1-8b")
    parser.add_argument("--no-prefix-cache", dest="prefix_cache", action="store_false")
    parser.add_argument("--runs", type=int, default=3)
    order = parser.parse_args()
    trace = load_trace(order.trace, limit=order.requests)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "seconds.json"
        os.environ[RESULT_VARIABLE] = str(result)
        bench = Bench(order, trace, result)
        walls_s, shares = [], []
        for _ in range(order.runs):
            walls_s.append(bench.plain())
            shares.append(bench.timed())
    name = Path(order.trace).name
    print(f"{order.engine}, {name}: {len(trace):,} requests, blocks of {order.block_size} tokens, pool of")
    print(f"{order.pool_tokens:,} tokens; {bench.rows}; {machine()}; load {os.getloadavg()[0]:.1f}\n")
    print(table(walls_s, shares))


if __name__ == "__main__":
    main()
