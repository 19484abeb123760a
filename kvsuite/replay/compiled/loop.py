"""Steps in a row, a ledger row each, into a buffer that the caller empties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.fields import C
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.rows import take_row
from kvsuite.replay.compiled.step import begin, next_step, settle
from kvsuite.replay.compiled.timing import end_step, has_room, skip_idle_time

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import Int64Array, State


@compiled
def run(s: State, rows: Int64Array, order: Int64Array) -> int:
    """Take steps until ``rows``, int64[n, 1 + columns], are full or all is done; return how many were taken.

    A row begins with the number of its step; ``order``, int64[columns], is the place of each member of `Col`
    after it. Fewer than n rows with work left means that the lists of
    `kvsuite.replay.compiled.timing.has_room` are to be collected first: see `is_done`.
    """
    taken = 0
    while taken < len(rows) and has_room(s):
        step = next_step(s, s.c[C.STEP])
        if step < 0:
            return taken
        one_step(s, step)
        rows[taken, 0] = step
        for column in range(len(order)):
            rows[taken, 1 + order[column]] = s.row[column]
        taken += 1
    return taken


@compiled
def one_step(s: State, step: int) -> None:
    """Take one step; ``s.row`` is its row, and what its end frees is carried to the next."""
    open_step(s, step)
    close_step(s, step)


@compiled
def open_step(s: State, step: int) -> None:
    """Schedule a step; ``s.copies``, then ``s.writes``, are what a worker does in its forward pass."""
    c = s.c
    for column in range(len(s.row)):
        s.row[column] = 0
    if c[C.CARRIED_FREED]:
        s.row[Col.FREED] = c[C.CARRIED_FREED]
        c[C.CARRIED_FREED] = 0
    skip_idle_time(s)
    begin(s, step)


@compiled
def close_step(s: State, step: int) -> None:
    """Take the row, settle the step and end what is due."""
    c = s.c
    take_row(s)
    freed = s.row[Col.FREED]
    settle(s, step)
    c[C.CARRIED_FREED] = s.row[Col.FREED] - freed
    s.row[Col.FREED] = freed
    if c[C.CLOCKED]:
        end_step(s)
    c[C.STEP] = step + 1


@compiled
def is_done(s: State) -> bool:
    """Return whether every request has ended."""
    return next_step(s, s.c[C.STEP]) < 0
