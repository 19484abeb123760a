"""The compiled step drives slots: every token is read back as written, and faults are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled.replay import CompiledReplay, compiled_replay
from kvsuite.replay.driver import replay
from kvsuite.replay.worker import ProbeWorker, Worker
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array, PoolKey

SCHEDULER = SchedulerConfig(max_sequences=24, max_step_tokens=256)


def config(block_size: int, pool_tokens: int = 1536) -> EngineConfig:
    return EngineConfig(model_layout("tiny"), block_size, pool_tokens // block_size)


def probe(opened: EngineConfig) -> ProbeWorker:
    return ProbeWorker(ReferenceEngine(opened).spec.pools)


def played(workload: str, opened: EngineConfig, worker: Worker, *, read_all: bool = False) -> CompiledReplay:
    return compiled_replay(load_trace(workload), opened, SCHEDULER, worker=worker, read_all=read_all)


@pytest.mark.parametrize("read_all", [False, True])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("workload", ["divergence-burst", "churn", "shared-prompts"])
def test_every_token_is_read_as_written(workload: str, block_size: int, read_all: bool) -> None:
    opened = config(block_size)
    done = played(workload, opened, probe(opened), read_all=read_all)
    assert done.content is not None
    assert done.content.mismatches == 0
    assert done.content.tokens_written == done.summary.total("written")
    assert done.content.tokens_read >= done.content.tokens_written
    fast = compiled_replay(load_trace(workload), opened, SCHEDULER)
    assert done.summary.digest == fast.summary.digest
    assert done.violations == ()


def test_copies_are_made_as_the_driver_makes_them() -> None:
    opened = config(16)
    done = played("divergence-burst", opened, probe(opened))
    wanted = replay(load_trace("divergence-burst"), ReferenceEngine(opened), scheduler=SCHEDULER)
    assert done.summary.total("copied") == wanted.timeline.pools[0].total("copied") > 0
    assert done.content is not None
    assert done.content.tokens_written == wanted.content.tokens_written


def test_tensors_hold_what_the_probe_holds() -> None:
    pytest.importorskip("torch", reason="full slots need torch: install kvsuite[device]")
    from kvsuite.device.worker import SlotWorker

    opened = EngineConfig(model_layout("tiny").with_(dtype=Dtype.parse("bf16")), 16, 96)
    worker = SlotWorker(ReferenceEngine(opened).spec.pools, opened.layout)
    try:
        done = played("divergence-burst", opened, worker)
    finally:
        worker.close()
    assert done.content is not None
    assert (done.content.mode, done.content.mismatches) == ("full", 0)
    assert done.content.tokens_written == done.summary.total("written")


class NoCopy(ProbeWorker):
    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        """Forget it."""


class ShortCopy(ProbeWorker):
    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        super().copy(pool, source, target, num_tokens - 1)


class CopyBackwards(ProbeWorker):
    def copy(self, pool: PoolKey, source: int, target: int, num_tokens: int) -> None:
        super().copy(pool, target, source, num_tokens)


class WrongSlot(ProbeWorker):
    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        super().write(pool, slots ^ 1, tags)


class StaleWrite(ProbeWorker):
    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        super().write(pool, slots, np.roll(tags, 1) if len(tags) > 1 else tags + 1)


@pytest.mark.parametrize("broken", [NoCopy, ShortCopy, CopyBackwards, WrongSlot, StaleWrite])
def test_a_broken_worker_is_seen(broken: type[ProbeWorker]) -> None:
    opened = config(16)
    done = played("divergence-burst", opened, broken(ReferenceEngine(opened).spec.pools))
    assert done.content is not None
    assert done.content.mismatches > 0
    first = done.violations[0]
    assert first.invariant == "content"
    assert first.message == done.content.first_mismatch
    assert "does not hold what was written for it" in first.message
