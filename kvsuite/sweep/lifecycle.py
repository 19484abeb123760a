"""The life that an option must survive before it ships: forks, beams, and clients that go away together.

The stretch of the trace around the fullest step is replayed step by step, every token written and read back.
Forks and beams are drawn onto it, and at its fullest step half of those who are under way go at once. It is
survived when no law is broken, the pool drains, and every request came to the end that it must come to: what
fits the pool is neither refused for good nor left waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.registry import open_engine
from kvsuite.record.decision_rows import LifecycleRow
from kvsuite.replay.driver import replay
from kvsuite.replay.endings import endings
from kvsuite.trace.model import ABSENT
from kvsuite.trace.overlay import apply_overlay

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.errors import EngineError
    from kvsuite.ledger.invariants import Violation
    from kvsuite.sweep.fullest import Rows, Stretch
    from kvsuite.trace.model import Trace

FORKS = ("fork:every=16,n=2", "beam:every=24,width=4,after=3")
"""Drawn onto the stretch: see `kvsuite.trace.overlay`."""
SEED = 7
"""Of every draw, so that a decision is the same again."""
GONE_SHARE = 0.5
"""Of those under way at the fullest step."""


def lived_through(stretch: Stretch, seed: int = SEED) -> LifecycleRow:
    """Take an option's engine through the life of its stretch.

    **Raises:** `EngineError` when the engine leaves nothing to judge.
    """
    trace, leaving = eventful(stretch, seed)
    scheduler = replace(stretch.cell.scheduler, costs=stretch.costs)
    engine = open_engine(stretch.cell.engine, stretch.cell.config(trace))
    done = replay(trace, engine, scheduler=scheduler)
    pool = done.timeline.pools[0]
    found = [*done.violations, *endings(trace, done)]
    return LifecycleRow(
        requests=len(trace),
        forked=pool.total("forked"),
        denied=pool.total("fork_denied"),
        left_at_once=leaving,
        preempted=pool.total("preempted"),
        tokens_read=done.content.tokens_read,
        broken=_told(found),
    )


def cut_short(stretch: Stretch, error: EngineError) -> LifecycleRow:
    """Return the life of a stretch whose engine left nothing to judge."""
    return LifecycleRow(
        requests=len(stretch.trace),
        forked=0,
        denied=0,
        left_at_once=0,
        preempted=0,
        tokens_read=0,
        broken=str(error).splitlines()[0],
    )


def eventful(stretch: Stretch, seed: int) -> tuple[Trace, int]:
    """Return the stretch with forks, beams and a cancellation burst, and how many go away in that."""
    forked = apply_overlay(stretch.trace, *FORKS, seed=seed)
    rows = stretch.rows(forked)
    leaving = _leaving(forked, rows, np.random.default_rng(seed))
    cancel_at_us = forked.cancel_at_us.copy()
    # Who goes is gone at the next step, which begins when the fullest one ends.
    cancel_at_us[leaving] = int(rows.clock.step_end_us[rows.fullest]) if len(leaving) else ABSENT
    return replace(forked, cancel_at_us=cancel_at_us), len(leaving)


def _leaving(trace: Trace, rows: Rows, chance: np.random.Generator) -> Int64Array:
    step = rows.fullest
    under_way = (rows.arrived_step >= 0) & (rows.arrived_step <= step) & (rows.ended_step > step)
    free = np.flatnonzero(under_way & (trace.cancel_at_us < 0) & (trace.cancel_after < 0))
    chosen = chance.permutation(free)[: round(GONE_SHARE * len(free))]
    return np.sort(chosen).astype(np.int64)


def _told(found: list[Violation]) -> str | None:
    if not found:
        return None
    return f"{found[0]}" + (f" (and {len(found) - 1:,} more)" if len(found) > 1 else "")
