"""Pins: blocks that someone other than a live sequence still needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cache.paged import PagedCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsuite.engine.snapshot import PoolSnapshot


class PinnedCache(PagedCache):
    """Lets blocks be held beside the sequences that hold them."""

    def pin(self, blocks: Sequence[int]) -> None:
        """Hold blocks that are in use or cached: they are neither taken nor evicted until unpinned."""
        self.pool.hold(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Take a pin from each block, in this order; one that nobody holds is cached or free then."""
        self._drop(blocks)


def with_pins(shot: PoolSnapshot, pins: Iterable[int]) -> PoolSnapshot:
    """Return a full snapshot with ``pins``, one entry a pin; those without a sequence are quarantined."""
    pinned = np.sort(np.fromiter(pins, np.int32))
    return replace(shot, pinned=pinned, quarantined=np.setdiff1d(pinned, shot.table_blocks))
