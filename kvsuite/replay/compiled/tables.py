"""Slots and their block tables in compiled form: seats, growth, copies on write, publishing.

The rules are those of `kvsuite.cache.paged` and `kvsuite.engine.reference`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.blocks import (
    FETCH,
    drop_block,
    enter_in_map,
    fetch_held,
    fetch_idle,
    publish,
    take_block,
)
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import end_decoding, length_of
from kvsuite.replay.compiled.fields import RUNNING, B, C, F, G, S
from kvsuite.replay.compiled.jit import compiled, inlined

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State


@compiled
def take_slot(s: State, request: int, step: int) -> int:
    """Give ``request`` a slot with an empty table, as the youngest of the running."""
    c = s.c
    c[C.FREE_SLOTS] -= 1
    slot = s.free_slots[c[C.FREE_SLOTS]]
    s.running[c[C.RUNNING]] = slot
    c[C.RUNNING] += 1
    s.slots[S.REQUEST, slot] = request
    s.fate[F.SLOT_OF, request] = slot
    s.fate[F.STATUS, request] = RUNNING
    s.slots[S.ENTRIES, slot] = 0
    s.slots[S.SEEN_ENTRIES, slot] = 0
    s.slots[S.LENGTH, slot] = 0
    s.slots[S.PROMISED, slot] = 0
    s.slots[S.PUBLISHED, slot] = 0
    s.slots[S.SEGMENT, slot] = s.segment_offsets[request]
    s.slots[S.MAY_SHARE_TAIL, slot] = 0
    s.slots[S.FINISHING, slot] = 0
    s.slots[S.COPIED_NOW, slot] = 0
    s.slots[S.DECODING, slot] = 0
    s.slots[S.GROWN, slot] = 0
    s.slots[S.AGE, slot] = c[C.AGES]
    c[C.AGES] += 1
    if s.fate[F.ADMITTED_STEP, request] < 0:
        s.fate[F.ADMITTED_STEP, request] = step
    if c[C.FORKS] and s.child_offsets[request + 1] > s.child_offsets[request]:
        c[C.PARENTS] += 1
    return slot


@compiled
def give_up_slot(s: State, slot: int) -> None:
    """Drop the blocks of a slot, tail first, and free it; ``freed`` counts blocks that a row has shown."""
    c = s.c
    request = s.slots[S.REQUEST, slot]
    seen = s.slots[S.SEEN_ENTRIES, slot]
    if c[C.PREFIX_CACHE] or c[C.FORKS]:
        stop = s.slots[S.ENTRIES, slot]
        while stop > 0:
            start = max(0, stop - FETCH)
            fetch_held(s, slot, start, stop)
            for entry in range(stop - 1, start - 1, -1):
                if drop_block(s, s.table[slot, entry]) and entry < seen:
                    s.row[Col.FREED] += 1
            stop = start
    else:
        free_all(s, slot)
        s.row[Col.FREED] += seen
    s.gone[c[C.GONE], 0] = slot
    s.gone[c[C.GONE], 1] = seen
    c[C.GONE] += 1
    if s.slots[S.COPIED_NOW, slot]:
        for k in range(c[C.COPIES]):
            if s.copies[k, 0] == slot:
                s.copies[k, 3] = 0
    if s.slots[S.DECODING, slot]:
        end_decoding(s, slot)
    else:
        c[C.PREFILLING] -= 1
    c[C.SHARED_TAILS] -= s.slots[S.MAY_SHARE_TAIL, slot]
    if s.slots[S.FINISHING, slot]:
        c[C.FINISHING] -= 1
    if c[C.FORKS] and s.child_offsets[request + 1] > s.child_offsets[request]:
        c[C.PARENTS] -= 1
    c[C.PROMISED] -= s.slots[S.PROMISED, slot]
    c[C.LOGICAL] -= s.slots[S.LENGTH, slot]
    c[C.TABLE_ENTRIES] -= s.slots[S.ENTRIES, slot]
    s.slots[S.REQUEST, slot] = -1
    s.fate[F.SLOT_OF, request] = -1
    s.free_slots[c[C.FREE_SLOTS]] = slot
    c[C.FREE_SLOTS] += 1


@inlined
def free_all(s: State, slot: int) -> None:
    """Free the blocks of a slot, tail first, where none can be shared or found again."""
    free = s.c[C.FREE]
    for entry in range(s.slots[S.ENTRIES, slot] - 1, -1, -1):
        s.free[free] = s.table[slot, entry]
        free += 1
    s.c[C.FREE] = free


@compiled
def grow(s: State, slot: int, length: int) -> bool:
    """Take the blocks for ``length`` tokens, a private copy of a shared tail among them; all or nothing."""
    c = s.c
    size = c[C.BLOCK_SIZE]
    entries = s.slots[S.ENTRIES, slot]
    new = (length + size - 1) // size - entries
    filled = length_of(s, slot) % size
    copies = 0
    if s.slots[S.MAY_SHARE_TAIL, slot]:
        copies = int(filled > 0 and s.blocks[s.table[slot, entries - 1], B.EXTRA] > 0)
    if new + copies > c[C.FREE] + c[C.IDLE]:
        return False
    c[C.SHARED_TAILS] -= s.slots[S.MAY_SHARE_TAIL, slot]
    s.slots[S.MAY_SHARE_TAIL, slot] = 0
    if copies:
        _note_grown(s, slot)
        source = s.table[slot, entries - 1]
        target = take_block(s)
        s.table[slot, entries - 1] = target
        drop_block(s, source)
        place = c[C.COPIES]
        s.copies[place, 0] = slot
        s.copies[place, 1] = entries - 1
        s.copies[place, 2] = source
        s.copies[place, 3] = filled
        c[C.COPIES] += 1
        s.slots[S.COPIED_NOW, slot] = 1
    append_blocks(s, slot, entries + new)
    return True


@compiled
def append_blocks(s: State, slot: int, entries: int) -> None:
    """Lengthen a table to ``entries`` blocks; what was promised to its prompt is redeemed."""
    c = s.c
    old = s.slots[S.ENTRIES, slot]
    if entries == old:
        return
    _note_grown(s, slot)
    if c[C.FREE] >= entries - old:
        free = c[C.FREE]
        for entry in range(old, entries):
            free -= 1
            s.table[slot, entry] = s.free[free]
        c[C.FREE] = free
    else:
        for start in range(old, entries, FETCH):
            stop = min(entries, start + FETCH)
            if c[C.IDLE] >= FETCH:
                fetch_idle(s, stop - start)
            for entry in range(start, stop):
                s.table[slot, entry] = take_block(s)
    s.slots[S.ENTRIES, slot] = entries
    c[C.TABLE_ENTRIES] += entries - old
    kept_promise = max(0, s.slots[S.PROMISED, slot] - (entries - old))
    c[C.PROMISED] += kept_promise - s.slots[S.PROMISED, slot]
    s.slots[S.PROMISED, slot] = kept_promise


@inlined
def _note_grown(s: State, slot: int) -> None:
    if not s.slots[S.GROWN, slot]:
        s.slots[S.GROWN, slot] = 1
        s.grown[s.c[C.GROWN]] = slot
        s.c[C.GROWN] += 1


@compiled
def publish_full(s: State, slot: int) -> None:
    """Offer the blocks that a sequence has filled to others, each once."""
    size = s.c[C.BLOCK_SIZE]
    full = length_of(s, slot) // size
    asked_once = s.fate[F.PREEMPTIONS, s.slots[S.REQUEST, slot]] == 0
    segment = s.slots[S.SEGMENT, slot]
    for entry in range(s.slots[S.PUBLISHED, slot], full):
        segment = segment_at(s, segment, (entry + 1) * size)
        publish(s, segment, entry, s.table[slot, entry], asked_once)
    s.slots[S.SEGMENT, slot] = segment
    s.slots[S.PUBLISHED, slot] = full


@compiled
def map_published(s: State, slot: int) -> None:
    """Enter in the map what a sequence has published and nobody but itself can ask for: it will ask again."""
    for entry in range(s.slots[S.PUBLISHED, slot]):
        block = s.table[slot, entry]
        if s.blocks[block, B.KEY] < 0:
            enter_in_map(s, block)


@inlined
def segment_at(s: State, segment: int, end: int) -> int:
    """Return the segment that holds the token before ``end``, walking on from ``segment``."""
    while s.segments[G.END, segment] < end:
        segment += 1
    return segment


@compiled
def remove_running(s: State, slot: int) -> None:
    """Take a slot out of the running, whatever its place."""
    count = s.c[C.RUNNING] - 1
    k = 0
    while s.running[k] != slot:
        k += 1
    for place in range(k, count):
        s.running[place] = s.running[place + 1]
    s.c[C.RUNNING] = count


@compiled
def note_final_length(s: State, length: int) -> None:
    """Note how long a sequence was when it had all its tokens."""
    s.final_lengths[s.c[C.FINAL_LENGTHS]] = length
    s.c[C.FINAL_LENGTHS] += 1


@inlined
def note_write(s: State, slot: int, start: int, stop: int, hit: int) -> None:
    """Note what a sequence writes in this step."""
    place = s.c[C.WRITES]
    s.writes[place, 0] = slot
    s.writes[place, 1] = start
    s.writes[place, 2] = stop
    s.writes[place, 3] = hit
    s.c[C.WRITES] += 1
