"""From ten thousand requests to a million, and over block sizes: what a token costs, and what memory."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench.replay_speed.cell import Order, in_own_process
from bench.replay_speed.timing import copy_bytes_per_s, median_text, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.replay_speed.cell import Said, Size

BYTES_PER_BLOCK = 16
"""An id of four bytes: read from the free stack, written to a table, and the same on its way back."""
HEAD = (
    *("requests", "block size", "CPU s", "steps", "M tokens written", "M decoded", "M tokens written/s"),
    *("M decoded/s", "ns a decoded token", "M blocks", "ns a block", "times the limit", "peak RSS"),
)


def growth(copies: Sequence[int], head: int, runs: int) -> str:
    """Return the table of Azure's first ``head`` requests in blocks of 16, over and over again."""
    bytes_per_s = copy_bytes_per_s()
    said = [
        in_own_process(
            Order(workload="azure", head=head, copies=count, block_sizes=[16], threads=1, runs=runs)
        )
        for count in copies
    ]
    rows = [row for each in said for row in _rows(each, bytes_per_s)]
    costs = [statistics.median(each["sizes"][0]["seconds"]) / each["sizes"][0]["written"] for each in said]
    return (
        f"Azure's first {head:,} requests, {_times(copies)} in a row; {_row_text(said[0])}; a token costs "
        f"{max(costs) / min(costs):.2f} times as much where it costs most as where it costs least\n\n"
        f"{table(HEAD, rows)}"
    )


def sweep(workload: str, head: int | None, copies: int, block_sizes: Sequence[int], runs: int) -> str:
    """Return the table of one trace in every block size, two at a time."""
    order = Order(
        workload=workload,
        head=head,
        copies=copies,
        block_sizes=list(block_sizes),
        threads=2,
        runs=runs,
    )
    said = in_own_process(order)
    rows = _rows(said, copy_bytes_per_s())
    return (
        f"{said['requests']:,} requests of {workload}, {len(block_sizes)} block sizes on two threads: "
        f"{median_text(said['wall_s'])} s wall, {_gib(said['peak_bytes'])} at the most; "
        f"{_row_text(said)};\n"
        f"before that {said['reading_s']:.1f} s to read and tile the trace, {said['converting_s']:.1f} s to "
        f"convert it once for all sizes\n\n{table(HEAD, rows)}"
    )


def limit_s(size: Size, row_bytes: int, bytes_per_s: float) -> float:
    """Return how long the bytes of a replay take that have to move, at the bandwidth of a plain copy.

    16 bytes a block that is taken and given back, and each row of the ledger written once.
    """
    return (BYTES_PER_BLOCK * size["blocks"] + row_bytes * size["steps"]) / bytes_per_s


def _rows(said: Said, bytes_per_s: float) -> list[tuple[str, ...]]:
    return [_row(said, size, bytes_per_s) for size in said["sizes"]]


def _row(said: Said, size: Size, bytes_per_s: float) -> tuple[str, ...]:
    seconds = statistics.median(size["seconds"])
    return (
        f"{said['requests']:,}",
        str(size["block_size"]),
        median_text(size["seconds"]),
        f"{size['steps']:,}",
        f"{size['written'] / 1e6:,.1f}",
        f"{size['decoded'] / 1e6:,.1f}",
        f"{size['written'] / seconds / 1e6:,.0f}",
        f"{size['decoded'] / seconds / 1e6:,.1f}",
        f"{seconds / size['decoded'] * 1e9:.1f}",
        f"{size['blocks'] / 1e6:,.2f}",
        f"{seconds / size['blocks'] * 1e9:.2f}",
        f"{seconds / limit_s(size, said['row_bytes'], bytes_per_s):.1f}",
        _gib(said["peak_bytes"]),
    )


def _row_text(said: Said) -> str:
    return f"a row of the ledger has {said['row_bytes']} bytes"


def _times(copies: Sequence[int]) -> str:
    return ", ".join(f"{count} times" if count > 1 else "once" for count in copies)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
