"""What one reading of device memory says; plain data, so that the ledger needs no torch to hold it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One reading of device memory: who owns the bytes, who saw them, and how they split.

    ``observed = pool + tables + workspace + rounding + reserve + unattributed``; each is ``None`` where it
    could not be seen. ``owner`` is ``suite`` for the suite's own slots, ``engine`` for real storages.
    """

    step: int
    owner: str
    observer: str
    observed_bytes: int | None = None
    pool_bytes: int | None = None
    tables_bytes: int | None = None
    workspace_bytes: int | None = None
    rounding_bytes: int | None = None
    reserve_bytes: int | None = None
    unattributed_bytes: int | None = None
    unattributed_bound_bytes: int = 0
    mapped_bytes: int | None = None
    committed_bytes: int | None = None
    expected_committed_bytes: int | None = None
    claimed_cache_bytes: int | None = None
