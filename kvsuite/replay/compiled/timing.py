"""Time in compiled form: who is due, how long a step lasts, and which steps wrote whose answers.

The rules are those of `kvsuite.replay.step_clock` and `kvsuite.replay.step_meter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.fields import A, C, S
from kvsuite.replay.compiled.jit import compiled, inlined
from kvsuite.replay.step_costs import step_us

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State

_step_us = inlined(step_us)


@inlined
def has_arrived(s: State, request: int, step: int) -> bool:
    """Return whether a request has arrived by the time at which the step begins."""
    if s.c[C.CLOCKED]:
        return s.arrival_us[request] <= s.now_us[0]
    return s.asked[A.ARRIVAL_STEP, request] <= step


@inlined
def has_gone(s: State, request: int, step: int) -> bool:
    """Return whether the client of a request that names a time has gone away by then."""
    if s.c[C.CLOCKED]:
        return s.cancel_at_us[request] <= s.now_us[0]
    return s.asked[A.CANCEL_STEP, request] <= step


@compiled
def has_room(s: State) -> bool:
    """Return whether the lists that the caller collects have room for what one more step may add."""
    c = s.c
    added = 2 * c[C.MAX_SEQUENCES]
    return (
        c[C.FINAL_LENGTHS] + added < len(s.final_lengths)
        and c[C.SPANS] + added < len(s.spans)
        and c[C.ENDS] < len(s.ends_us)
    )


@compiled
def skip_idle_time(s: State) -> None:
    """Go on to the next arrival where nobody is there."""
    c = s.c
    if c[C.CLOCKED] and c[C.RUNNING] == 0 and c[C.WAITING] == 0:
        s.now_us[0] = max(s.now_us[0], float(s.arrival_us[s.arrivals[c[C.NEXT_ARRIVAL]]]))


@compiled
def end_step(s: State) -> None:
    """Charge for the step whose row was taken."""
    c, row, features = s.c, s.row, s.features
    features[0] = 1
    features[1] = c[C.DECODED]
    features[2] = c[C.DECODED_CONTEXT]
    features[3] = row[Col.WRITTEN] - c[C.DECODED]
    features[4] = c[C.PAIRS]
    features[5] = row[Col.TABLE_ENTRIES]
    features[6] = row[Col.ALLOCATED] + row[Col.FREED]
    s.now_us[0] += _step_us(s.costs, features)
    place = c[C.ENDS]
    s.ends_us[place] = s.now_us[0]
    for k in range(len(features)):
        s.measured[place, k] = features[k]
    c[C.ENDS] += 1


@compiled
def note_span(s: State, slot: int, lapsed: bool) -> None:
    """Note in which steps a decoder that is about to leave has written tokens.

    Each step has one decode phase and each decoder a token in it, so that ticks are steps. Of one that gives
    way after its token was ``lapsed``, that token is written when it becomes a decoder again.
    """
    c = s.c
    if not c[C.CLOCKED]:
        return
    place = c[C.SPANS]
    s.spans[place, 0] = s.slots[S.REQUEST, slot]
    s.spans[place, 1] = s.slots[S.BECAME, slot]
    s.spans[place, 2] = c[C.TICKS] - 1 - lapsed
    s.spans[place, 3] = lapsed
    c[C.SPANS] += 1
