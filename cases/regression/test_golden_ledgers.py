"""Ledgers of named workloads held against their goldens: an upgrade that changes allocation shows here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from kvsuite.plugin.golden_check import GoldenCheck
    from kvsuite.plugin.replays import Replayer
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

POOLS = {
    "boundary": 64,
    "cancel-burst": 400,
    "chat": 400,
    "churn": 300,
    "divergence-burst": 120,
    "handbook": 936,
    "long-context": 1024,
    "shared-prefix": 200,
    "thrash": 60,
}
"""Blocks of 16 tokens each workload runs in: enough for it, with pressure in most."""
STEP = SchedulerConfig(max_sequences=256, max_step_tokens=16_384, step_us=50_000)


def ledger(
    kv_replay: Replayer, trace: Trace, *, block_size: int, num_blocks: int, dtype: str = "bfloat16"
) -> Replay:
    """Replay ``trace``; a size or dtype is accepted everywhere or refused at the start."""
    try:
        return kv_replay(
            trace,
            block_size=block_size,
            num_blocks=num_blocks,
            dtype=dtype,
            scheduler=STEP,
            read_all=False,
        )
    except ConfigError as refusal:
        pytest.skip(f"the engine refuses blocks of {block_size} in {dtype}: {refusal}")


@pytest.mark.parametrize("workload", sorted(POOLS))
def test_ledger(kv_replay: Replayer, golden: GoldenCheck, workload: str) -> None:
    """Block 16, bfloat16: every workload."""
    trace = load_trace(workload)
    golden.check(ledger(kv_replay, trace, block_size=16, num_blocks=POOLS[workload]), trace)


@pytest.mark.parametrize("block_size", [1, 8, 64, 256])
def test_ledger_by_block_size(kv_replay: Replayer, golden: GoldenCheck, block_size: int) -> None:
    """The mixed workload in other block sizes, on the same pool in tokens."""
    trace = load_trace("churn")
    golden.check(ledger(kv_replay, trace, block_size=block_size, num_blocks=4800 // block_size), trace)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float8_e4m3fn"])
def test_ledger_by_dtype(kv_replay: Replayer, golden: GoldenCheck, dtype: str) -> None:
    """The same blocks in other element types: counts stay, bytes follow the type."""
    trace = load_trace("boundary")
    golden.check(ledger(kv_replay, trace, block_size=16, num_blocks=64, dtype=dtype), trace)
