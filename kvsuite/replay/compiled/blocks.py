"""The pool in compiled form: free stack, idle ring, reference counts, and the map from prefix to block.

The rules are those of `kvsuite.cache.block_pool`, `kvsuite.cache.prefix_cache` and `kvsuite.cache.paged`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.fields import GROUP, B, C, G, M
from kvsuite.replay.compiled.jit import compiled, inlined

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State

FETCH = 64
"""Blocks that are brought in at once: 1 KiB of them."""
_SPREAD = -7046029254386353131
"""2**64 divided by the golden ratio, odd, as a signed number (Knuth, TAOCP vol. 3, 6.4)."""


@inlined
def take_block(s: State) -> int:
    """Return a block held once: the top of the free stack, else the idle block cached longest ago."""
    c = s.c
    if c[C.FREE] > 0:
        c[C.FREE] -= 1
        block = s.free[c[C.FREE]]
    else:
        block = _longest_idle(s)
        if c[C.HEAD_HITS] and s.head_entry[block]:
            forget_hits(s, s.head_entry[block] - 1)
        if c[C.IDLE_HEAD] <= c[C.IDLE_MARK]:
            s.row[Col.EVICTED] += 1
        _unlink(s, block)
        _forget(s, block)
    return block


@inlined
def fetch_idle(s: State, count: int) -> None:
    """Bring the blocks that are evicted next into the cache of the processor, all at once.

    Read one by one as they are needed, each would be waited for.
    """
    head, mask = s.c[C.IDLE_HEAD], len(s.idle) - 1
    read = 0
    for k in range(count):
        read ^= s.blocks[s.idle[(head + k) & mask], B.KEY]
    s.c[C.FETCHED] = read


@inlined
def fetch_held(s: State, slot: int, start: int, stop: int) -> None:
    """Do the same for a part of a table."""
    read = 0
    for entry in range(start, stop):
        read ^= s.blocks[s.table[slot, entry], B.KEY]
    s.c[C.FETCHED] = read


@inlined
def hold_block(s: State, block: int) -> None:
    """Add a holder; an idle block comes back into use."""
    if s.blocks[block, B.IDLE_PLACE] >= 0:
        _unlink(s, block)
        return
    if s.blocks[block, B.EXTRA] == 0:
        s.c[C.SHARED] += 1
    s.blocks[block, B.EXTRA] += 1


@inlined
def drop_block(s: State, block: int) -> bool:
    """Take a holder away; without one a block with a key is idle, else free. True: it was the last."""
    c = s.c
    extra = s.blocks[block, B.EXTRA]
    if extra > 0:
        s.blocks[block, B.EXTRA] = extra - 1
        if extra == 1:
            c[C.SHARED] -= 1
        return False
    if s.blocks[block, B.KEY] != 0:
        if c[C.HEAD_HITS] and s.head_entry[block]:
            c[C.HEAD_LIVE_HITS] -= 1
        place = c[C.IDLE_TAIL] & (len(s.idle) - 1)
        s.blocks[block, B.IDLE_PLACE] = place
        s.idle[place] = block
        c[C.IDLE_TAIL] += 1
        if c[C.IDLE_TAIL] - c[C.IDLE_HEAD] == len(s.idle):
            _close_ranks(s)
        c[C.IDLE] += 1
    else:
        s.free[c[C.FREE]] = block
        c[C.FREE] += 1
    return True


@inlined
def find(s: State, segment: int, entry: int) -> int:
    """Return the block with the key of table entry ``entry`` in ``segment``, else -1."""
    place = _place(s, s.segments[G.KEY, segment] + 1, entry // GROUP)
    return s.map[place, entry % GROUP] if s.map[place, M.KEY] else -1


@inlined
def publish(s: State, segment: int, entry: int, block: int, asked_once: bool) -> None:
    """Give ``block`` the key of table entry ``entry`` in ``segment``, unless either of them is taken.

    A key that one request alone can ask for, and does not before it comes back from a preemption, need not be
    found until then: see `kvsuite.replay.compiled.tables.map_published`.
    """
    if s.blocks[block, B.KEY] != 0:
        return
    key = s.segments[G.KEY, segment] + 1
    unseen = asked_once and s.segments[G.SHARED, segment] == 0
    if not unseen:
        place = _place(s, key, entry // GROUP)
        if s.map[place, M.KEY] and s.map[place, entry % GROUP] >= 0:
            return
    s.blocks[block, B.KEY] = -key
    s.blocks[block, B.ENTRY] = entry
    if not unseen:
        enter_in_map(s, block)


@inlined
def enter_in_map(s: State, block: int) -> None:
    """Let ``block`` be found by its key."""
    key, entry = -s.blocks[block, B.KEY], s.blocks[block, B.ENTRY]
    place = _place(s, key, entry // GROUP)
    s.map[place, M.KEY] = key
    s.map[place, M.ENTRIES] = entry // GROUP
    s.map[place, entry % GROUP] = block
    s.blocks[block, B.KEY] = key


@inlined
def _place(s: State, key: int, entries: int) -> int:
    """Return the row of a group of keys, or the empty one where it belongs."""
    mask = len(s.map) - 1
    place = _home(key, entries, mask)
    while s.map[place, M.KEY] != 0 and (s.map[place, M.KEY] != key or s.map[place, M.ENTRIES] != entries):
        place = (place + 1) & mask
    return place


@inlined
def _home(key: int, entries: int, mask: int) -> int:
    mixed = ((np.int64(key) << 32) | entries) * _SPREAD
    return int((mixed ^ (mixed >> 32)) & mask)


@inlined
def _forget(s: State, block: int) -> None:
    """Take the key of a block out; a group without blocks gives up its row."""
    key, entry = s.blocks[block, B.KEY], s.blocks[block, B.ENTRY]
    s.blocks[block, B.KEY] = 0
    if key < 0:
        return
    place = _place(s, key, entry // GROUP)
    s.map[place, entry % GROUP] = -1
    for k in range(GROUP):
        if s.map[place, k] >= 0:
            return
    _empty(s, place)


@compiled
def _empty(s: State, hole: int) -> None:
    """Empty a row, and move back what it had pushed on (linear probing without tombstones)."""
    mask = len(s.map) - 1
    place = hole
    while True:
        place = (place + 1) & mask
        if s.map[place, M.KEY] == 0:
            break
        home = _home(s.map[place, M.KEY], s.map[place, M.ENTRIES], mask)
        if ((place - home) & mask) >= ((place - hole) & mask):
            for k in range(GROUP + 2):
                s.map[hole, k] = s.map[place, k]
            hole = place
    for k in range(GROUP):
        s.map[hole, k] = -1
    s.map[hole, M.KEY] = 0


@inlined
def _longest_idle(s: State) -> int:
    c = s.c
    mask = len(s.idle) - 1
    place = c[C.IDLE_HEAD] & mask
    while s.blocks[s.idle[place], B.IDLE_PLACE] != place:
        c[C.IDLE_HEAD] += 1
        place = c[C.IDLE_HEAD] & mask
    c[C.IDLE_HEAD] += 1
    return s.idle[place]


@compiled
def _close_ranks(s: State) -> None:
    """Drop the places that blocks have left, where the ring is full: at most half of it is idle blocks."""
    c = s.c
    mask = len(s.idle) - 1
    kept, mark = c[C.IDLE_HEAD], c[C.IDLE_MARK]
    for filled in range(c[C.IDLE_HEAD], c[C.IDLE_TAIL]):
        if filled == mark:
            c[C.IDLE_MARK] = kept
        block = s.idle[filled & mask]
        if s.blocks[block, B.IDLE_PLACE] == filled & mask:
            s.idle[kept & mask] = block
            s.blocks[block, B.IDLE_PLACE] = kept & mask
            kept += 1
    if mark == c[C.IDLE_TAIL]:
        c[C.IDLE_MARK] = kept
    c[C.IDLE_TAIL] = kept


@inlined
def _unlink(s: State, block: int) -> None:
    c = s.c
    c[C.IDLE] -= 1
    s.blocks[block, B.IDLE_PLACE] = -1
    if c[C.HEAD_HITS] and s.head_entry[block]:
        c[C.HEAD_LIVE_HITS] += 1


@inlined
def forget_hits(s: State, kept: int) -> None:
    """Keep the first ``kept`` of the blocks found for the head of the queue."""
    c = s.c
    for entry in range(kept, c[C.HEAD_HITS]):
        block = s.hit_blocks[entry]
        s.head_entry[block] = 0
        c[C.HEAD_LIVE_HITS] -= s.blocks[block, B.IDLE_PLACE] < 0
    c[C.HEAD_HITS] = kept
