"""Who leaves, in compiled form: clients that go away, and what an end means for those that were to come.

The rules are those of `kvsuite.replay.population`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.fields import CANCELLED, ENDED, NEW, ORPHANED, RUNNING, WAITING, A, C, F, S
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.tables import give_up_slot, remove_running
from kvsuite.replay.compiled.timing import has_gone, note_span

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import Int64Array, State


@compiled
def cancel_due(s: State, step: int) -> None:
    """Let the clients go that are due by ``step``, by request index."""
    c = s.c
    count = c[C.DUE_NEXT]
    for k in range(count):
        s.due[0, k] = s.due[1, k]
    c[C.DUE_NEXT] = 0
    while c[C.NEXT_CANCEL] < len(s.cancel_order):
        request = s.cancel_order[c[C.NEXT_CANCEL]]
        if not has_gone(s, request, step):
            break
        c[C.NEXT_CANCEL] += 1
        s.due[0, count] = request
        count += 1
    if count == 0:
        return
    _sort(s.due, count)
    for k in range(count):
        request = s.due[0, k]
        if s.fate[F.STATUS, request] == WAITING:
            stop_waiting(s, request)
        elif s.fate[F.STATUS, request] == RUNNING:
            slot = s.fate[F.SLOT_OF, request]
            if s.slots[S.DECODING, slot]:
                note_span(s, slot, False)
            remove_running(s, slot)
            give_up_slot(s, slot)
        else:
            continue
        end(s, request, CANCELLED, step)
        s.row[Col.CANCELLED] += 1


@compiled
def _sort(due: Int64Array, count: int) -> None:
    """Sort the first ``count`` of ``due[0]``: what a time of cancellation brought is sorted already."""
    for k in range(1, count):
        value, place = due[0, k], k
        while place > 0 and due[0, place - 1] > value:
            due[0, place] = due[0, place - 1]
            place -= 1
        due[0, place] = value


@compiled
def plan_cancel(s: State, request: int, step: int) -> None:
    """Note that the client goes away in the next step, where that is known by now."""
    passed = s.asked[A.CANCEL_STEP, request] >= 0 and has_gone(s, request, step)
    counted = (
        s.asked[A.CANCEL_AFTER, request] >= 0
        and s.fate[F.GENERATED, request] >= s.asked[A.CANCEL_AFTER, request]
    )
    if passed or counted:
        s.due[1, s.c[C.DUE_NEXT]] = request
        s.c[C.DUE_NEXT] += 1


@compiled
def end(s: State, request: int, ending: int, step: int) -> None:
    """End a request that holds nothing; children yet to come are orphaned, and theirs."""
    c = s.c
    s.fate[F.STATUS, request] = ENDED
    s.fate[F.ENDING, request] = ending
    s.fate[F.ENDED_STEP, request] = step
    c[C.ENDED] += 1
    if not c[C.FORKS]:
        return
    todo, done = 0, 0
    current = request
    while True:
        for place in range(s.child_offsets[current], s.child_offsets[current + 1]):
            child = s.children[place]
            if s.fate[F.STATUS, child] == NEW:
                s.fate[F.STATUS, child] = ENDED
                s.fate[F.ENDING, child] = ORPHANED
                s.fate[F.ENDED_STEP, child] = step
                c[C.ENDED] += 1
                s.orphans[todo] = child
                todo += 1
        if done == todo:
            return
        current = s.orphans[done]
        done += 1


@compiled
def stop_waiting(s: State, request: int) -> None:
    """Take a request out of the queue."""
    c = s.c
    before, after = s.fate[F.PREVIOUS_WAITING, request], s.fate[F.NEXT_WAITING, request]
    if before >= 0:
        s.fate[F.NEXT_WAITING, before] = after
    else:
        c[C.WAIT_HEAD] = after
    if after >= 0:
        s.fate[F.PREVIOUS_WAITING, after] = before
    else:
        c[C.WAIT_TAIL] = before
    c[C.WAITING] -= 1
