"""Who is there, in compiled form: requests arrive, fork, give way, and finish.

The rules are those of `kvsuite.replay.population`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.blocks import hold_block
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import begin_decoding, length_of
from kvsuite.replay.compiled.fields import (
    FINISHED,
    FORK_DENIED,
    NEW,
    REJECTED,
    WAITING,
    A,
    C,
    F,
    S,
)
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.leaving import end, plan_cancel, stop_waiting
from kvsuite.replay.compiled.tables import give_up_slot, map_published, note_final_length, take_slot
from kvsuite.replay.compiled.timing import has_arrived, note_span

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State


@compiled
def arrive_due(s: State, step: int) -> None:
    """Let the requests in that arrive up to ``step``."""
    c = s.c
    while c[C.NEXT_ARRIVAL] < len(s.arrivals):
        request = s.arrivals[c[C.NEXT_ARRIVAL]]
        if not has_arrived(s, request, step):
            break
        c[C.NEXT_ARRIVAL] += 1
        _join(s, request, step)


@compiled
def preempt_youngest(s: State, step: int) -> int:
    """Send the youngest running sequence back to the head of the queue; return its slot."""
    c = s.c
    c[C.RUNNING] -= 1
    slot = s.running[c[C.RUNNING]]
    request = s.slots[S.REQUEST, slot]
    computed = length_of(s, slot)
    if s.slots[S.DECODING, slot]:
        note_span(s, slot, c[C.DECODED] > 0)
        if c[C.DECODED]:
            c[C.DECODED] -= 1
            c[C.DECODED_CONTEXT] -= computed
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
    stop_waiting(s, request)
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
        note_span(s, slot, False)
        give_up_slot(s, slot)
        end(s, request, FINISHED, step)
        s.row[Col.FINISHED] += 1
    c[C.RUNNING] = kept


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
