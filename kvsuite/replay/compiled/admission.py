"""Who is let in, in compiled form: first come first served, by the gate of `PagedCache.admit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.compiled.blocks import find, forget_hits, hold_block
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.decoders import begin_decoding
from kvsuite.replay.compiled.fields import NO_BLOCKS, PROMISED, WATERMARK, B, C, F, S
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.population import stop_waiting_first
from kvsuite.replay.compiled.tables import append_blocks, note_write, segment_at, take_slot

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import State


@compiled
def admit(s: State, budget: int, step: int) -> None:
    """Let requests in from the head of the queue until one does not fit, or seats or budget are gone."""
    c = s.c
    while c[C.WAITING] and c[C.RUNNING] < c[C.MAX_SEQUENCES] and budget > 0:
        request = c[C.WAIT_HEAD]
        if c[C.PREFIX_CACHE]:
            _look_up(s, request)
        hits = c[C.HEAD_HITS]
        if not _fits(s, request, hits):
            c[C.PRESSED] = 1
            s.row[Col.REFUSED_ADMISSIONS] += 1
            return
        _forget_head(s)
        stop_waiting_first(s)
        start, stop = _seat(s, request, hits, min(budget, s.fate[F.TARGET, request]), step)
        budget -= stop - start


@compiled
def _seat(s: State, request: int, hits: int, chunk: int, step: int) -> tuple[int, int]:
    """Admit ``request`` with its first ``hits`` blocks found; return what it writes."""
    c = s.c
    size = c[C.BLOCK_SIZE]
    target = s.fate[F.TARGET, request]
    start = hits * size
    stop = min(target, start + chunk)
    first = s.fate[F.ADMITTED_STEP, request] < 0
    slot = take_slot(s, request, step)
    for entry in range(hits):
        block = s.hit_blocks[entry]
        s.row[Col.REACTIVATED] += s.blocks[block, B.IDLE_PLACE] >= 0
        hold_block(s, block)
        s.table[slot, entry] = block
    s.slots[S.ENTRIES, slot] = hits
    s.slots[S.SEEN_ENTRIES, slot] = hits
    s.slots[S.PUBLISHED, slot] = hits
    c[C.TABLE_ENTRIES] += hits
    total = (target + size - 1) // size
    s.slots[S.PROMISED, slot] = total - hits
    c[C.PROMISED] += total - hits
    append_blocks(s, slot, (stop + size - 1) // size)
    s.slots[S.LENGTH, slot] = stop
    c[C.LOGICAL] += stop
    if stop < target:
        c[C.PREFILLING] += 1
    else:
        begin_decoding(s, slot)
    if first:
        s.fate[F.HIT_TOKENS, request] = start
        s.row[Col.HIT] += start
    else:
        s.row[Col.RESUMED_HIT] += start
    if s.fate[F.GENERATED, request] > 0 and s.fate[F.FIRST_TOKEN_STEP, request] < 0:
        s.fate[F.FIRST_TOKEN_STEP, request] = step
    s.row[Col.ADMITTED] += 1
    s.row[Col.RECOMPUTED] += max(0, min(s.fate[F.WRITTEN_BEFORE, request], stop) - start)
    note_write(s, slot, start, stop, start)
    return start, stop


@compiled
def _look_up(s: State, request: int) -> None:
    """Find the leading blocks of a prompt that are known, into ``s.hit_blocks``.

    At least one token stays to be computed. What was found for the same head before is kept up by
    `hold_block`, `drop_block` and `take_block`: only what follows is looked up again.
    """
    c = s.c
    if c[C.HEAD] != request:
        _forget_head(s)
        c[C.HEAD] = request
    size = c[C.BLOCK_SIZE]
    segment = s.segment_offsets[request]
    for entry in range(c[C.HEAD_HITS], (s.fate[F.TARGET, request] - 1) // size):
        segment = segment_at(s, segment, (entry + 1) * size)
        block = find(s, segment, entry)
        if block < 0:
            return
        s.hit_blocks[entry] = block
        s.head_entry[block] = entry + 1
        c[C.HEAD_HITS] = entry + 1
        c[C.HEAD_LIVE_HITS] += s.blocks[block, B.IDLE_PLACE] < 0


@compiled
def _forget_head(s: State) -> None:
    forget_hits(s, 0)
    s.c[C.HEAD] = -1


@compiled
def _fits(s: State, request: int, hits: int) -> bool:
    """Ask the gate of `kvsuite.cache.paged.PagedCache.admit`; a refusal is counted by its reason."""
    c = s.c
    size = c[C.BLOCK_SIZE]
    idle_hits = hits - c[C.HEAD_LIVE_HITS]
    needed = (s.fate[F.TARGET, request] + size - 1) // size - hits
    spare = c[C.FREE] + c[C.IDLE] - idle_hits - needed
    watermark = c[C.WATERMARK] if c[C.RUNNING] else 0
    if watermark <= spare - c[C.PROMISED]:
        return True
    if spare < 0:
        s.refusals[NO_BLOCKS] += 1
    elif spare < c[C.PROMISED]:
        s.refusals[PROMISED] += 1
    else:
        s.refusals[WATERMARK] += 1
    return False
