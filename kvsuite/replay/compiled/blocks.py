"""The pool in compiled form: free stack, idle list, reference counts, and the map from prefix to block.

The rules are those of `kvsuite.cache.block_pool`, `kvsuite.cache.prefix_cache` and `kvsuite.cache.paged`.
"""

from __future__ import annotations

from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.jit import compiled, inlined
from kvsuite.replay.compiled.state import B, C, State

_END_BITS = 32
_SPREAD = -7046029254386353131
"""2**64 divided by the golden ratio, odd, as a signed number (Knuth, TAOCP vol. 3, 6.4)."""


@inlined
def take_block(s: State) -> int:
    """Return a block held once: the top of the free stack, else the idle block cached longest ago."""
    c = s.c
    if c[C.FREE] > 0:
        c[C.FREE] -= 1
        block = s.blocks[B.FREE, c[C.FREE]]
    else:
        block = c[C.IDLE_HEAD]
        _unlink(s, block)
        _forget(s, s.key_of[block])
        s.key_of[block] = 0
        if s.blocks[B.IDLE_SINCE, block] != c[C.INTERVAL]:
            s.row[Col.EVICTED] += 1
    s.blocks[B.REFS, block] = 1
    return block


@inlined
def hold_block(s: State, block: int) -> None:
    """Add a holder; an idle block comes back into use."""
    refs = s.blocks[B.REFS, block]
    if refs == 0:
        _unlink(s, block)
    elif refs == 1:
        s.c[C.SHARED] += 1
    s.blocks[B.REFS, block] = refs + 1


@inlined
def drop_block(s: State, block: int) -> bool:
    """Take a holder away; without one a block with a key is idle, else free. True: it was the last."""
    c = s.c
    refs = s.blocks[B.REFS, block] - 1
    s.blocks[B.REFS, block] = refs
    if refs > 0:
        if refs == 1:
            c[C.SHARED] -= 1
        return False
    if s.key_of[block] != 0:
        tail = c[C.IDLE_TAIL]
        s.blocks[B.IDLE_PREVIOUS, block] = tail
        s.blocks[B.IDLE_NEXT, block] = -1
        if tail >= 0:
            s.blocks[B.IDLE_NEXT, tail] = block
        else:
            c[C.IDLE_HEAD] = block
        c[C.IDLE_TAIL] = block
        c[C.IDLE] += 1
        s.blocks[B.IDLE_SINCE, block] = c[C.INTERVAL]
    else:
        s.blocks[B.FREE, c[C.FREE]] = block
        c[C.FREE] += 1
    return True


@inlined
def prefix_key(s: State, segment: int, end: int) -> int:
    """Return the identity of the ``end`` tokens that close in ``segment``: never 0."""
    return (s.segments[0, segment] << _END_BITS) | end


@inlined
def find(s: State, key: int) -> int:
    """Return the block with that key, else -1."""
    mask = len(s.map_keys) - 1
    place = _home(key, mask)
    while s.map_keys[place] != 0:
        if s.map_keys[place] == key:
            return s.map_blocks[place]
        place = (place + 1) & mask
    return -1


@inlined
def publish(s: State, key: int, block: int) -> None:
    """Give ``block`` its key, unless either of them is taken."""
    if s.key_of[block] != 0:
        return
    mask = len(s.map_keys) - 1
    place = _home(key, mask)
    while s.map_keys[place] != 0:
        if s.map_keys[place] == key:
            return
        place = (place + 1) & mask
    s.map_keys[place] = key
    s.map_blocks[place] = block
    s.key_of[block] = key


@inlined
def _home(key: int, mask: int) -> int:
    mixed = key * _SPREAD
    return (mixed ^ (mixed >> 32)) & mask


@compiled
def _forget(s: State, key: int) -> None:
    """Take a key out, and move back what it had pushed on (linear probing without tombstones)."""
    keys, blocks = s.map_keys, s.map_blocks
    mask = len(keys) - 1
    hole = _home(key, mask)
    while keys[hole] != key:
        hole = (hole + 1) & mask
    place = hole
    while True:
        place = (place + 1) & mask
        moved = keys[place]
        if moved == 0:
            break
        home = _home(moved, mask)
        if ((place - home) & mask) >= ((place - hole) & mask):
            keys[hole] = moved
            blocks[hole] = blocks[place]
            hole = place
    keys[hole] = 0


@inlined
def _unlink(s: State, block: int) -> None:
    c = s.c
    before, after = s.blocks[B.IDLE_PREVIOUS, block], s.blocks[B.IDLE_NEXT, block]
    if before >= 0:
        s.blocks[B.IDLE_NEXT, before] = after
    else:
        c[C.IDLE_HEAD] = after
    if after >= 0:
        s.blocks[B.IDLE_PREVIOUS, after] = before
    else:
        c[C.IDLE_TAIL] = before
    c[C.IDLE] -= 1
