"""Columns of the compiled row: those that are counted as things happen stand first."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np

from kvsuite.ledger.row import COLUMN_NAMES


class Col(IntEnum):
    """Places in ``State.row``; each member is a ledger column of the same name."""

    FREED = 0
    EVICTED = auto()
    ARRIVED = auto()
    ADMITTED = auto()
    FINISHED = auto()
    CANCELLED = auto()
    REJECTED = auto()
    FORKED = auto()
    FORK_DENIED = auto()
    PREEMPTED = auto()
    REFUSED_ADMISSIONS = auto()
    REFUSED_GROWTHS = auto()
    HIT = auto()
    RESUMED_HIT = auto()
    RECOMPUTED = auto()
    WRITTEN = auto()
    COPIED = auto()
    WAITING = auto()
    ALLOCATED = auto()
    REACTIVATED = auto()
    PRIVATE_TRANSITIONS = auto()
    PAYLOAD = auto()
    SLACK = auto()
    OVER_RESERVED = auto()
    CACHED = auto()
    QUARANTINED = auto()
    FREE = auto()
    NEVER_ALLOCATABLE = auto()
    LOGICAL = auto()
    SHARING_SAVED = auto()
    WINDOW_DROPPED = auto()
    MAX_SLACK = auto()
    LENGTH_MIN = auto()
    LENGTH_P50 = auto()
    LENGTH_P90 = auto()
    LENGTH_MAX = auto()
    LARGEST_ADMISSIBLE = auto()
    LIVE_BLOCKS = auto()
    FULL_BLOCKS = auto()
    FINAL_BLOCKS = auto()
    SHARED_BLOCKS = auto()
    TABLE_ENTRIES = auto()
    DISTINCT_TOUCHED = auto()
    RUNNING = auto()
    ID_ORDER = auto()


NUM_COLUMNS = len(Col)
ROW_ORDER = np.array([COLUMN_NAMES.index(column.name.lower()) for column in Col], np.int64)
"""int64[columns]: where each member of `Col` stands in a row of the ledger."""
