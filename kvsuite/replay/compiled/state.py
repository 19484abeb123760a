"""Everything a compiled replay knows, in arrays; `kvsuite.replay.compiled.fields` names their places."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsuite.replay.compiled.fields import GROUP, MAP_FIELDS, NUM_COUNTERS, A, B, C, F, S
from kvsuite.replay.compiled.memory import refuse_beyond_memory
from kvsuite.replay.step_costs import FEATURES

if TYPE_CHECKING:
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.step_costs import StepCosts

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

COLLECTED_STEPS = 1 << 10
"""Most steps whose ends are kept until they are collected."""


class State(NamedTuple):
    """Arrays of one replay. Shapes: R requests, S slots, N blocks, W blocks of the longest sequence."""

    c: Int64Array
    row: Int64Array
    """int64[columns]: the row under way, in the order of `kvsuite.replay.compiled.columns`."""
    arrivals: Int64Array
    arrival_us: Int64Array
    cancel_at_us: Int64Array
    cancel_order: Int64Array
    child_offsets: Int64Array
    children: Int64Array
    segment_offsets: Int64Array
    segments: Int64Array
    """int64[G members, segments]; these eight are arrays of `Requests`."""
    asked: Int32Array
    """int32[A, R]"""
    fate: Int32Array
    """int32[F, R]"""
    final_lengths: Int64Array
    """Lengths at which sequences ended since they were last collected; ``c[FINAL_LENGTHS]`` of them."""
    refusals: Int64Array
    """int64[3]: refused admissions by reason."""
    due: Int64Array
    """int64[2, cancellations]: those due now, and ``c[DUE_NEXT]`` known to be due in the next step."""
    orphans: Int64Array
    slots: Int64Array
    """int64[S members, S]"""
    running: Int64Array
    """int64[S]: slots of running sequences, oldest first."""
    free_slots: Int64Array
    by_length: Int64Array
    """int64[S]: slots of decoders, shortest first."""
    merged: Int64Array
    """int64[2S]: where lengths are put in order."""
    classes: Int64Array
    """int64[K members, b]: decoders that fill their blocks in the same step, oldest first."""
    calendar: Int64Array
    """int64[ticks]: the first decoder with an event due at a tick, modulo its length."""
    fresh: Int64Array
    """int64[S]: slots that became decoders since the last decode phase."""
    grown: Int64Array
    """int64[S]: slots with new entries or a copy since the last row."""
    table: Int32Array
    """int32[S, W]"""
    free: Int32Array
    """int32[N]: the free stack, ``c[FREE]`` of it."""
    blocks: Int32Array
    """int32[N, B]: what belongs together lies in one cache line."""
    idle: Int32Array
    """int32[places]: a ring of idle blocks, cached longest ago first; one that came back into use leaves a
    place that its ``IDLE_PLACE`` does not name."""
    first_use: Int32Array
    """int32[N]: how many blocks had been used before it was first; -1 for one that was not."""
    head_entry: Int32Array
    """int32[N]: the entry that the head of the queue would find it at, counted from 1; 0 for none."""
    holders: Int32Array
    """int32[N]: zero between uses: holders, where they must be recounted."""
    map: Int32Array
    """int32[places, MAP_FIELDS]: blocks by prefix key, with open addressing."""
    copies: Int64Array
    """int64[2S, 4]: slot, entry, source and tokens of each copy on write since the last row; 0 tokens where
    the copy lapsed."""
    gone: Int64Array
    """int64[2S, 2]: slots given up since the last row, with the entries last seen."""
    hit_blocks: Int32Array
    """int32[W]: blocks found for the head of the queue."""
    writes: Int64Array
    """int64[S, 4]: slot, start, stop and hit of each write of this step, in order."""
    now_us: Float64Array
    """float64[1]: when the step under way began, on a clock of costs."""
    costs: Float64Array
    """float64[features]: see `kvsuite.replay.step_costs`."""
    features: Int64Array
    """int64[features]: of the step whose row was taken last."""
    ends_us: Float64Array
    """Ends of the steps since they were last collected; ``c[ENDS]`` of them."""
    measured: Int64Array
    """int64[steps, features]: of the same steps."""
    spans: Int32Array
    """int32[spans, 4], ``c[SPANS]`` of them since they were last collected: a request that decoded no longer,
    the step after the one in which it became a decoder, the last step that wrote a token of it, and 1 where
    that of the step after lapsed."""


def open_state(
    requests: Requests,
    *,
    num_blocks: int,
    block_size: int,
    null_blocks: int,
    watermark_blocks: int,
    prefix_cache: bool,
    max_sequences: int,
    max_step_tokens: int,
    columns: int,
    costs: StepCosts | None = None,
) -> State:
    """Return the state before the first step: every block free, nobody there.

    **Raises:** `ConfigError` for more blocks than the memory of this machine has room for.
    """
    refuse_beyond_memory(num_blocks, pool_bytes(num_blocks, prefix_cache=prefix_cache))
    count, seats = requests.asked.shape[1], max_sequences
    longest = int((requests.asked[A.PROMPT] + requests.asked[A.OUTPUT]).max(initial=0))
    width = min(-(-longest // block_size), num_blocks) + 1
    c = np.zeros(NUM_COUNTERS, np.int64)
    for place, value in {
        C.NUM_BLOCKS: num_blocks,
        C.BLOCK_SIZE: block_size,
        C.NULL_BLOCKS: null_blocks,
        C.WATERMARK: watermark_blocks,
        C.PREFIX_CACHE: int(prefix_cache),
        C.MAX_SEQUENCES: max_sequences,
        C.MAX_STEP_TOKENS: max_step_tokens,
        C.FORKS: int(len(requests.children) > 0),
        C.FREE: num_blocks - null_blocks,
        C.WAIT_HEAD: -1,
        C.WAIT_TAIL: -1,
        C.FREE_SLOTS: seats,
        C.HEAD: -1,
        C.CLOCKED: int(costs is not None),
    }.items():
        c[place] = value
    fate = np.full((len(F), count), -1, np.int32)
    fate[[F.STATUS, F.TARGET, F.GENERATED, F.WRITTEN_BEFORE, F.HIT_TOKENS, F.PREEMPTIONS]] = 0
    free = np.full(num_blocks, -1, np.int32)
    free[: num_blocks - null_blocks] = np.arange(num_blocks - 1, null_blocks - 1, -1)
    blocks = _lines(num_blocks, len(B))
    blocks[:, B.IDLE_PLACE] = -1
    # Room for as many groups as blocks, should each be alone in its own.
    prefix_map = _lines(_power_of_two(num_blocks * 5 // 4) if prefix_cache else 1, MAP_FIELDS)
    prefix_map[:, :GROUP] = -1
    cancels = len(requests.cancel_order) + int((requests.asked[A.CANCEL_AFTER] >= 0).sum())
    return State(
        c=c,
        row=np.zeros(columns, np.int64),
        arrivals=requests.arrivals,
        arrival_us=requests.arrival_us,
        cancel_at_us=requests.cancel_at_us,
        cancel_order=requests.cancel_order,
        child_offsets=requests.child_offsets,
        children=requests.children,
        segment_offsets=requests.segment_offsets,
        segments=requests.segments,
        asked=requests.asked,
        fate=fate,
        final_lengths=np.zeros(max(1 << 16, 8 * seats), np.int64),
        refusals=np.zeros(3, np.int64),
        due=np.zeros((2, 2 * cancels + 1), np.int64),
        orphans=np.zeros(len(requests.children) + 1, np.int64),
        slots=np.full((len(S), seats), 0, np.int64) - (np.arange(len(S)) == S.REQUEST)[:, None],
        running=np.full(seats, -1, np.int64),
        free_slots=np.arange(seats - 1, -1, -1),
        by_length=np.full(seats, -1, np.int64),
        merged=np.zeros(2 * seats, np.int64),
        classes=np.array([[-1], [-1], [0]]).repeat(block_size, axis=1),
        calendar=np.full(_power_of_two(2 + int(requests.asked[A.OUTPUT].max(initial=0))), -1, np.int64),
        fresh=np.zeros(seats, np.int64),
        grown=np.zeros(seats, np.int64),
        table=_lines(seats, width),
        free=free,
        blocks=blocks,
        idle=np.zeros(_power_of_two(2 * num_blocks) if prefix_cache else 1, np.int32),
        first_use=np.full(num_blocks, -1, np.int32),
        head_entry=np.zeros(num_blocks, np.int32),
        holders=np.zeros(num_blocks, np.int32),
        map=prefix_map,
        copies=np.zeros((2 * seats, 4), np.int64),
        gone=np.zeros((2 * seats, 2), np.int64),
        hit_blocks=np.zeros(width, np.int32),
        writes=np.zeros((seats, 4), np.int64),
        now_us=np.zeros(1, np.float64),
        costs=np.array(costs.in_order if costs else [0.0] * len(FEATURES), np.float64),
        features=np.zeros(len(FEATURES), np.int64),
        ends_us=np.zeros(COLLECTED_STEPS if costs else 1, np.float64),
        measured=np.zeros((COLLECTED_STEPS if costs else 1, len(FEATURES)), np.int64),
        spans=np.zeros((max(1 << 16 if costs else 0, 8 * seats), 4), np.int32),
    )


def _power_of_two(least: int) -> int:
    return 1 << max(3, (least - 1).bit_length())


def pool_bytes(num_blocks: int, *, prefix_cache: bool) -> int:
    """Return the bytes of the arrays of `State` that grow with the blocks: int32 throughout."""
    entries = num_blocks * (len(B) + 4)
    if prefix_cache:
        entries += _power_of_two(num_blocks * 5 // 4) * MAP_FIELDS + _power_of_two(2 * num_blocks)
    return 4 * entries


def _lines(rows: int, fields: int) -> Int32Array:
    """Return zeros, int32[rows, fields], on huge pages where the system gives them.

    Blocks are met in no order, and on pages of 4 KiB each of them costs a walk of the page table.
    """
    memory = mmap.mmap(-1, max(rows * fields * 4, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int32, rows * fields).reshape(rows, fields)
