"""Engines that claim as cache what is none: reserve, rounding, workspace, untouched pages, a byte twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.block_table import blocks_for
from kvsuite.engine.extensions.observed import ObservedEngine
from kvsuite.engine.snapshot import MemoryClaim, Storage
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.contract import EngineSpec

_CASES = "conformance/test_pool.py::"
_KILLER = f"{_CASES}test_claimed_cache_is_what_the_storages_hold"
MIB = 1 << 20
OWN_SEGMENT_FROM_BYTES = 10 * MIB
"""Requests of this size and more get a segment of their own from PyTorch's CUDA caching allocator, ..."""
SEGMENT_UNIT_BYTES = 2 * MIB
"""... a multiple of this."""
SPLIT_REST_BYTES = MIB
"""A large segment is split only where more than this remains, and otherwise handed out whole."""


def own_segment_bytes(asked_bytes: int) -> int:
    """Return the segment of a request that gets one of its own: rounded up to a multiple of 2 MiB.

    What remains is less than 2 MiB. Up to 1 MiB of it is not split off, so the whole segment counts as
    allocated: 11.5 MiB asked, 12 MiB allocated.
    """
    return blocks_for(asked_bytes, SEGMENT_UNIT_BYTES) * SEGMENT_UNIT_BYTES


def reserved_after_survivor_bytes(pool_bytes: int) -> int:
    """Return what is reserved after ``warm-up of the pool's size; free it; small survivor; pool``.

    The warm-up's segment is free when a survivor of just over 1 MiB asks (up to 1 MiB it would go to
    the small pool), is the best fit, and is split, because more than 1 MiB remains. The pool no longer
    fits there and gets a second segment: twice the pool's own. 10 MiB is the smallest pool with which
    this happens; a smaller one shares a 20 MiB segment with the survivor.
    """
    return 2 * own_segment_bytes(pool_bytes)


@mutant(
    "survivor-reserve-as-cache",
    caught_by="claim-beyond",
    shown_by="a pool of 10 MiB or more",
    kind="POOL",
    killer=_KILLER,
)
class SurvivorReserveAsCache(ObservedEngine):
    """All that the allocator has reserved is claimed as cache, a segment split by a small survivor too."""

    def memory(self) -> MemoryClaim:
        """Claim what is reserved."""
        claim = super().memory()
        pool_bytes = claim.claimed_cache_bytes
        if pool_bytes < OWN_SEGMENT_FROM_BYTES:
            return claim
        return replace(claim, claimed_cache_bytes=reserved_after_survivor_bytes(pool_bytes))


@mutant(
    "rounding-as-cache",
    caught_by="device",
    shown_by="a pool of 10 MiB or more that is no multiple of 2 MiB",
    kind="POOL",
    killer=_KILLER,
)
class RoundingAsCache(ObservedEngine):
    """What the allocator rounded the pool up by is claimed as cache: 12 MiB where 11.5 were asked for."""

    def memory(self) -> MemoryClaim:
        """Claim what is allocated."""
        claim = super().memory()
        pool_bytes = claim.claimed_cache_bytes
        rest_bytes = own_segment_bytes(pool_bytes) - pool_bytes
        if pool_bytes < OWN_SEGMENT_FROM_BYTES or rest_bytes > SPLIT_REST_BYTES:
            return claim
        return replace(claim, claimed_cache_bytes=pool_bytes + rest_bytes)


@mutant(
    "workspace-as-cache",
    caught_by="device",
    shown_by="a workspace of a byte or more",
    kind="POOL",
    killer=_KILLER,
)
class WorkspaceAsCache(ObservedEngine):
    """Workspace is claimed as cache."""

    def memory(self) -> MemoryClaim:
        """Claim all but the tables."""
        claim = super().memory()
        cache_bytes = sum(storage.nbytes for storage in claim.storages if storage.role != "tables")
        return replace(claim, claimed_cache_bytes=cache_bytes)


@mutant(
    "alias-claimed-twice",
    caught_by="claim-beyond",
    shown_by="a pool larger than tables and workspace",
    kind="POOL",
    killer=_KILLER,
)
class AliasClaimedTwice(ObservedEngine):
    """Keys and values are two views of one buffer, and its bytes are claimed for each."""

    def memory(self) -> MemoryClaim:
        """List the buffer twice and add up."""
        claim = super().memory()
        pool = claim.storages[0]
        return replace(claim, storages=(pool, *claim.storages), claimed_cache_bytes=2 * pool.nbytes)


@mutant(
    "view-as-storage",
    caught_by="claim-overlap",
    shown_by="any pool",
    kind="POOL",
    killer=_KILLER,
)
class ViewAsStorage(ObservedEngine):
    """A view of the pool's second half is listed as a storage beside the pool."""

    def memory(self) -> MemoryClaim:
        """List it under the pointer where it begins."""
        claim = super().memory()
        pool = claim.storages[0]
        half = pool.nbytes // 2
        view = Storage("pool", pool.data_pointer + half, pool.nbytes - half, owner=pool.owner)
        return replace(claim, storages=(*claim.storages, view), claimed_cache_bytes=pool.nbytes + view.nbytes)


@mutant(
    "mapped-as-committed",
    caught_by="claim-committed",
    shown_by="a pool of which little was used",
    kind="POOL",
    killer=f"{_CASES}test_committed_bytes_are_those_of_blocks_that_were_written",
)
class MappedAsCommitted(ObservedEngine):
    """The whole mapping is claimed to be backed by memory, touched or not."""

    def committed_bytes(self) -> int:
        """Return what is mapped."""
        return self.spec.pools[0].pool_bytes


@mutant(
    "padding-as-payload",
    caught_by="bytes",
    shown_by="blocks that are padded to an alignment",
    kind="POOL",
    killer=f"{_CASES}test_padding_is_no_payload",
)
class PaddingAsPayload(ObservedEngine):
    """The pad at the end of each block is shared out among its tokens, as if they filled it."""

    @property
    def spec(self) -> EngineSpec:
        """Declare larger tokens and no pad."""
        spec = super().spec
        (pool,) = spec.pools
        token_bytes, rest = divmod(pool.block_bytes, pool.block_size)
        padless = replace(pool, bytes_per_token=token_bytes, pad_bytes_per_block=rest)
        return replace(spec, pools=(padless,))
