"""What an engine says of its own memory: a line that can be judged, and the laws of a claim (I10, I13).

Cache is what the pool's storages hold. What an allocator rounded up or keeps in reserve, workspace and tables
are none, a byte listed twice is one byte, and memory that nothing was written to is mapped and not committed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import STORAGE_ROLES
from kvsuite.ledger.invariants import Violation, device_closes, storages_hold_pools
from kvsuite.ledger.timeline import DeviceLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.snapshot import MemoryClaim, PoolSpec, Storage


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


def claim_laws(claim: MemoryClaim, pools: Sequence[PoolSpec], step: int = 0) -> Iterator[Violation]:
    """Yield what is wrong with a claim at any moment; `committed_bytes` needs the blocks in use as well."""
    line = claim_line(claim, step)
    yield from device_closes(line)
    yield from storages_hold_pools(line, pools)
    yield from overlaps(claim, step)
    yield from beyond_storages(claim, step)


def overlaps(claim: MemoryClaim, step: int = 0) -> Iterator[Violation]:
    """Yield storages that share bytes under two pointers; the same pointer twice is one storage."""
    distinct = {storage.data_pointer: storage for storage in claim.storages}
    ordered = sorted(distinct.values(), key=lambda storage: storage.data_pointer)
    for one, other in pairwise(ordered):
        shared = one.data_pointer + one.nbytes - other.data_pointer
        if shared > 0:
            message = f"{_named(one)} and {_named(other)} share {shared} bytes, expected none"
            yield Violation("claim-overlap", step, "engine", message)


def beyond_storages(claim: MemoryClaim, step: int = 0) -> Iterator[Violation]:
    """Yield a claim of more cache than all storages hold: what is beyond them is an allocator's own."""
    held = sum({storage.data_pointer: storage.nbytes for storage in claim.storages}.values())
    if claim.claimed_cache_bytes > held:
        message = (
            f"{claim.claimed_cache_bytes} bytes are claimed as cache, every storage together holds {held}: "
            f"{claim.claimed_cache_bytes - held} are in none, as an allocator's rounding and reserve are"
        )
        yield Violation("claim-beyond", step, "engine", message)


def committed_bytes(
    claim: MemoryClaim, pool: PoolSpec, used_blocks: int, page_bytes: int, step: int = 0
) -> Iterator[Violation]:
    """Yield committed bytes that ``used_blocks``, every block ever written to, do not account for.

    ``used * block bytes <= committed <= used * (block bytes + 2 * (page bytes - 1))``, and at most
    the pool in whole pages: a written block may bring in the rest of the pages at its two ends. Not judged
    where the claim has no such figure.
    """
    claimed = claim.committed_cache_bytes
    if claimed is None:
        return
    least = used_blocks * pool.block_bytes
    whole = -(-pool.pool_bytes // page_bytes) * page_bytes
    most = min(whole, used_blocks * (pool.block_bytes + 2 * (page_bytes - 1)))
    if not least <= claimed <= most:
        message = (
            f"{claimed} bytes are claimed to be committed, with {used_blocks} blocks ever written to: "
            f"expected {least} to {most} of the {pool.pool_bytes} mapped"
        )
        yield Violation("claim-committed", step, str(pool.key), message)


def _named(storage: Storage) -> str:
    return f"the {storage.role} storage of {storage.nbytes} bytes at {storage.data_pointer:#x}"
