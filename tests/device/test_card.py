"""What only a CUDA card can show: the model's rules, the worker's line, equal bits on every device."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, attention_layout
from kvsuite.device.counters import check_counters
from kvsuite.device.cuda_model import MIB, AllocatorRules, CudaAllocatorModel
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.ledger.invariants import device_closes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PAGED = attention_layout("paged", num_layers=2, kv_heads=2, head_dim=64)
POOL = PoolKey()

REPLAY = """
import json, sys, torch
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
torch.cuda.empty_cache()
live, readings = {}, []
for verb, name, size in json.load(sys.stdin):
    if verb == "malloc":
        live[name] = torch.empty(size, dtype=torch.uint8, device="cuda")
    elif verb == "free":
        del live[name]
    else:
        torch.cuda.empty_cache()
    readings.append(torch.cuda.memory_stats())
json.dump(readings, sys.stdout)
"""

HOLD = """
import sys
from kvsuite.cache.layout import model_layout
from kvsuite.device.slots import KVSlots
kv = KVSlots(model_layout("llama-3.1-8b"), num_blocks=512, block_size=16, device="cuda:0")
print("held", flush=True)
sys.stdin.readline()
"""


def operations(seed: int, count: int = 250) -> list[tuple[str, int, int]]:
    chance = random.Random(seed)
    live: list[int] = []
    found: list[tuple[str, int, int]] = []
    for name in range(count):
        pick = chance.random()
        if pick < 0.55 or not live:
            found.append(("malloc", name, int(2 ** chance.uniform(0, 25.6))))
            live.append(name)
        elif pick < 0.97:
            found.append(("free", live.pop(chance.randrange(len(live))), 0))
        else:
            found.append(("empty_cache", name, 0))
    return found


@pytest.mark.parametrize(
    ("rules", "settings"),
    [
        (AllocatorRules(), ""),
        (AllocatorRules(roundup_power2_divisions=4), "roundup_power2_divisions:4"),
        (
            AllocatorRules(roundup_power2_divisions=8, max_split_bytes=24 * MIB),
            "roundup_power2_divisions:8,max_split_size_mb:24",
        ),
    ],
    ids=["default", "divisions", "max-split"],
)
def test_the_model_counts_as_a_cuda_machine_does(card: str, rules: AllocatorRules, settings: str) -> None:
    del card
    planned = [("malloc", -1, 512), *operations(seed=7)]
    run = subprocess.run(
        [sys.executable, "-c", REPLAY],
        input=json.dumps(planned),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTORCH_ALLOC_CONF": settings},
    )
    model, blocks = CudaAllocatorModel(rules), {}
    for (verb, name, size), measured in zip(planned, json.loads(run.stdout), strict=True):
        if verb == "malloc":
            blocks[name] = model.malloc(size)
        elif verb == "free":
            model.free(blocks.pop(name))
        else:
            model.empty_cache()
        modelled = model.memory_stats()
        assert modelled == {key: measured[key] for key in modelled}, (verb, name, size)


@pytest.mark.parametrize("dtype", Dtype)
def test_a_card_holds_the_bits_a_cpu_holds(torch: ModuleType, card: str, dtype: Dtype) -> None:
    from kvsuite.device.slots import KVSlots

    slots = np.random.default_rng(0).permutation(64)
    tags = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 64, dtype=np.int64)
    pools = [KVSlots(PAGED.with_(dtype=dtype), 4, 16, device) for device in ("cpu", card)]
    for kv in pools:
        kv.write(slots, tags)
        kv.copy_block(1, 2, 7)
        kv.zero_block(3)
    on_cpu, on_card = pools
    assert torch.equal(on_cpu.buffer.bytes, on_card.buffer.bytes.cpu())
    assert (on_cpu.matches(slots, tags) == on_card.matches(slots, tags)).all()


def test_the_line_of_a_card_closes(card: str) -> None:
    from kvsuite.device.cuda import read_counters
    from kvsuite.device.worker import SlotWorker

    spec = PoolSpec(POOL, 1500, 16, PAGED.bytes_per_token)
    worker = SlotWorker((spec,), PAGED, card, table_rows=8)
    for step in range(3):
        worker.write(POOL, np.arange(step, 24_000, 3), np.arange(step, 24_000, 3))
        assert worker.matches(POOL, np.arange(step, 24_000, 3), np.arange(step, 24_000, 3)).all()
        (line,) = worker.memory(step)
        assert line.pool_bytes == 1500 * 16 * 1024
        assert line.tables_bytes == 8 * 1500 * 4
        assert line.unattributed_bytes == 0
        assert list(device_closes(line)) == []
        assert check_counters(read_counters(card)) == ()
    worker.close()


@contextmanager
def another_pool_on_the_card() -> Iterator[None]:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate("\n")


def test_workers_that_share_a_card_do_not_see_each_other(card: str) -> None:
    from kvsuite.device.cuda import read_counters
    from kvsuite.device.worker import SlotWorker

    worker = SlotWorker((PoolSpec(POOL, 1024, 16, PAGED.bytes_per_token),), PAGED, card)
    alone = read_counters(card, device_wide=True)
    with another_pool_on_the_card():
        (line,) = worker.memory(0)
        beside = read_counters(card, device_wide=True)
    assert list(device_closes(line)) == []
    assert line.unattributed_bytes == 0
    assert beside.all == alone.all
    assert alone.device_used_bytes is not None
    assert beside.device_used_bytes is not None
    assert beside.device_used_bytes - alone.device_used_bytes >= 512 * 16 * 131_072
    worker.close()
