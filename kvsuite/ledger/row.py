"""Columns of the ledger: one row a (step, pool), integers only.

Categories are token slots of the pool; `PoolTimeline.category_bytes` turns them into bytes. Each has a
source of its own and none is the remainder of the others:

    payload            recounted from tables and lengths: filled slots, a shared block once
    slack              empty slots of each last block (and of declared look-ahead), from tables and lengths
    over_reserved      slots of table entries beyond a sequence's last block, from tables and lengths
    cached, free,      the engine's own id lists, times the block size
    quarantined,
    never_allocatable

and they must add up to the pool: ``num_blocks * block_size``. ``ABSENT`` marks what could not be seen; it
is null in a record, and never 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

ABSENT = int(np.iinfo(np.int64).min)


class Kind(enum.Enum):
    """How a column behaves over time."""

    LEVEL = "level"
    """A state at this step; goldens store its change."""
    EVENT = "event"
    """A count of what happened since the row before."""
    DIGEST = "digest"
    """An order-sensitive hash of events so far: compared for equality only."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, how it behaves, its unit and its definition."""

    name: str
    kind: Kind
    unit: str
    text: str


def _levels(unit: str, **texts: str) -> tuple[Column, ...]:
    return tuple(Column(name, Kind.LEVEL, unit, text) for name, text in texts.items())


def _events(unit: str, **texts: str) -> tuple[Column, ...]:
    return tuple(Column(name, Kind.EVENT, unit, text) for name, text in texts.items())


COLUMNS: tuple[Column, ...] = (
    *_levels(
        "tokens",
        payload="slots that hold a live token; a shared block counts once",
        slack="empty slots in the last block of live sequences, declared look-ahead included",
        over_reserved="slots of live sequences beyond their last block",
        cached="slots of blocks no sequence holds whose content can still be hit",
        quarantined="slots of released blocks that a step or transfer may still touch",
        free="slots of free blocks",
        never_allocatable="slots of null and trash blocks",
        logical="sum of the live sequences' lengths",
        sharing_saved="logical tokens that need no slot of their own, because a block is shared",
        window_dropped="logical tokens that a window has let go",
        max_slack="largest slack of a live sequence",
        length_min="shortest live sequence",
        length_p50="median live sequence (nearest rank)",
        length_p90="90th percentile of live sequences (nearest rank)",
        length_max="longest live sequence",
        largest_admissible="longest request that could be admitted now",
    ),
    *_levels(
        "blocks",
        live_blocks="blocks held by a sequence",
        full_blocks="live blocks without an empty slot",
        final_blocks="live blocks that are the last of a sequence",
        shared_blocks="live blocks with more than one holder",
        table_entries="entries of all live tables, null ids apart",
        distinct_touched="different blocks held at any time so far",
    ),
    *_levels("requests", running="live sequences", waiting="requests that wait to be admitted"),
    *_events(
        "blocks",
        allocated="blocks that came into use with new content",
        reactivated="cached blocks that came into use again by a prefix hit",
        freed="blocks whose last holder let go",
        evicted="cached blocks that lost their content",
        private_transitions="table entries that went from a shared block to a private copy",
    ),
    *_events(
        "tokens",
        written="tokens written this step",
        hit="prompt tokens found in the prefix cache at a first admission",
        resumed_hit="tokens found in the prefix cache when a preempted sequence came back",
        copied="tokens copied by copy-on-write",
        recomputed="tokens written again after a preemption",
    ),
    *_events(
        "requests",
        arrived="requests that arrived",
        admitted="sequences admitted, resumed ones included",
        finished="requests that finished after this step",
        cancelled="requests whose client went away",
        rejected="requests refused for good, because they can never fit",
        forked="children that came to be after this step",
        fork_denied="children that found no seat or no room",
        preempted="sequences that gave way",
        refused_admissions="admissions refused for now",
        refused_growths="extensions refused",
    ),
    Column(
        "id_order", Kind.DIGEST, "digest", "order of block ids in new table entries, renumbered by first use"
    ),
)
COLUMN_NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)
INDEX: dict[str, int] = {name: i for i, name in enumerate(COLUMN_NAMES)}
CATEGORIES: tuple[str, ...] = COLUMN_NAMES[:7]
"""The columns whose sum is the pool."""
SCHEMA_VERSION = 1
"""Raised whenever a column is added, removed or comes to mean something else."""
