"""The driver and the compiled core beside vLLM's own block manager: one trace, one policy, one ledger."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import kvsuite
from bench.replay_speed import vllm_manager
from bench.replay_speed.cell import Tokens, tokens_of
from bench.replay_speed.rows import shared_digest, whole_digest
from bench.replay_speed.timing import cpu_s, in_turn, median_text, table
from bench.replay_speed.workloads import AZURE, MAX_SEQUENCES
from kvsuite.engine import environments
from kvsuite.engine.adapters.vllm.loading import LOADER_VARIABLE
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.replay.driver import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.environments import Environment
    from kvsuite.ledger.timeline import Timeline
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.compiled.replay import CompiledReplay
    from kvsuite.trace.model import Trace

    Run = Callable[[], tuple[float, "Ledger"]]

VLLM = "0.33.0"
HEAD = ("program", "CPU s", "M tokens written/s", "M decoded/s", "times", "steps", "ledger")


class Ledger(NamedTuple):
    """What has to be the same, whoever counts."""

    steps: int
    digest: str


class Part(NamedTuple):
    """A trace and how it is replayed."""

    trace: Trace
    config: EngineConfig
    scheduler: SchedulerConfig
    digest: Callable[[Timeline], str]

    def warm(self) -> CompiledReplay:
        """Replay compiled, untimed: whatever had to be compiled is compiled then."""
        return compiled_replay(self.trace, self.config, self.scheduler)

    def compiled(self) -> tuple[float, Ledger]:
        """Replay compiled, requests converted before the clock starts."""
        requests = requests_of(self.trace, self.scheduler.step_us)
        seconds, done = cpu_s(
            lambda: compiled_replay(self.trace, self.config, self.scheduler, requests=requests)
        )
        assert done.timeline is not None
        return seconds, Ledger(len(done.timeline), self.digest(done.timeline))

    def driver(self) -> tuple[float, Ledger]:
        """Replay step by step; every token is written to the probe and read back."""
        engine = ReferenceEngine(self.config)
        seconds, done = cpu_s(lambda: replay(self.trace, engine, scheduler=self.scheduler))
        return seconds, Ledger(len(done.timeline), self.digest(done.timeline))


def with_vllm(requests: int, block_size: int, runs: int) -> str:
    """Return the table of all three, without what vLLM's manager has not.

    **Raises:** `SystemExit` where two ledgers differ.
    """
    part = Part(
        AZURE.trace(head=requests, added=False),
        AZURE.engine_like_vllm(block_size),
        AZURE.scheduler_like_vllm,
        shared_digest,
    )
    environment = environments.ensure("vllm", VLLM)
    with tempfile.TemporaryDirectory() as folder:
        order = _order(Path(folder), part)
        programs: dict[str, Run] = {
            f"vLLM {VLLM}, `KVCacheManager`": lambda: _vllm(environment, order),
            "compiled core": part.compiled,
            "step-by-step driver": part.driver,
        }
        return _table(
            part, programs, runs, f"blocks of {block_size}, nothing cached, no forks, whole prompts"
        )


def with_everything(requests: int, block_size: int, runs: int) -> str:
    """Return the table of driver and compiled core with every feature on.

    **Raises:** `SystemExit` where their ledgers differ.
    """
    part = Part(AZURE.trace(head=requests), AZURE.engine(block_size), AZURE.scheduler, whole_digest)
    programs: dict[str, Run] = {"step-by-step driver": part.driver, "compiled core": part.compiled}
    what = f"blocks of {block_size}, prefix cache, forks, cancellations, chunks of up to 8,192 tokens"
    return _table(part, programs, runs, what)


def _table(part: Part, programs: dict[str, Run], runs: int, what: str) -> str:
    """Measure, and return a table in which the first program is what the others are compared with."""
    tokens = tokens_of(part.trace, part.warm())
    found = in_turn(runs, *programs.values())
    first = statistics.median(found[0][0])
    rows = [
        (
            name,
            median_text(seconds),
            *_rates(tokens, statistics.median(seconds)),
            f"{first / statistics.median(seconds):.3g}",
            f"{ledger.steps:,}",
            f"`{ledger.digest[:12]}`",
        )
        for name, (seconds, ledger) in zip(programs, found, strict=True)
    ]
    if len({ledger for _, ledger in found}) > 1:
        raise SystemExit(f"the ledgers differ, so nothing is compared:\n{table(HEAD, rows)}")
    return f"{len(part.trace):,} requests, {what}\n\n{table(HEAD, rows)}"


def _rates(tokens: Tokens, seconds: float) -> tuple[str, str]:
    return f"{tokens.written / seconds / 1e6:.3g}", f"{tokens.decoded / seconds / 1e6:.3g}"


def _order(folder: Path, part: Part) -> Path:
    """Write down what vLLM's side is to do.

    **Raises:** `SystemExit` for a request that the pool can never hold, which it does not look for.
    """
    trace, config = part.trace, part.config
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    if longest > (config.num_blocks - 1) * config.block_size:
        raise SystemExit(f"a request of {longest} tokens does not fit the pool: take a larger one")
    arrivals = -(-trace.arrival_us // part.scheduler.step_us)
    np.save(folder / "columns.npy", np.stack([arrivals, trace.prompt_tokens, trace.output_tokens]))
    order: vllm_manager.Order = {
        "kvsuite": str(Path(kvsuite.__file__).parent),
        "columns": str(folder / "columns.npy"),
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "max_sequences": MAX_SEQUENCES,
    }
    path = folder / "order.json"
    path.write_text(json.dumps(order), encoding="utf-8")
    return path


def _vllm(environment: Environment, order: Path) -> tuple[float, Ledger]:
    """Replay once in vLLM's interpreter."""
    done = subprocess.run(
        [str(environment.python), "-P", str(Path(vllm_manager.__file__)), str(order)],
        env={**os.environ, LOADER_VARIABLE: environment.loader, "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"vLLM's side ended with {done.returncode}:\n{done.stderr}")
    said = json.loads(done.stdout)
    return said["seconds"], Ledger(said["steps"], said["digest"])
