"""Everything a compiled replay knows, as arrays; names of the scalars in ``State.c``.

A *slot* is a seat of the batch, ``0..max_sequences``; a request takes one while it runs. Blocks, slots and
requests are numbers, and -1 is none.
"""

from __future__ import annotations

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


NUM_COUNTERS = 40


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
    """Rows of ``State.blocks``."""

    FREE = 0
    """The free stack, ``c[FREE]`` of it."""
    REFS = auto()
    IDLE_NEXT = auto()
    IDLE_PREVIOUS = auto()
    IDLE_SINCE = auto()
    FIRST_USE = auto()
    HOLDERS = auto()
    """Zero between uses: holders, where they must be recounted."""


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
    """int64[2, segments]: key and end; these six are arrays of `Requests`."""
    asked: Int64Array
    """int64[A, R]"""
    fate: Int64Array
    """int64[F, R]"""
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
    blocks: Int32Array
    """int32[B, N]"""
    key_of: Int64Array
    """int64[N]: the prefix key of each block, 0 for none."""
    map_keys: Int64Array
    map_blocks: Int32Array
    """Open addressing: the block of each key; a key of 0 is an empty place."""
    copies: Int64Array
    """int64[2S, 4]: slot, entry, source and tokens of each copy on write since the last row; 0 tokens where
    the copy lapsed."""
    gone: Int64Array
    """int64[2S, 2]: slots given up since the last row, with the entries last seen."""
    hit_blocks: Int32Array
    """int32[W]: blocks found for the request that asks to be admitted."""
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
        C.IDLE_HEAD: -1,
        C.IDLE_TAIL: -1,
        C.WAIT_HEAD: -1,
        C.WAIT_TAIL: -1,
        C.FREE_SLOTS: seats,
    }.items():
        c[place] = value
    fate = np.full((len(F), count), -1, np.int64)
    fate[[F.STATUS, F.TARGET, F.GENERATED, F.WRITTEN_BEFORE, F.HIT_TOKENS, F.PREEMPTIONS]] = 0
    blocks = np.full((len(B), num_blocks), -1, np.int32)
    blocks[[B.REFS, B.HOLDERS]] = 0
    blocks[B.FREE, : num_blocks - null_blocks] = np.arange(num_blocks - 1, null_blocks - 1, -1)
    places = 8
    while places < 2 * num_blocks:
        places *= 2
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
        table=np.zeros((seats, width), np.int32),
        blocks=blocks,
        key_of=np.zeros(num_blocks, np.int64),
        map_keys=np.zeros(places, np.int64),
        map_blocks=np.full(places, -1, np.int32),
        copies=np.zeros((2 * seats, 4), np.int64),
        gone=np.zeros((2 * seats, 2), np.int64),
        hit_blocks=np.zeros(width, np.int32),
        writes=np.zeros((seats, 4), np.int64),
    )
