"""What a block size costs decode attention on a card: every kernel it has, against contiguous memory.

    python bench/gpu_attention.py [--device cuda] [--quick] [--rounds 21] [--dtype bf16] [--sizes 1,16,256]

At each of four shapes: the contiguous control, shuffled tables at each block size, and a plain copy of the
same bytes, both ways counted, as the ceiling. Caches are swept before each call. Lines that begin with
``summary`` are what bench/gpu_check.sh repeats at its end. With ``--device cpu`` the same goes through the
CPU's kernels, and the ceiling is plain reading.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median, quantiles
from typing import TYPE_CHECKING

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.kernels import available
from kvsuite.device.decoder_shapes import decoder_shape
from kvsuite.device.select import device_name, resolve_device
from kvsuite.device.timing.attention import AttentionBench
from kvsuite.device.timing.choice import control_for
from kvsuite.errors import KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.device.attention.call import DecodeAttention

SHAPES = ((1, 8192), (8, 2048), (32, 512), (8, 8192))
QUICK_SHAPES = ((1, 512), (2, 256), (4, 64), (2, 512))
MODEL = "llama-3.1-8b"


def measure(
    kernel: DecodeAttention,
    control: DecodeAttention,
    shape: tuple[int, int],
    sizes: Iterable[int],
    dtype: Dtype,
    device: str,
    rounds: int,
) -> str:
    """Time and print one kernel at one shape; return its line of the summary."""
    layer = decoder_shape(MODEL, num_layers=1, dtype=dtype)
    bench = AttentionBench.at_point(kernel, control, layer, shape, sizes, device=device)
    timings = bench.cold(rounds)
    nbytes = bench.pool.nbytes
    reads = timings.pop(("read", None), None)
    ceiling = None if reads is None else bench.read_bytes / median(reads)
    whole, told = timings["control", None], []
    for (part, size), times in timings.items():
        rate = nbytes / median(times)
        share = "" if ceiling is None else f"{rate / ceiling:6.0%}"
        ratios = [one / other for one, other in zip(times, whole, strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        name = part if size is None else f"block {size}"
        print(
            f"{kernel.name:<13}{shape[0]:>3} x {shape[1]:<6}{name:<10}{median(times):10.1f} us"
            f"{rate / 1e3:9.1f} GB/s{share}   {middle:.3f} ({low:.3f}, {high:.3f})"
        )
        if size is not None:
            told.append(f"{size}: {middle:.3f}")
    reached = (
        "" if ceiling is None else f", {nbytes / median(whole) / ceiling:.0%} of {ceiling / 1e3:,.1f} GB/s"
    )
    return (
        f"summary {kernel.name}, {shape[0]} x {shape[1]}: control{reached}; ratio at block {', '.join(told)}"
    )


def main() -> int:
    """Measure every kernel that runs here and decides; return 3 where there is none."""
    parser = argparse.ArgumentParser(
        description="Decode attention of a card's kernels, paged and contiguous."
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small shapes")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--sizes", default="1,4,16,64,256")
    given = parser.parse_args()
    device, dtype = resolve_device(given.device), Dtype.parse(given.dtype)
    torch.set_num_threads(1)  # a CPU's clock is that of this thread
    sizes = [int(size) for size in given.sizes.split(",")]
    print(f"{device_name(device)}, {MODEL}, {dtype.value}, medians of {given.rounds}")
    lines = []
    for choice in available(device, dtype):
        if choice.kernel is None or not choice.kernel.latency_verdict:
            print(f"{choice.name}: {choice.problem or 'says nothing of latency'}")
            continue
        try:
            control = control_for(choice.kernel, device, dtype)
        except KernelUnavailable as error:
            print(f"{choice.name}: no contiguous control: {error}")
            continue
        lines += [
            measure(choice.kernel, control, shape, sizes, dtype, device, given.rounds)
            for shape in (QUICK_SHAPES if given.quick else SHAPES)
        ]
    print("\n".join(lines) or "no kernel whose time decides")
    return 0 if lines else 3


if __name__ == "__main__":
    sys.exit(main())
