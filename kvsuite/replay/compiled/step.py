"""One step of continuous batching in compiled form; the rules are those of `kvsuite.replay.scheduler`."""

from __future__ import annotations

from kvsuite.replay.compiled.blocks import drop_block, find, hold_block, prefix_key, publish, take_block
from kvsuite.replay.compiled.columns import Col
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.population import (
    arrive_due,
    cancel_due,
    finish_due,
    fork_due,
    note_finishing,
    plan_cancel,
    preempt_youngest,
    stop_waiting_first,
    take_slot,
)
from kvsuite.replay.compiled.state import NO_BLOCKS, PROMISED, WATERMARK, A, B, C, F, S, State


@compiled
def next_step(s: State, step: int) -> int:
    """Return the next step with work to do, from ``step`` on; -1 when all is done."""
    c = s.c
    if c[C.RUNNING] or c[C.WAITING]:
        return step
    if c[C.NEXT_ARRIVAL] == len(s.arrivals):
        return -1
    return max(step, s.asked[A.ARRIVAL_STEP, s.arrivals[c[C.NEXT_ARRIVAL]]])


@compiled
def begin(s: State, step: int) -> None:
    """Schedule one step and take blocks for it; ``s.writes`` and ``s.copies`` say what it does."""
    c = s.c
    c[C.PRESSED] = 0
    c[C.WRITES] = 0
    cancel_due(s, step)
    arrive_due(s, step)
    _decode(s, step)
    budget = c[C.MAX_STEP_TOKENS] - c[C.WRITES]
    if c[C.PREFILLING]:
        budget = _prefill(s, budget, step)
    if c[C.WAITING] and not c[C.PRESSED]:
        _admit(s, budget, step)
    _drop_lapsed_writes(s)
    s.row[Col.WAITING] = c[C.WAITING]


@compiled
def settle(s: State, step: int) -> None:
    """Publish what the step has filled, then fork and end what is due."""
    if s.c[C.PREFIX_CACHE]:
        for k in range(s.c[C.WRITES]):
            _publish_full(s, s.writes[k, 0])
    fork_due(s, step)
    finish_due(s, step)


@compiled
def _decode(s: State, step: int) -> None:
    c = s.c
    size = c[C.BLOCK_SIZE]
    k = 0
    while k < c[C.RUNNING]:
        slot = s.running[k]
        request = s.slots[S.REQUEST, slot]
        length = s.slots[S.LENGTH, slot]
        k += 1
        if length < s.fate[F.TARGET, request]:
            continue
        wanting = length == s.slots[S.ENTRIES, slot] * size or s.slots[S.MAY_SHARE_TAIL, slot] == 1
        if wanting and not _grow(s, slot, length + 1) and not _make_room(s, slot, length + 1, step):
            continue
        s.slots[S.LENGTH, slot] = length + 1
        s.fate[F.TARGET, request] = length + 1
        c[C.LOGICAL] += 1
        generated = s.fate[F.GENERATED, request] + 1
        s.fate[F.GENERATED, request] = generated
        if s.fate[F.FIRST_TOKEN_STEP, request] < 0:
            s.fate[F.FIRST_TOKEN_STEP, request] = step
        if generated >= s.asked[A.OUTPUT, request]:
            note_finishing(s, slot)
        if generated == s.asked[A.CANCEL_AFTER, request]:
            plan_cancel(s, request, step)
        _write(s, slot, length, length + 1, 0)


@compiled
def _prefill(s: State, budget: int, step: int) -> int:
    c = s.c
    k = 0
    while k < c[C.RUNNING] and budget > 0:
        slot = s.running[k]
        request = s.slots[S.REQUEST, slot]
        start, target = s.slots[S.LENGTH, slot], s.fate[F.TARGET, request]
        k += 1
        if start >= target:
            continue
        stop = min(target, start + budget)
        if not _grow(s, slot, stop) and not _make_room(s, slot, stop, step):
            continue
        s.slots[S.LENGTH, slot] = stop
        c[C.LOGICAL] += stop - start
        budget -= stop - start
        if stop == target:
            c[C.PREFILLING] -= 1
            note_finishing(s, slot)
        _write(s, slot, start, stop, 0)
    return budget


