"""The ledger row of a step in compiled form, as `kvsuite.ledger.tracker` takes it from two snapshots."""

from __future__ import annotations

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.jit import compiled, inlined
from kvsuite.replay.compiled.state import B, C, F, S, State

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
    c[C.COPIES] = 0
    c[C.GONE] = 0
    c[C.INTERVAL] += 1


@compiled
def _note_new_blocks(s: State) -> None:
    """Count new table entries, oldest sequence first; nothing that a copy replaced has been freed."""
    c, row = s.c, s.row
    allocated = 0
    for k in range(c[C.RUNNING]):
        slot = s.running[k]
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
    if s.blocks[block, B.FIRST_USE] < 0:
        s.blocks[block, B.FIRST_USE] = c[C.TOUCHED]
        c[C.TOUCHED] += 1
    c[C.ID_ORDER] = (c[C.ID_ORDER] + s.blocks[block, B.FIRST_USE] + 1) * _ORDER_BASE


@compiled
def _sequence_columns(s: State) -> None:
    c, row = s.c, s.row
    size = c[C.BLOCK_SIZE]
    count = c[C.RUNNING]
    slack, widest, partial, inner = 0, 0, 0, 0
    for k in range(count):
        slot = s.running[k]
        length, entries = s.slots[S.LENGTH, slot], s.slots[S.ENTRIES, slot]
        empty = entries * size - length
        slack += empty
        widest = max(widest, empty)
        if empty:
            partial += 1
        elif c[C.PREFILLING] and length < s.fate[F.TARGET, s.slots[S.REQUEST, slot]]:
            inner += s.blocks[s.table[slot, entries - 1], B.EXTRA] > 0
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
    _order_by_length(s)
    if count:
        row[Col.LENGTH_MIN] = s.slots[S.LENGTH, s.by_length[0]]
        row[Col.LENGTH_P50] = s.slots[S.LENGTH, s.by_length[(50 * count + 99) // 100 - 1]]
        row[Col.LENGTH_P90] = s.slots[S.LENGTH, s.by_length[(90 * count + 99) // 100 - 1]]
        row[Col.LENGTH_MAX] = s.slots[S.LENGTH, s.by_length[count - 1]]


@compiled
def _order_by_length(s: State) -> None:
    """Bring ``s.by_length`` up to date: decoding keeps the order, so that little moves."""
    c = s.c
    kept = 0
    for k in range(c[C.ORDERED]):
        slot = s.by_length[k]
        if s.slots[S.REQUEST, slot] < 0 or s.slots[S.LISTED, slot] == 1:
            continue
        s.slots[S.LISTED, slot] = 1
        length = s.slots[S.LENGTH, slot]
        place = kept
        while place > 0 and s.slots[S.LENGTH, s.by_length[place - 1]] > length:
            s.by_length[place] = s.by_length[place - 1]
            place -= 1
        s.by_length[place] = slot
        kept += 1
    for k in range(kept):
        s.slots[S.LISTED, s.by_length[k]] = 0
    c[C.ORDERED] = kept


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
