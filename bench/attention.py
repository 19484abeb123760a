"""What a block size costs decode attention on this CPU: paged against the contiguous control, on one thread.

    python bench/attention.py [--quick] [--sequences 8] [--context 2048] [--rounds 15] [--dtypes bf16,fp32]

Every line reads the same memory. Times are the CPU time of this thread; a round calls everything once, in an
order of its own, each call after one that is not timed. A ratio is paged over control of the same round: its
median and quartiles over the rounds. Shares are of what plain reading reaches in the same run.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from statistics import median, quantiles
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.bandwidth import PlainRead
from kvsuite.device.attention.kernels import kernel_named
from kvsuite.device.attention.pool import OneBuffer
from kvsuite.device.attention.sdpa import ContiguousSdpa
from kvsuite.device.select import device_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvsuite.device.attention.call import DecodeAttention

QUERY_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_SIZES, QUICK_ROUNDS = (1, 16, 256), 9
CACHE_BYTES = 64 << 20
"""What a last-level cache may keep: less than this says nothing of memory."""
KERNELS = ("c-prefetch", "c-plain")
Key = tuple[str, str, int]
"""Kernel, table (control, in order, shuffled) and block size."""


def calls_of(
    kernel: DecodeAttention, pool: OneBuffer, query: torch.Tensor, sizes: Iterable[int]
) -> dict[Key, Callable[[], torch.Tensor]]:
    """Return the control and a call for each table and block size; all read ``pool``'s buffer."""
    scale = HEAD_DIM**-0.5
    whole = pool.contiguous()

    def control() -> torch.Tensor:
        return kernel(query, whole, None, pool.lengths, block_size=pool.context, scale=scale)

    def through(table: torch.Tensor, block_size: int) -> Callable[[], torch.Tensor]:
        view = pool.view(block_size)
        return lambda: kernel(query, view, table, pool.lengths, block_size=block_size, scale=scale)

    calls: dict[Key, Callable[[], torch.Tensor]] = {(kernel.name, "control", 0): control}
    for size in sizes:
        calls[kernel.name, "in order", size] = through(pool.in_order(size), size)
        calls[kernel.name, "shuffled", size] = through(pool.shuffled(size), size)
    return calls


def timed(calls: dict[Key, Callable[[], object]], rounds: int) -> dict[Key, list[float]]:
    """Return the thread CPU seconds of each call in each round."""
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for number in range(rounds):
        order = list(calls.items())
        random.Random(number).shuffle(order)
        for key, call in order:
            call()
            began = time.thread_time()
            call()
            seconds[key].append(time.thread_time() - began)
    return seconds


def report(dtype: Dtype, pool: OneBuffer, seconds: dict[Key, list[float]], same: dict[Key, bool]) -> None:
    """Print a table of one dtype."""
    ceiling = pool.nbytes / median(seconds["plain read", "", 0]) / 1e9
    print(f"\n{dtype.value}: {pool.nbytes / 2**20:.0f} MiB read a call, plain reading {ceiling:.1f} GB/s")
    if pool.nbytes < CACHE_BYTES:
        print("a cache may keep that much: these times say nothing of memory")
    print(f"{'kernel':<16}{'table':<10}{'block':>6}{'ms':>9}{'GB/s':>7}{'share':>7}   ratio (quartiles)")
    for key, times in seconds.items():
        name, table, size = key
        rate = pool.nbytes / median(times) / 1e9
        line = (
            f"{name:<16}{table:<10}{size or '':>6}{median(times) * 1e3:9.3f}{rate:7.1f}{rate / ceiling:7.0%}"
        )
        if table in ("in order", "shuffled"):
            control = seconds[name, "control", 0]
            ratios = [paged / whole for paged, whole in zip(times, control, strict=True)]
            low, middle, high = quantiles(ratios, n=4, method="inclusive")
            line += f"   {middle:.3f} ({low:.3f}, {high:.3f})"
        if key in same:
            line += "  same bits" if same[key] else "  OTHER BITS"
        print(line)


def measure(dtype: Dtype, sequences: int, context: int, sizes: Iterable[int], rounds: int) -> bool:
    """Time and print one dtype; return whether every table in order gave the control's bits."""
    pool = OneBuffer(sequences, context, kv_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=dtype)
    query = torch.randn(sequences, QUERY_HEADS, HEAD_DIM).to(pool.buffer.dtype)
    calls: dict[Key, Callable[[], object]] = {}
    same: dict[Key, bool] = {}
    for name in KERNELS:
        mine = calls_of(kernel_named(name), pool, query, sizes)
        due = mine[name, "control", 0]()
        same |= {key: torch.equal(call(), due) for key, call in mine.items() if key[1] == "in order"}
        calls |= mine
    yardstick, read = ContiguousSdpa(pool.contiguous()), PlainRead()
    calls[yardstick.name, "", 0] = lambda: yardstick(query, scale=HEAD_DIM**-0.5)
    calls["plain read", "", 0] = lambda: read(pool.buffer)
    report(dtype, pool, timed(calls, rounds), same)
    return all(same.values())


def main() -> int:
    """Measure and print; return 1 where a table in order gives other bits than the control."""
    parser = argparse.ArgumentParser(description="What a block size costs decode attention on this CPU.")
    parser.add_argument(
        "--quick", action="store_true", help="2 sequences of 512 tokens, 3 block sizes, 9 rounds"
    )
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtypes", default="bf16,fp32")
    given = parser.parse_args()
    sizes = QUICK_SIZES if given.quick else BLOCK_SIZES
    rounds = QUICK_ROUNDS if given.quick else given.rounds
    torch.set_num_threads(1)
    dtypes = [Dtype.parse(text) for text in given.dtypes.split(",")]
    load = os.getloadavg()[0]
    print(f"{device_name('cpu')}, torch {torch.__version__}, load {load:.1f} before the run")
    print(
        f"{given.sequences} sequences of {given.context} tokens, {QUERY_HEADS}/{KV_HEADS} heads of {HEAD_DIM}"
    )
    agreed = [measure(dtype, given.sequences, given.context, sizes, rounds) for dtype in dtypes]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
