"""What two programs that count alike must agree on at every step, and its digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.replay_speed.vllm_manager import digest
from kvsuite.ledger.summary import summary_of

if TYPE_CHECKING:
    from kvsuite.ledger.timeline import Timeline

COLUMNS = ("running", "waiting", "live_blocks", "preempted", "admitted", "finished")
"""Columns of the ledger after the step, in the order of `bench.replay_speed.vllm_manager.Row`."""


def shared_digest(timeline: Timeline) -> str:
    """Return the digest of step and `COLUMNS` over all steps."""
    columns = [timeline.pools[0].column(name) for name in COLUMNS]
    return digest(np.stack([timeline.steps, *columns], axis=1))


def whole_digest(timeline: Timeline) -> str:
    """Return the digest of every column at every step, as a summary of the ledger has it."""
    return summary_of(timeline.pools[0], timeline.steps).digest
