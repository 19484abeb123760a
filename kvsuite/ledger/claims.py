"""What an engine says of its own memory, as a line that can be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import STORAGE_ROLES
from kvsuite.ledger.timeline import DeviceLine

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import MemoryClaim


def claim_line(claim: MemoryClaim, step: int) -> DeviceLine:
    """Return the engine's storages as a device line, each data pointer counted once.

    Rounding and reserve belong to the allocator, which storages do not show: they are absent here.
    """
    distinct = {storage.data_pointer: storage for storage in claim.storages}
    by_role = dict.fromkeys(STORAGE_ROLES, 0)
    for storage in distinct.values():
        by_role[storage.role] += storage.nbytes
    return DeviceLine(
        step=step,
        owner="engine",
        observer="storages",
        observed_bytes=sum(by_role.values()),
        pool_bytes=by_role["pool"],
        tables_bytes=by_role["tables"],
        workspace_bytes=by_role["workspace"],
        claimed_cache_bytes=claim.claimed_cache_bytes,
    )
