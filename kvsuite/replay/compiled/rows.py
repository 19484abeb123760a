"""The ledger row of a step in compiled form, as `kvsuite.ledger.tracker` takes it from two snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import class_at, length_of
from kvsuite.replay.compiled.fields import B, C, K, S
from kvsuite.replay.compiled.jit import compiled, inlined

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State

_ORDER_BASE = 0x100000001B3
"""Base of the order digest: see `kvsuite.ledger.holdings.Holdings`."""


@compiled
def take_row(s: State) -> None:
    """Fill in ``s.row`` as things stand in the forward pass, and begin the next interval."""
    c, row = s.c, s.row
    if c[C.COPIES] > 0 and row[Col.PREEMPTED] > 0:
        _recount(s)
    else:
        _note_new_blocks(s)
    _sequence_columns(s)
    _block_columns(s)
    copied = 0
    for k in range(c[C.COPIES]):
        copied += s.copies[k, 3]
        s.slots[S.COPIED_NOW, s.copies[k, 0]] = 0
    row[Col.COPIED] = copied
    for k in range(c[C.GROWN]):
        s.slots[S.GROWN, s.grown[k]] = 0
    c[C.GROWN] = 0
    c[C.COPIES] = 0
    c[C.GONE] = 0
    c[C.IDLE_MARK] = c[C.IDLE_TAIL]


@compiled
def _note_new_blocks(s: State) -> None:
    """Count new table entries, oldest sequence first; nothing that a copy replaced has been freed."""
    c, row = s.c, s.row
    _oldest_first(s)
    allocated = 0
    for k in range(c[C.GROWN]):
        slot = s.grown[k]
        if s.slots[S.REQUEST, slot] < 0:
            continue
        seen, entries = s.slots[S.SEEN_ENTRIES, slot], s.slots[S.ENTRIES, slot]
        if s.slots[S.COPIED_NOW, slot]:
            row[Col.PRIVATE_TRANSITIONS] += 1
            allocated += 1
            _note_order(s, s.table[slot, seen - 1])
        for entry in range(seen, entries):
            _note_order(s, s.table[slot, entry])
        allocated += entries - seen
        s.slots[S.SEEN_ENTRIES, slot] = entries
    row[Col.ALLOCATED] = allocated


@inlined
def _oldest_first(s: State) -> None:
    """Sort ``s.grown`` by age: decoders and then prompts came in order, so that little moves."""
    for k in range(1, s.c[C.GROWN]):
        slot, place = s.grown[k], k
        while place > 0 and s.slots[S.AGE, s.grown[place - 1]] > s.slots[S.AGE, slot]:
            s.grown[place] = s.grown[place - 1]
            place -= 1
        s.grown[place] = slot


@compiled
def _recount(s: State) -> None:
    """Count from the tables of both rows: a copy was made, and then its source's other holder gave way."""
    c, row = s.c, s.row
    for k in range(c[C.RUNNING]):
        _count_seen(s, s.running[k], s.slots[S.SEEN_ENTRIES, s.running[k]], 1)
    for k in range(c[C.GONE]):
        _count_seen(s, s.gone[k, 0], s.gone[k, 1], 1)
    freed, allocated, moved = 0, 0, 0
    for k in range(c[C.GONE]):
        freed += _count_seen(s, s.gone[k, 0], s.gone[k, 1], -1)
    for k in range(c[C.RUNNING]):
        slot = s.running[k]
        seen, entries = s.slots[S.SEEN_ENTRIES, slot], s.slots[S.ENTRIES, slot]
        if s.slots[S.COPIED_NOW, slot]:
            source = _seen_block(s, slot, seen - 1)
            moved += s.holders[source] > 1
            s.holders[source] -= 1
            freed += s.holders[source] == 0
            allocated += _enter(s, s.table[slot, seen - 1])
        for entry in range(seen, entries):
            allocated += _enter(s, s.table[slot, entry])
    row[Col.FREED], row[Col.ALLOCATED], row[Col.PRIVATE_TRANSITIONS] = freed, allocated, moved
    for k in range(c[C.RUNNING]):
        slot = s.running[k]
        for entry in range(s.slots[S.ENTRIES, slot]):
            s.holders[s.table[slot, entry]] = 0
        s.slots[S.SEEN_ENTRIES, slot] = s.slots[S.ENTRIES, slot]


@compiled
def _count_seen(s: State, slot: int, entries: int, change: int) -> int:
    """Add a table as the last row saw it to the holders; return how many blocks that leaves without any."""
    freed = 0
    for entry in range(entries):
        block = _seen_block(s, slot, entry)
        s.holders[block] += change
        freed += s.holders[block] == 0
    return freed


@compiled
def _seen_block(s: State, slot: int, entry: int) -> int:
    if s.slots[S.COPIED_NOW, slot]:
        for k in range(s.c[C.COPIES]):
            if s.copies[k, 0] == slot and s.copies[k, 1] == entry:
                return s.copies[k, 2]
    return s.table[slot, entry]


