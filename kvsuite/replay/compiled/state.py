"""Everything a compiled replay knows, as arrays; names of the scalars in ``State.c``.

A *slot* is a seat of the batch, ``0..max_sequences``; a request takes one while it runs. Blocks, slots and
requests are numbers, and -1 is none.
"""

from __future__ import annotations

import mmap
from enum import IntEnum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsuite.replay.compiled.requests import Requests

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

NEW, WAITING, RUNNING, ENDED = range(4)
"""Status of a request."""
FINISHED, CANCELLED, REJECTED, FORK_DENIED, ORPHANED = range(5)
"""Endings, in the order of `kvsuite.replay.batch.Ending`."""
NO_BLOCKS, PROMISED, WATERMARK = range(3)
"""Reasons of a refused admission."""


class C(IntEnum):
    """Places in ``State.c``."""

    # what was asked for
    NUM_BLOCKS = 0
    BLOCK_SIZE = 1
    NULL_BLOCKS = 2
    WATERMARK = 3
    PREFIX_CACHE = 4
    MAX_SEQUENCES = 5
    MAX_STEP_TOKENS = 6
    FORKS = 8
    """Whether any request of the trace has children."""
    # the pool
    FREE = 9
    IDLE = 10
    IDLE_HEAD = 11
    IDLE_TAIL = 12
    PROMISED = 13
    SHARED = 14
    """Blocks with more than one holder."""
    # the batch
    STEP = 15
    INTERVAL = 16
    """Rows taken so far: what happens between two rows carries one number."""
    RUNNING = 17
    FREE_SLOTS = 18
    WAITING = 19
    WAIT_HEAD = 20
    WAIT_TAIL = 21
    PREFILLING = 22
    """Running sequences whose prompt is not computed."""
    PARENTS = 23
    """Running sequences with children in the trace."""
    FINISHING = 24
    """Sequences that may be finished at the end of the step."""
    NEXT_ARRIVAL = 25
    NEXT_CANCEL = 26
    DUE_NEXT = 27
    """Cancellations due in the next step."""
    PRESSED = 28
    ENDED = 29
    # since the row before
    COPIES = 30
    GONE = 31
    WRITES = 32
    # rows and lists that grow
    ORDERED = 33
    """Entries of ``State.by_length``."""
    TOUCHED = 34
    ID_ORDER = 35
    TABLE_ENTRIES = 36
    LOGICAL = 37
    FINAL_LENGTHS = 38
    CARRIED_FREED = 39
    """Blocks freed at the end of the last step: the next row shows them."""
    # what is known of the head of the queue, so that a blocked one is not looked up again at every step
    HEAD = 40
    """The request that ``State.hit_blocks`` belong to, else -1."""
    HEAD_HITS = 41
    HEAD_LIVE_HITS = 42
    """Of those, blocks that a sequence holds."""


NUM_COUNTERS = 43


class A(IntEnum):
    """Rows of ``State.asked``: a request, as the trace gives it."""

    ARRIVAL_STEP = 0
    PROMPT = auto()
    OUTPUT = auto()
    CANCEL_AFTER = auto()
    CANCEL_STEP = auto()
    FORK_AT = auto()
    SPAWNED = auto()
    """1 for a child that shares nothing."""


class F(IntEnum):
    """Rows of ``State.fate``: a request, as it fares."""

    STATUS = 0
    SLOT_OF = auto()
    TARGET = auto()
    GENERATED = auto()
    WRITTEN_BEFORE = auto()
    NEXT_WAITING = auto()
    PREVIOUS_WAITING = auto()
    ENDING = auto()
    ARRIVED_STEP = auto()
    ADMITTED_STEP = auto()
    FIRST_TOKEN_STEP = auto()
    ENDED_STEP = auto()
    HIT_TOKENS = auto()
    PREEMPTIONS = auto()


class G(IntEnum):
    """Rows of ``State.segments``."""

    KEY = 0
    END = auto()
    """The first position after it."""
    SHARED = auto()
    """1 where more than one request of the trace has the key."""


class S(IntEnum):
    """Rows of ``State.slots``."""

    REQUEST = 0
    LENGTH = auto()
    ENTRIES = auto()
    SEEN_ENTRIES = auto()
    """Entries of the table when the last row was taken; of a new sequence, those it found."""
    PROMISED = auto()
    PUBLISHED = auto()
    SEGMENT = auto()
    """Where the walk over the request's segments stands, as blocks are published."""
    MAY_SHARE_TAIL = auto()
    FINISHING = auto()
    COPIED_NOW = auto()
    LISTED = auto()


