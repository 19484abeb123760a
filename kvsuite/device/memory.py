"""From what a device reports to one closing line, and the identities its counters must keep.

    observed = pool + tables + workspace + rounding + reserve + unattributed

* **smaps** (Linux CPU). Observed: the sizes of the areas the suite's buffers live in, as the kernel
  reports them. Rounding: up to the page. Reserve: none, nothing stands between the suite and the kernel.
* **cuda caching allocator**. Everything is a change since before the pool was made. Observed: reserved
  bytes. Rounding: active less requested bytes, what block sizes were rounded up by. Reserve: reserved
  less active bytes, what the allocator holds and nobody asked for; negative where the pool went into
  segments that were reserved before. No figure is clamped.

``unattributed`` is what is left; both observers are exact, so its bound is 0: anything else that the
process allocates on the card between two readings shows there. Pool, tables and workspace come from
shapes, never from the observer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from kvsuite.device.reading import DeviceLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.device.counters import CudaCounters

SMAPS = "smaps"
CUDA_ALLOCATOR = "cuda caching allocator"


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """What was asked for, from shapes alone."""

    pool_bytes: int
    tables_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything asked for."""
        return self.pool_bytes + self.tables_bytes + self.workspace_bytes


def cuda_line(step: int, before: CudaCounters, now: CudaCounters, held: HeldBytes) -> DeviceLine:
    """Return the line of the suite's own buffers on a card, as changes since ``before`` they were made."""
    change = now.all - before.all
    return DeviceLine(
        step=step,
        owner="suite",
        observer=CUDA_ALLOCATOR,
        observed_bytes=change.reserved_bytes,
        pool_bytes=held.pool_bytes,
        tables_bytes=held.tables_bytes,
        workspace_bytes=held.workspace_bytes,
        rounding_bytes=change.active_bytes - change.requested_bytes,
        reserve_bytes=change.reserved_bytes - change.active_bytes,
        unattributed_bytes=change.requested_bytes - held.total_bytes,
    )


@dataclass(frozen=True, slots=True)
class AreaBytes:
    """One buffer in a mapping of its own: what was asked for, and what the kernel reports."""

    asked_bytes: int
    page_bytes: int
    mapped_bytes: int
    committed_bytes: int


def smaps_line(
    step: int,
    held: HeldBytes,
    pools: Sequence[AreaBytes],
    others: Sequence[AreaBytes],
    expected_committed_bytes: int,
) -> DeviceLine:
    """Return the line of the suite's own buffers in Linux memory.

    ``others`` are tables and workspace. ``mapped``, ``committed`` and what is expected of it speak of
    the pools alone.
    """
    areas = [*pools, *others]
    observed_bytes = sum(area.mapped_bytes for area in areas)
    rounding_bytes = sum(-area.asked_bytes % area.page_bytes for area in areas)
    return DeviceLine(
        step=step,
        owner="suite",
        observer=SMAPS,
        observed_bytes=observed_bytes,
        pool_bytes=held.pool_bytes,
        tables_bytes=held.tables_bytes,
        workspace_bytes=held.workspace_bytes,
        rounding_bytes=rounding_bytes,
        reserve_bytes=0,
        unattributed_bytes=observed_bytes - held.total_bytes - rounding_bytes,
        mapped_bytes=sum(area.mapped_bytes for area in pools),
        committed_bytes=sum(area.committed_bytes for area in pools),
        expected_committed_bytes=expected_committed_bytes,
    )


def claimed_cache_gap(claimed_cache_bytes: int, line: DeviceLine) -> str | None:
    """Return what is wrong with the bytes that are claimed as cache; ``None`` where they are the pool's.

    What an allocator rounded up or holds in reserve, tables and workspace are never useful cache. Where
    some of these lines make up the difference exactly, they are named.
    """
    if line.pool_bytes is None or claimed_cache_bytes == line.pool_bytes:
        return None
    gap_bytes = claimed_cache_bytes - line.pool_bytes
    never_cache = {
        "the allocator's reserve": line.reserve_bytes,
        "rounding": line.rounding_bytes,
        "block tables": line.tables_bytes,
        "workspace": line.workspace_bytes,
    }
    parts = {name: size for name, size in never_cache.items() if size}
    counted = next(
        (
            " and ".join(names)
            for count in range(1, len(parts) + 1)
            for names in combinations(parts, count)
            if sum(parts[name] for name in names) == gap_bytes
        ),
        None,
    )
    cause = f"{counted} counted as cache" if counted else "no line of the reading accounts for it"
    return (
        f"{claimed_cache_bytes} bytes are claimed as cache, the pools hold {line.pool_bytes}: "
        f"{gap_bytes:+} bytes, {cause}"
    )
