"""A rejected control: the check that only counts, kept to show how little it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec


def counter_only(snapshot: PoolSnapshot, spec: PoolSpec) -> int:
    """Return ``used + free - total`` in blocks by the engine's own counts: 0 where they agree.

    Used is the number of blocks with a reference count above 0, or with an entry in a table where the engine
    keeps no counts; free takes in cached, quarantined and never allocatable blocks. Needs a full snapshot.

    Published as a control and rejected: it asks *how many*, never *which*. Both terms come from the engine's
    own bookkeeping, and a fault moves both sides alike: a leaked block still counts as used, a block handed
    out twice or freed too early still counts once, a wrong table or a slot with another's content changes no
    count at all, and bytes, gauges, pins and refusals are outside the sum.
    """
    return _used_blocks(snapshot) + _unused_blocks(snapshot) - spec.num_blocks


def _used_blocks(snapshot: PoolSnapshot) -> int:
    if snapshot.ref_counts is not None:
        return int(np.count_nonzero(snapshot.ref_counts))
    return len(np.setdiff1d(snapshot.table_blocks, snapshot.null_ids))


def _unused_blocks(snapshot: PoolSnapshot) -> int:
    """Count blocks outside every table; a pin is a holder, so that pinned ones are counted as used."""
    held_back = len(snapshot.quarantined)
    if snapshot.ref_counts is not None:
        held_back = len(np.setdiff1d(snapshot.quarantined, snapshot.pinned))
    return len(snapshot.free) + len(snapshot.cached) + held_back + len(snapshot.never_allocatable)