class B(IntEnum):
    """Places in a row of ``State.blocks``."""

    EXTRA = 0
    """Holders beyond the first: never touched for a block that only one sequence ever held."""
    IDLE_PLACE = auto()
    """Where it stands in ``State.idle``; -1 while it is not idle."""
    IDLE_SINCE = auto()
    """The interval in which it was cached last."""
    FIRST_USE = auto()
    HEAD_ENTRY = auto()
    """The entry that the head of the queue would find it at, counted from 1; 0 for none."""
    KEY = auto()
    """Segment of its prefix key, counted from 1; 0 for none. The key is that with the next."""
    ENTRY = auto()
    MAPPED = auto()
    """Whether the map has it: see `kvsuite.replay.compiled.blocks.publish`."""


GROUP = 8
"""Prefix keys of so many entries in a row have one place of the map, as they are asked for in a row."""


class M(IntEnum):
    """Places in a row of ``State.map``, the first ``GROUP`` apart, which are the blocks; -1 for none."""

    KEY = GROUP
    """Segment of the keys, counted from 1; 0 in an empty row."""
    ENTRIES = auto()
    """Their entries, divided by ``GROUP``."""


MAP_FIELDS = 16
"""Some of them unused: 64 bytes, a cache line."""


class State(NamedTuple):
    """Arrays of one replay. Shapes: R requests, S slots, N blocks, W blocks of the longest sequence."""

    c: Int64Array
    row: Int64Array
    """int64[columns]: the row under way, in the order of `kvsuite.replay.compiled.columns`."""
    arrivals: Int64Array
    cancel_order: Int64Array
    child_offsets: Int64Array
    children: Int64Array
    segment_offsets: Int64Array
    segments: Int64Array
    """int64[G members, segments]; these six are arrays of `Requests`."""
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
    """int64[2S]: slots by length, ascending, as of the last row; new ones behind them."""
    table: Int32Array
    """int32[S, W]"""
    free: Int32Array
    """int32[N]: the free stack, ``c[FREE]`` of it."""
    blocks: Int32Array
    """int32[N, B]: what belongs together lies in one cache line."""
    idle: Int32Array
    """int32[places]: a ring of idle blocks, cached longest ago first; one that came back into use leaves a
    place that its ``IDLE_PLACE`` does not name."""
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
) -> State:
    """Return the state before the first step: every block free, nobody there."""
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
    }.items():
        c[place] = value
    fate = np.full((len(F), count), -1, np.int32)
    fate[[F.STATUS, F.TARGET, F.GENERATED, F.WRITTEN_BEFORE, F.HIT_TOKENS, F.PREEMPTIONS]] = 0
    free = np.full(num_blocks, -1, np.int32)
    free[: num_blocks - null_blocks] = np.arange(num_blocks - 1, null_blocks - 1, -1)
    blocks = _lines(num_blocks, len(B))
    blocks[:, [B.IDLE_PLACE, B.IDLE_SINCE, B.FIRST_USE]] = -1
    # Room for as many groups as blocks, should each be alone in its own.
    prefix_map = _lines(_power_of_two(num_blocks * 5 // 4) if prefix_cache else 1, MAP_FIELDS)
    prefix_map[:, :GROUP] = -1
    cancels = len(requests.cancel_order) + int((requests.asked[A.CANCEL_AFTER] >= 0).sum())
    return State(
        c=c,
        row=np.zeros(columns, np.int64),
        arrivals=requests.arrivals,
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
        by_length=np.full(2 * seats, -1, np.int64),
        table=_lines(seats, width),
        free=free,
        blocks=blocks,
        idle=np.zeros(_power_of_two(2 * num_blocks) if prefix_cache else 1, np.int32),
        holders=np.zeros(num_blocks, np.int32),
        map=prefix_map,
        copies=np.zeros((2 * seats, 4), np.int64),
        gone=np.zeros((2 * seats, 2), np.int64),
        hit_blocks=np.zeros(width, np.int32),
        writes=np.zeros((seats, 4), np.int64),
    )


def _power_of_two(least: int) -> int:
    return 1 << max(3, (least - 1).bit_length())


def _lines(rows: int, fields: int) -> Int32Array:
    """Return zeros, int32[rows, fields], on huge pages where the system gives them.

    Blocks are met in no order, and on pages of 4 KiB each of them costs a walk of the page table.
    """
    memory = mmap.mmap(-1, max(rows * fields * 4, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.int32, rows * fields).reshape(rows, fields)
