"""Seconds of CPU, taken in turn; the machine; tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

BANDWIDTH_BYTES = 1 << 26
"""Copied to measure bandwidth: larger than the caches, so that memory is measured."""


def cpu_s(call: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU seconds that this process spends in ``call``, and what it returns."""
    started_s = time.process_time()
    found = call()
    return time.process_time() - started_s, found


def in_turn(runs: int, *calls: Callable[[], tuple[float, T]]) -> list[tuple[list[float], T]]:
    """Call each of ``calls`` once a run, one after the other, so that a change of the machine falls on all.

    Each returns seconds and a finding. Returns the seconds of every run, and the last finding, per call.
    """
    taken = [[call() for call in calls] for _ in range(runs)]
    return [([seconds for seconds, _ in each], each[-1][1]) for each in zip(*taken, strict=True)]


def median_text(seconds: Sequence[float]) -> str:
    """Return the median, and behind it the spread of several."""
    digits = 4 if statistics.median(seconds) < 1 else 2
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    spread = f" ({low:.{digits}f} to {high:.{digits}f})" if len(seconds) > 1 else ""
    return f"{middle:.{digits}f}{spread}"


def copy_bytes_per_s() -> float:
    """Return bytes read and written a second by one copy from memory to memory; the median of nine."""
    source = np.ones(BANDWIDTH_BYTES // 8, np.int64)
    target = np.zeros_like(source)
    seconds = [cpu_s(lambda: np.copyto(target, source))[0] for _ in range(10)][1:]
    return 2 * BANDWIDTH_BYTES / statistics.median(seconds)


def machine() -> str:
    """Return what the figures are taken on, and how busy it is."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{time.strftime('%Y-%m-%d')}, {model or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, NumPy {np.__version__}, load {load}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown; all but the first column are aligned to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])
