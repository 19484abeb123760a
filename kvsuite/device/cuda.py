"""Reading the caching allocator of this process on one card."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import torch

from kvsuite.device.counters import CudaCounters, cuda_counters
from kvsuite.device.lock import gpu_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.device.counters import SegmentInfo


def counters_are_kept() -> bool:
    """Return whether the native caching allocator runs; ``cudaMallocAsync`` reports zeros instead."""
    return torch.cuda.get_allocator_backend() == "native"


def card_lock(device: str) -> AbstractContextManager[None]:
    """Return the lock of the card behind ``cuda:N``; no lock where the system has none to give."""
    if platform.system() != "Linux":
        return nullcontext()
    return gpu_lock(str(torch.cuda.get_device_properties(device).uuid))


def read_counters(device: str, *, device_wide: bool = False) -> CudaCounters:
    """Return this process's counters on ``device``, once all work queued there is done.

    ``device_wide`` adds what the driver says of the whole card, read under the card's lock.
    """
    used_bytes = total_bytes = None
    torch.cuda.synchronize(device)
    if device_wide:
        with card_lock(device):
            free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        used_bytes = total_bytes - free_bytes
    index = torch.device(device).index or 0
    read_snapshot = cast("Callable[[], list[SegmentInfo]]", torch.cuda.memory_snapshot)
    return cuda_counters(
        torch.cuda.memory_stats(device),
        [segment for segment in read_snapshot() if segment["device"] == index],
        device_used_bytes=used_bytes,
        device_total_bytes=total_bytes,
    )


def settle(device: str) -> None:
    """Give every segment that nobody uses back to the driver, so that what follows starts from nothing."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
