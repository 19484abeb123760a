"""What is replayed: the public traces, tiled, with the pools and clocks that put them under pressure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.trace.load import load_trace
from kvsuite.trace.overlay import apply_overlay
from kvsuite.trace.tile import tiled

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace

VARIABLE = "KVSUITE_TRACES"
MAX_SEQUENCES = 256
ADDED = ("fork:every=50,n=2", "cancel:every=37")
"""What no public trace carries: one in 50 requests is sampled twice, one in 37 goes away."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A public trace, the pool it is replayed in, and the length of a step."""

    name: str
    file: str
    pool_tokens: int
    step_us: int

    def trace(self, *, head: int | None = None, copies: int = 1, added: bool = True) -> Trace:
        """Return the first ``head`` requests, ``copies`` times in a row; ``added`` puts forks and cancels in.

        **Raises:** `SystemExit` where the trace is not there.
        """
        one = load_trace(str(path_of(self.file)), limit=head)
        if added:
            one = apply_overlay(one, *ADDED)
        return one if copies == 1 else tiled(one, copies)

    def engine(self, block_size: int) -> EngineConfig:
        """Return the pool in blocks of ``block_size``, prefixes cached."""
        return EngineConfig(model_layout("tiny"), block_size, self.pool_tokens // block_size)

    @property
    def scheduler(self) -> SchedulerConfig:
        """Prompts come in chunks, 8,192 tokens a step."""
        return SchedulerConfig(max_sequences=MAX_SEQUENCES, step_us=self.step_us)

    def engine_like_vllm(self, block_size: int) -> EngineConfig:
        """Return a pool of as many usable blocks beside a null block, prefixes not cached."""
        return EngineConfig(
            model_layout("tiny"),
            block_size,
            self.pool_tokens // block_size + 1,
            prefix_cache=False,
            options={"null_blocks": 1},
        )

    @property
    def scheduler_like_vllm(self) -> SchedulerConfig:
        """Whole prompts: a full pool and a token for everybody do not exceed the budget."""
        return SchedulerConfig(MAX_SEQUENCES, self.pool_tokens + MAX_SEQUENCES, self.step_us)


AZURE = Workload("azure", "azure/AzureLLMInferenceTrace_conv.csv", 2**18, 150_000)
MOONCAKE = Workload("mooncake", "mooncake/conversation_trace.jsonl", 2**20, 60_000)
WORKLOADS = {workload.name: workload for workload in (AZURE, MOONCAKE)}


def path_of(file: str) -> Path:
    """Return where a public trace lies.

    **Raises:** `SystemExit` where it does not.
    """
    root = os.environ.get(VARIABLE)
    if root is None or not (Path(root) / file).exists():
        raise SystemExit(f"{VARIABLE} is {root!r}: expected the path of a folder that has {file}")
    return Path(root) / file
