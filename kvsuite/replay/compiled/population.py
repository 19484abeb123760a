"""Who is there, in compiled form: requests arrive, fork, give way, and leave.

The rules are those of `kvsuite.replay.population`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.blocks import hold_block
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import begin_decoding, length_of
from kvsuite.replay.compiled.fields import (
    CANCELLED,
    ENDED,
    FINISHED,
    FORK_DENIED,
    NEW,
    ORPHANED,
    REJECTED,
    RUNNING,
    WAITING,
    A,
    C,
    F,
    S,
)
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.tables import (
    give_up_slot,
    map_published,
    note_final_length,
    remove_running,
    take_slot,
)

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
        if s.asked[A.CANCEL_STEP, request] > step:
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
            _stop_waiting(s, request)
        elif s.fate[F.STATUS, request] == RUNNING:
            remove_running(s, s.fate[F.SLOT_OF, request])
            give_up_slot(s, s.fate[F.SLOT_OF, request])
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
def arrive_due(s: State, step: int) -> None:
    """Let the requests in that arrive up to ``step``."""
    c = s.c
    while c[C.NEXT_ARRIVAL] < len(s.arrivals):
        request = s.arrivals[c[C.NEXT_ARRIVAL]]
        if s.asked[A.ARRIVAL_STEP, request] > step:
            break
        c[C.NEXT_ARRIVAL] += 1
        _join(s, request, step)


@compiled
def plan_cancel(s: State, request: int, step: int) -> None:
    """Note that the client goes away in the next step, where that is known by now."""
    passed = s.asked[A.CANCEL_STEP, request] >= 0 and s.asked[A.CANCEL_STEP, request] <= step
    counted = (
        s.asked[A.CANCEL_AFTER, request] >= 0
        and s.fate[F.GENERATED, request] >= s.asked[A.CANCEL_AFTER, request]
    )
    if passed or counted:
        s.due[1, s.c[C.DUE_NEXT]] = request
        s.c[C.DUE_NEXT] += 1


@compiled
def preempt_youngest(s: State, step: int) -> int:
    """Send the youngest running sequence back to the head of the queue; return its slot."""
    c = s.c
    c[C.RUNNING] -= 1
    slot = s.running[c[C.RUNNING]]
    request = s.slots[S.REQUEST, slot]
    computed = length_of(s, slot)
    if s.slots[S.DECODING, slot]:
        if c[C.DECODED]:
            c[C.DECODED] -= 1
        if computed - s.asked[A.PROMPT, request] >= s.asked[A.OUTPUT, request]:
            note_final_length(s, computed)
    if s.fate[F.FIRST_TOKEN_STEP, request] == step:
        s.fate[F.FIRST_TOKEN_STEP, request] = -1
    s.fate[F.WRITTEN_BEFORE, request] = max(s.fate[F.WRITTEN_BEFORE, request], computed)
    if c[C.PREFIX_CACHE]:
        map_published(s, slot)
    give_up_slot(s, slot)
    s.fate[F.TARGET, request] = s.asked[A.PROMPT, request] + s.fate[F.GENERATED, request]
    s.fate[F.PREEMPTIONS, request] += 1
    s.fate[F.STATUS, request] = WAITING
    head = c[C.WAIT_HEAD]
    s.fate[F.PREVIOUS_WAITING, request] = -1
    s.fate[F.NEXT_WAITING, request] = head
    if head >= 0:
        s.fate[F.PREVIOUS_WAITING, head] = request
    else:
        c[C.WAIT_TAIL] = request
    c[C.WAIT_HEAD] = request
    c[C.WAITING] += 1
    s.row[Col.PREEMPTED] += 1
    return slot


@compiled
def stop_waiting_first(s: State) -> int:
    """Take the head of the queue out, and return it."""
    request = s.c[C.WAIT_HEAD]
    _stop_waiting(s, request)
    return request


@compiled
def fork_due(s: State, step: int) -> None:
    """Make the children whose parent has come to the fork point."""
    if s.c[C.PARENTS] == 0:
        return
    count = s.c[C.RUNNING]
    for k in range(count):
        slot = s.running[k]
        parent = s.slots[S.REQUEST, slot]
        if not s.slots[S.DECODING, slot]:
            continue
        for place in range(s.child_offsets[parent], s.child_offsets[parent + 1]):
            child = s.children[place]
            if s.fate[F.STATUS, child] != NEW:
                continue
            if s.asked[A.SPAWNED, child]:
                _join(s, child, step)
            elif length_of(s, slot) == s.asked[A.FORK_AT, child]:
                _fork(s, slot, child, step)


@compiled
def finish_due(s: State, step: int) -> None:
    """End the sequences that have all their tokens, oldest first."""
    c = s.c
    if c[C.FINISHING] == 0:
        return
    kept, count = 0, c[C.RUNNING]
    for k in range(count):
        slot = s.running[k]
        if not s.slots[S.FINISHING, slot]:
            s.running[kept] = slot
            kept += 1
            continue
        request = s.slots[S.REQUEST, slot]
        note_final_length(s, length_of(s, slot))
        give_up_slot(s, slot)
        end(s, request, FINISHED, step)
        s.row[Col.FINISHED] += 1
    c[C.RUNNING] = kept


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
def _join(s: State, request: int, step: int) -> None:
    c = s.c
    s.fate[F.ARRIVED_STEP, request] = step
    s.fate[F.TARGET, request] = s.asked[A.PROMPT, request]
    s.row[Col.ARRIVED] += 1
    if _never_fits(s, request):
        end(s, request, REJECTED, step)
        s.row[Col.REJECTED] += 1
        return
    s.fate[F.STATUS, request] = WAITING
    plan_cancel(s, request, step)
    tail = c[C.WAIT_TAIL]
    s.fate[F.PREVIOUS_WAITING, request] = tail
    s.fate[F.NEXT_WAITING, request] = -1
    if tail >= 0:
        s.fate[F.NEXT_WAITING, tail] = request
    else:
        c[C.WAIT_HEAD] = request
    c[C.WAIT_TAIL] = request
    c[C.WAITING] += 1


@compiled
def _fork(s: State, parent_slot: int, child: int, step: int) -> None:
    c = s.c
    at = s.asked[A.FORK_AT, child]
    s.fate[F.TARGET, child] = at
    s.fate[F.GENERATED, child] = at - s.asked[A.PROMPT, child]
    s.fate[F.ARRIVED_STEP, child] = step
    if _never_fits(s, child):
        end(s, child, REJECTED, step)
        s.row[Col.REJECTED] += 1
        return
    if c[C.RUNNING] >= c[C.MAX_SEQUENCES]:
        end(s, child, FORK_DENIED, step)
        s.row[Col.FORK_DENIED] += 1
        return
    slot = take_slot(s, child, step)
    entries = s.slots[S.ENTRIES, parent_slot]
    for entry in range(entries):
        block = s.table[parent_slot, entry]
        hold_block(s, block)
        s.table[slot, entry] = block
    s.slots[S.ENTRIES, slot] = entries
    s.slots[S.SEEN_ENTRIES, slot] = entries
    s.slots[S.LENGTH, slot] = at
    s.slots[S.PUBLISHED, slot] = s.slots[S.PUBLISHED, parent_slot]
    c[C.SHARED_TAILS] += 2 - s.slots[S.MAY_SHARE_TAIL, parent_slot]
    s.slots[S.MAY_SHARE_TAIL, slot] = 1
    s.slots[S.MAY_SHARE_TAIL, parent_slot] = 1
    c[C.LOGICAL] += at
    c[C.TABLE_ENTRIES] += entries
    s.row[Col.FORKED] += 1
    if s.fate[F.GENERATED, child] > 0:
        s.fate[F.FIRST_TOKEN_STEP, child] = step
    begin_decoding(s, slot)
    plan_cancel(s, child, step)


@compiled
def _never_fits(s: State, request: int) -> bool:
    size = s.c[C.BLOCK_SIZE]
    final = s.asked[A.PROMPT, request] + s.asked[A.OUTPUT, request]
    return (final + size - 1) // size > s.c[C.NUM_BLOCKS] - s.c[C.NULL_BLOCKS]


@compiled
def _stop_waiting(s: State, request: int) -> None:
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
