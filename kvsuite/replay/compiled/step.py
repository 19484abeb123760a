"""One step of continuous batching in compiled form; the rules are those of `kvsuite.replay.scheduler`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.admission import admit
from kvsuite.replay.compiled.blocks import FETCH, fetch_idle
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import begin_decoding, class_at, length_of, take_due
from kvsuite.replay.compiled.fields import A, C, F, K, S
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.leaving import cancel_due, plan_cancel
from kvsuite.replay.compiled.population import arrive_due, finish_due, fork_due, preempt_youngest
from kvsuite.replay.compiled.tables import grow, note_write, publish_full

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State


@compiled
def next_step(s: State, step: int) -> int:
    """Return the next step with work to do, from ``step`` on; -1 when all is done."""
    c = s.c
    if c[C.RUNNING] or c[C.WAITING]:
        return step
    if c[C.NEXT_ARRIVAL] == len(s.arrivals):
        return -1
    if c[C.CLOCKED]:
        return step
    return max(step, s.asked[A.ARRIVAL_STEP, s.arrivals[c[C.NEXT_ARRIVAL]]])


@compiled
def begin(s: State, step: int) -> None:
    """Schedule one step and take blocks for it.

    Every decoder that does not give way writes a token; ``s.writes`` and ``s.copies`` say what else is done.
    """
    c = s.c
    c[C.PRESSED] = 0
    c[C.WRITES] = 0
    cancel_due(s, step)
    arrive_due(s, step)
    _decode(s, step)
    budget = c[C.MAX_STEP_TOKENS] - c[C.DECODED]
    if c[C.PREFILLING]:
        budget = _prefill(s, budget, step)
    if c[C.WAITING] and not c[C.PRESSED]:
        admit(s, budget, step)
    _drop_lapsed_writes(s)
    s.row[Col.WAITING] = c[C.WAITING]


@compiled
def settle(s: State, step: int) -> None:
    """Publish what the step has filled, then fork and end what is due."""
    if s.c[C.PREFIX_CACHE]:
        slot = s.classes[K.FIRST, class_at(s, 0)]
        while slot >= 0:
            if s.slots[S.BECAME, slot] < s.c[C.TICKS]:
                publish_full(s, slot)
            slot = s.slots[S.CLASS_NEXT, slot]
        for k in range(s.c[C.WRITES]):
            publish_full(s, s.writes[k, 0])
    fork_due(s, step)
    finish_due(s, step)


@compiled
def _decode(s: State, step: int) -> None:
    """Give every decoder a slot for one token, and move the clock on."""
    c = s.c
    c[C.DECODED] = 0
    if c[C.SHARED_TAILS]:
        _grow_any(s, step)
    else:
        _grow_full(s, step)
    c[C.TICKS] += 1
    c[C.LOGICAL] += c[C.DECODERS]
    c[C.DECODED] = c[C.DECODERS]
    c[C.DECODED_CONTEXT] = c[C.BASES] + c[C.DECODERS] * c[C.TICKS]
    for k in range(c[C.FRESH]):
        request = s.slots[S.REQUEST, s.fresh[k]]
        if request >= 0 and s.fate[F.FIRST_TOKEN_STEP, request] < 0:
            s.fate[F.FIRST_TOKEN_STEP, request] = step
    c[C.FRESH] = 0
    slot = take_due(s)
    while slot >= 0:
        request = s.slots[S.REQUEST, slot]
        if s.fate[F.GENERATED, request] == s.asked[A.CANCEL_AFTER, request]:
            plan_cancel(s, request, step)
        slot = take_due(s)


@compiled
def _grow_full(s: State, step: int) -> None:
    """Give a block to each decoder whose last one is full, oldest first."""
    number = class_at(s, 0)
    if s.c[C.IDLE] > 0:
        fetch_idle(s, min(s.classes[K.COUNT, number], s.c[C.IDLE], FETCH))
    slot = s.classes[K.FIRST, number]
    while slot >= 0:
        length = length_of(s, slot) + 1
        if not grow(s, slot, length) and not _make_room(s, slot, length, step):
            return  # the others of its class were younger and gave way before it
        slot = s.slots[S.CLASS_NEXT, slot]


@compiled
def _grow_any(s: State, step: int) -> None:
    """Do the same where a decoder may also need a copy of its last block."""
    c = s.c
    k = 0
    while k < c[C.RUNNING]:
        slot = s.running[k]
        k += 1
        if not s.slots[S.DECODING, slot]:
            continue
        length = length_of(s, slot) + 1
        full = length > s.slots[S.ENTRIES, slot] * c[C.BLOCK_SIZE]
        if (full or s.slots[S.MAY_SHARE_TAIL, slot]) and not grow(s, slot, length):
            _make_room(s, slot, length, step)


@compiled
def _prefill(s: State, budget: int, step: int) -> int:
    c = s.c
    k = 0
    while k < c[C.RUNNING] and budget > 0:
        slot = s.running[k]
        k += 1
        if s.slots[S.DECODING, slot]:
            continue
        start, target = s.slots[S.LENGTH, slot], s.fate[F.TARGET, s.slots[S.REQUEST, slot]]
        stop = min(target, start + budget)
        if not grow(s, slot, stop) and not _make_room(s, slot, stop, step):
            continue
        s.slots[S.LENGTH, slot] = stop
        c[C.LOGICAL] += stop - start
        budget -= stop - start
        if stop == target:
            c[C.PREFILLING] -= 1
            begin_decoding(s, slot)
        note_write(s, slot, start, stop, 0)
    return budget


@compiled
def _make_room(s: State, slot: int, length: int, step: int) -> bool:
    """Preempt the youngest until ``slot`` has room for ``length``; False when it gave way itself."""
    s.c[C.PRESSED] = 1
    s.row[Col.REFUSED_GROWTHS] += 1
    while True:
        if preempt_youngest(s, step) == slot:
            return False
        if grow(s, slot, length):
            return True
        s.row[Col.REFUSED_GROWTHS] += 1


@compiled
def _drop_lapsed_writes(s: State) -> None:
    """Take out the writes of those who gave way after they were scheduled, and add up the others."""
    c = s.c
    kept, written, pairs = 0, c[C.DECODED], 0
    preempted = s.row[Col.PREEMPTED] > 0
    for k in range(c[C.WRITES]):
        if preempted:
            if s.slots[S.REQUEST, s.writes[k, 0]] < 0:
                continue
            for field in range(4):
                s.writes[kept, field] = s.writes[k, field]
        kept += 1
        start, stop = s.writes[k, 1], s.writes[k, 2]
        written += stop - start
        pairs += (stop * (stop + 1) - start * (start + 1)) // 2
    c[C.WRITES] = kept
    c[C.PAIRS] = pairs
    s.row[Col.WRITTEN] = written