@compiled
def _admit(s: State, budget: int, step: int) -> None:
    c = s.c
    while c[C.WAITING] and c[C.RUNNING] < c[C.MAX_SEQUENCES] and budget > 0:
        request = c[C.WAIT_HEAD]
        hits = _hits(s, request)
        if not _fits(s, request, hits):
            c[C.PRESSED] = 1
            s.row[Col.REFUSED_ADMISSIONS] += 1
            return
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
        s.row[Col.REACTIVATED] += s.blocks[B.REFS, block] == 0
        hold_block(s, block)
        s.table[slot, entry] = block
    s.slots[S.ENTRIES, slot] = hits
    s.slots[S.SEEN_ENTRIES, slot] = hits
    s.slots[S.PUBLISHED, slot] = hits
    c[C.TABLE_ENTRIES] += hits
    total = (target + size - 1) // size
    s.slots[S.PROMISED, slot] = total - hits
    c[C.PROMISED] += total - hits
    _append_blocks(s, slot, (stop + size - 1) // size)
    s.slots[S.LENGTH, slot] = stop
    c[C.LOGICAL] += stop
    if stop < target:
        c[C.PREFILLING] += 1
    else:
        note_finishing(s, slot)
    if first:
        s.fate[F.HIT_TOKENS, request] = start
        s.row[Col.HIT] += start
    else:
        s.row[Col.RESUMED_HIT] += start
    if s.fate[F.GENERATED, request] > 0 and s.fate[F.FIRST_TOKEN_STEP, request] < 0:
        s.fate[F.FIRST_TOKEN_STEP, request] = step
    s.row[Col.ADMITTED] += 1
    s.row[Col.RECOMPUTED] += max(0, min(s.fate[F.WRITTEN_BEFORE, request], stop) - start)
    _write(s, slot, start, stop, start)
    return start, stop


@compiled
def _hits(s: State, request: int) -> int:
    """Find the leading blocks of a prompt that are known, into ``s.hit_blocks``; return how many.

    At least one token stays to be computed.
    """
    if not s.c[C.PREFIX_CACHE]:
        return 0
    size = s.c[C.BLOCK_SIZE]
    segment = s.segment_offsets[request]
    limit = (s.fate[F.TARGET, request] - 1) // size
    for entry in range(limit):
        segment = _segment_at(s, segment, (entry + 1) * size)
        block = find(s, prefix_key(s, segment, (entry + 1) * size))
        if block < 0:
            return entry
        s.hit_blocks[entry] = block
    return limit


@compiled
def _fits(s: State, request: int, hits: int) -> bool:
    """Ask the gate of `kvsuite.cache.paged.PagedCache.admit`; a refusal is counted by its reason."""
    c = s.c
    size = c[C.BLOCK_SIZE]
    idle_hits = 0
    for entry in range(hits):
        idle_hits += s.blocks[B.REFS, s.hit_blocks[entry]] == 0
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


@compiled
def _make_room(s: State, slot: int, length: int, step: int) -> bool:
    """Preempt the youngest until ``slot`` has room for ``length``; False when it gave way itself."""
    s.c[C.PRESSED] = 1
    s.row[Col.REFUSED_GROWTHS] += 1
    while True:
        if preempt_youngest(s, step) == slot:
            return False
        if _grow(s, slot, length):
            return True
        s.row[Col.REFUSED_GROWTHS] += 1


@compiled
def _grow(s: State, slot: int, length: int) -> bool:
    """Take the blocks for ``length`` tokens, a private copy of a shared tail among them; all or nothing."""
    c = s.c
    size = c[C.BLOCK_SIZE]
    entries = s.slots[S.ENTRIES, slot]
    new = (length + size - 1) // size - entries
    filled = s.slots[S.LENGTH, slot] % size
    copies = 0
    if s.slots[S.MAY_SHARE_TAIL, slot]:
        copies = int(filled > 0 and s.blocks[B.REFS, s.table[slot, entries - 1]] > 1)
    if new + copies > c[C.FREE] + c[C.IDLE]:
        return False
    s.slots[S.MAY_SHARE_TAIL, slot] = 0
    if copies:
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
    _append_blocks(s, slot, entries + new)
    return True


@compiled
def _append_blocks(s: State, slot: int, entries: int) -> None:
    c = s.c
    old = s.slots[S.ENTRIES, slot]
    for entry in range(old, entries):
        s.table[slot, entry] = take_block(s)
    s.slots[S.ENTRIES, slot] = entries
    c[C.TABLE_ENTRIES] += entries - old
    kept_promise = max(0, s.slots[S.PROMISED, slot] - (entries - old))
    c[C.PROMISED] += kept_promise - s.slots[S.PROMISED, slot]
    s.slots[S.PROMISED, slot] = kept_promise


@compiled
def _publish_full(s: State, slot: int) -> None:
    size = s.c[C.BLOCK_SIZE]
    full = s.slots[S.LENGTH, slot] // size
    segment = s.slots[S.SEGMENT, slot]
    for entry in range(s.slots[S.PUBLISHED, slot], full):
        segment = _segment_at(s, segment, (entry + 1) * size)
        publish(s, prefix_key(s, segment, (entry + 1) * size), s.table[slot, entry])
    s.slots[S.SEGMENT, slot] = segment
    s.slots[S.PUBLISHED, slot] = full


@compiled
def _segment_at(s: State, segment: int, end: int) -> int:
    """Return the segment that holds the token before ``end``, walking on from ``segment``."""
    while s.segments[1, segment] < end:
        segment += 1
    return segment


@compiled
def _write(s: State, slot: int, start: int, stop: int, hit: int) -> None:
    place = s.c[C.WRITES]
    s.writes[place, 0] = slot
    s.writes[place, 1] = start
    s.writes[place, 2] = stop
    s.writes[place, 3] = hit
    s.c[C.WRITES] += 1


@compiled
def _drop_lapsed_writes(s: State) -> None:
    """Take out the writes of those who gave way after they were scheduled, and add up the others."""
    c = s.c
    kept, written = 0, 0
    preempted = s.row[Col.PREEMPTED] > 0
    for k in range(c[C.WRITES]):
        if preempted:
            if s.slots[S.REQUEST, s.writes[k, 0]] < 0:
                continue
            for field in range(4):
                s.writes[kept, field] = s.writes[k, field]
        kept += 1
        written += s.writes[k, 2] - s.writes[k, 1]
    c[C.WRITES] = kept
    s.row[Col.WRITTEN] = written