@compiled
def _enter(s: State, block: int) -> int:
    """Count a new entry; return 1 where nobody held the block."""
    s.holders[block] += 1
    if s.holders[block] > 1:
        return 0
    _note_order(s, block)
    return 1


@inlined
def _note_order(s: State, block: int) -> None:
    c = s.c
    if s.first_use[block] < 0:
        s.first_use[block] = c[C.TOUCHED]
        c[C.TOUCHED] += 1
    c[C.ID_ORDER] = (c[C.ID_ORDER] + s.first_use[block] + 1) * _ORDER_BASE


@compiled
def _sequence_columns(s: State) -> None:
    c, row = s.c, s.row
    size, count = c[C.BLOCK_SIZE], c[C.RUNNING]
    partial = c[C.DECODERS] - s.classes[K.COUNT, class_at(s, 0)]
    widest = _widest_slack(s) if partial else 0
    inner, k, left = 0, count, c[C.PREFILLING]
    while left:
        k -= 1
        slot = s.running[k]
        if s.slots[S.DECODING, slot]:
            continue
        left -= 1
        entries = s.slots[S.ENTRIES, slot]
        empty = entries * size - s.slots[S.LENGTH, slot]
        widest = max(widest, empty)
        if empty:
            partial += 1
        else:
            inner += s.blocks[s.table[slot, entries - 1], B.EXTRA] > 0
    slack = c[C.TABLE_ENTRIES] * size - c[C.LOGICAL]
    live = c[C.NUM_BLOCKS] - c[C.NULL_BLOCKS] - c[C.FREE] - c[C.IDLE]
    payload = live * size - slack
    row[Col.RUNNING] = count
    row[Col.SLACK] = slack
    row[Col.MAX_SLACK] = widest
    row[Col.PAYLOAD] = payload
    row[Col.LOGICAL] = c[C.LOGICAL]
    row[Col.SHARING_SAVED] = c[C.LOGICAL] - payload
    row[Col.LIVE_BLOCKS] = live
    row[Col.FULL_BLOCKS] = live - partial
    row[Col.FINAL_BLOCKS] = count - inner
    if count:
        _length_columns(s)


@inlined
def _widest_slack(s: State) -> int:
    """Return the largest slack of a decoder: that of the fewest tokens in a last block that is not full."""
    size = s.c[C.BLOCK_SIZE]
    filled, number = 1, class_at(s, 1)
    while s.classes[K.COUNT, number] == 0:
        filled += 1
        number = number + 1 if number + 1 < size else 0
    return size - filled


@inlined
def _length_columns(s: State) -> None:
    c, row = s.c, s.row
    count = c[C.RUNNING]
    middle, high = (50 * count + 99) // 100 - 1, (90 * count + 99) // 100 - 1
    if c[C.PREFILLING] == 0:
        row[Col.LENGTH_MIN] = length_of(s, s.by_length[0])
        row[Col.LENGTH_P50] = length_of(s, s.by_length[middle])
        row[Col.LENGTH_P90] = length_of(s, s.by_length[high])
        row[Col.LENGTH_MAX] = length_of(s, s.by_length[count - 1])
        return
    _merge_lengths(s)
    row[Col.LENGTH_MIN] = s.merged[0]
    row[Col.LENGTH_P50] = s.merged[middle]
    row[Col.LENGTH_P90] = s.merged[high]
    row[Col.LENGTH_MAX] = s.merged[count - 1]


@compiled
def _merge_lengths(s: State) -> None:
    """Put the lengths of all running sequences in order: those that still prefill among the decoders."""
    c = s.c
    decoders, used, k = c[C.DECODERS], 0, c[C.RUNNING]
    for place in range(decoders):
        s.merged[place] = length_of(s, s.by_length[place])
    while used < c[C.PREFILLING]:
        k -= 1
        if s.slots[S.DECODING, s.running[k]]:
            continue
        length = s.slots[S.LENGTH, s.running[k]]
        place = decoders + used
        while place > 0 and s.merged[place - 1] > length:
            s.merged[place] = s.merged[place - 1]
            place -= 1
        s.merged[place] = length
        used += 1


@compiled
def _block_columns(s: State) -> None:
    c, row = s.c, s.row
    size = c[C.BLOCK_SIZE]
    row[Col.FREE] = c[C.FREE] * size
    row[Col.CACHED] = c[C.IDLE] * size
    row[Col.NEVER_ALLOCATABLE] = c[C.NULL_BLOCKS] * size
    row[Col.LARGEST_ADMISSIBLE] = (c[C.FREE] + c[C.IDLE]) * size
    row[Col.SHARED_BLOCKS] = c[C.SHARED]
    row[Col.TABLE_ENTRIES] = c[C.TABLE_ENTRIES]
    row[Col.DISTINCT_TOUCHED] = c[C.TOUCHED]
    row[Col.ID_ORDER] = c[C.ID_ORDER]
