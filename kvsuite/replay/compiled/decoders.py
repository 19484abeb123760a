"""Sequences that decode, kept so that a step touches only those to which something happens.

All of them grow by one token a step: the length of a decoder is a base plus the ticks of one clock, and its
base stays as it is. Three orders follow from the bases and hold still while everybody decodes:

* *classes*: decoders by base modulo block size, oldest first. Those of one class fill their blocks in the
  same step, and ask for the next block together.
* *calendar*: decoders by the tick at which they have all their tokens, or so many that the client leaves.
* *by length*: decoders by base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.fields import A, C, F, K, S
from kvsuite.replay.compiled.jit import compiled, inlined

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State


@inlined
def length_of(s: State, slot: int) -> int:
    """Return the tokens of a sequence that are computed, this step's included once they are scheduled."""
    return s.slots[S.LENGTH, slot] + s.slots[S.DECODING, slot] * s.c[C.TICKS]


@inlined
def class_at(s: State, filled: int) -> int:
    """Return the class of decoders with ``filled`` tokens in their last block, 0 where it is full."""
    return (filled - s.c[C.TICKS]) % s.c[C.BLOCK_SIZE]


@compiled
def begin_decoding(s: State, slot: int) -> None:
    """Make a decoder of a sequence whose prompt is computed, ``slots[LENGTH]`` tokens long."""
    c = s.c
    base = s.slots[S.LENGTH, slot] - c[C.TICKS]
    s.slots[S.LENGTH, slot] = base
    s.slots[S.DECODING, slot] = 1
    s.slots[S.BECAME, slot] = c[C.TICKS]
    c[C.BASES] += base
    _enter_class(s, slot, base % c[C.BLOCK_SIZE])
    _enter_by_length(s, slot, base)
    s.fresh[c[C.FRESH]] = slot
    c[C.FRESH] += 1
    s.slots[S.DUE_TICK, slot] = -1
    request = s.slots[S.REQUEST, slot]
    _plan(s, slot, length_of(s, slot) - s.asked[A.PROMPT, request])


@compiled
def end_decoding(s: State, slot: int) -> None:
    """Take a decoder out of every order; its length and the tokens of its answer are written down."""
    c = s.c
    base, request = s.slots[S.LENGTH, slot], s.slots[S.REQUEST, slot]
    _leave_class(s, slot, base % c[C.BLOCK_SIZE])
    _leave_by_length(s, slot, base)
    if s.slots[S.DUE_TICK, slot] >= 0:
        _leave_calendar(s, slot)
    c[C.BASES] -= base
    s.slots[S.LENGTH, slot] = base + c[C.TICKS]
    s.slots[S.DECODING, slot] = 0
    s.fate[F.GENERATED, request] = base + c[C.TICKS] - s.asked[A.PROMPT, request]


@compiled
def take_due(s: State) -> int:
    """Take a decoder out of the calendar of this tick, and return its slot; -1 where none is left."""
    slot = s.calendar[s.c[C.TICKS] & (len(s.calendar) - 1)]
    if slot >= 0:
        _leave_calendar(s, slot)
        request = s.slots[S.REQUEST, slot]
        generated = length_of(s, slot) - s.asked[A.PROMPT, request]
        s.fate[F.GENERATED, request] = generated
        _plan(s, slot, generated)
    return slot


@inlined
def _plan(s: State, slot: int, generated: int) -> None:
    """Enter a decoder in the calendar where its next event is due; one with all its tokens is to finish."""
    c = s.c
    request = s.slots[S.REQUEST, slot]
    left = s.asked[A.OUTPUT, request] - generated
    if left <= 0:
        if not s.slots[S.FINISHING, slot]:
            s.slots[S.FINISHING, slot] = 1
            c[C.FINISHING] += 1
        return
    until_cancelled = s.asked[A.CANCEL_AFTER, request] - generated
    if 0 < until_cancelled < left:
        left = until_cancelled
    tick = c[C.TICKS] + left
    place = tick & (len(s.calendar) - 1)
    after = s.calendar[place]
    s.slots[S.DUE_TICK, slot] = tick
    s.slots[S.DUE_NEXT, slot] = after
    s.slots[S.DUE_PREVIOUS, slot] = -1
    if after >= 0:
        s.slots[S.DUE_PREVIOUS, after] = slot
    s.calendar[place] = slot


@inlined
def _leave_calendar(s: State, slot: int) -> None:
    before, after = s.slots[S.DUE_PREVIOUS, slot], s.slots[S.DUE_NEXT, slot]
    if before >= 0:
        s.slots[S.DUE_NEXT, before] = after
    else:
        s.calendar[s.slots[S.DUE_TICK, slot] & (len(s.calendar) - 1)] = after
    if after >= 0:
        s.slots[S.DUE_PREVIOUS, after] = before
    s.slots[S.DUE_TICK, slot] = -1


@inlined
def _enter_class(s: State, slot: int, number: int) -> None:
    """Enter a decoder before those that are younger: most often there are none."""
    age = s.slots[S.AGE, slot]
    before, after = s.classes[K.LAST, number], -1
    while before >= 0 and s.slots[S.AGE, before] > age:
        after = before
        before = s.slots[S.CLASS_PREVIOUS, before]
    s.slots[S.CLASS_PREVIOUS, slot] = before
    s.slots[S.CLASS_NEXT, slot] = after
    if before >= 0:
        s.slots[S.CLASS_NEXT, before] = slot
    else:
        s.classes[K.FIRST, number] = slot
    if after >= 0:
        s.slots[S.CLASS_PREVIOUS, after] = slot
    else:
        s.classes[K.LAST, number] = slot
    s.classes[K.COUNT, number] += 1


@inlined
def _leave_class(s: State, slot: int, number: int) -> None:
    before, after = s.slots[S.CLASS_PREVIOUS, slot], s.slots[S.CLASS_NEXT, slot]
    if before >= 0:
        s.slots[S.CLASS_NEXT, before] = after
    else:
        s.classes[K.FIRST, number] = after
    if after >= 0:
        s.slots[S.CLASS_PREVIOUS, after] = before
    else:
        s.classes[K.LAST, number] = before
    s.classes[K.COUNT, number] -= 1


@inlined
def _enter_by_length(s: State, slot: int, base: int) -> None:
    c = s.c
    place = _place_by_length(s, base)
    for k in range(c[C.DECODERS], place, -1):
        s.by_length[k] = s.by_length[k - 1]
    s.by_length[place] = slot
    c[C.DECODERS] += 1


@inlined
def _leave_by_length(s: State, slot: int, base: int) -> None:
    c = s.c
    place = _place_by_length(s, base)
    while s.by_length[place] != slot:
        place += 1
    c[C.DECODERS] -= 1
    for k in range(place, c[C.DECODERS]):
        s.by_length[k] = s.by_length[k + 1]


@inlined
def _place_by_length(s: State, base: int) -> int:
    """Return the first place whose decoder is no shorter."""
    low, high = 0, s.c[C.DECODERS]
    while low < high:
        middle = (low + high) // 2
        if s.slots[S.LENGTH, s.by_length[middle]] < base:
            low = middle + 1
        else:
            high = middle
    return low
