"""Names of the places in the arrays of a compiled replay.

A *slot* is a seat of the batch, ``0..max_sequences``; a request takes one while it runs. Blocks, slots and
requests are numbers, and -1 is none.
"""

from __future__ import annotations

from enum import IntEnum, auto

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
    """Places of ``State.idle`` left behind so far; the ring is as long as a power of two."""
    IDLE_TAIL = 12
    """Places filled so far."""
    PROMISED = 13
    SHARED = 14
    """Blocks with more than one holder."""
    # the batch
    STEP = 15
    IDLE_MARK = 16
    """``IDLE_TAIL`` at the last row: what was cached since is not evicted, but gone before it was seen."""
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
    DECODERS = 33
    """Running sequences whose prompt is computed, and entries of ``State.by_length``."""
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
    # decoding
    TICKS = 43
    """Decode phases so far: see `kvsuite.replay.compiled.decoders`."""
    DECODED = 44
    """Decoders that write a token in this step; 0 until the step has come so far."""
    FRESH = 45
    """Entries of ``State.fresh``."""
    SHARED_TAILS = 46
    """Running sequences with ``S.MAY_SHARE_TAIL``."""
    GROWN = 47
    """Entries of ``State.grown``."""
    AGES = 48
    """Slots taken so far."""
    # what a step is charged for, and when it ends: see `kvsuite.replay.compiled.timing`
    CLOCKED = 49
    """Whether steps last as long as what they do."""
    BASES = 50
    """Sum of ``S.LENGTH`` of decoders."""
    DECODED_CONTEXT = 51
    """Sum of the lengths of the decoders that write a token in this step."""
    PAIRS = 52
    """Tokens of this step's chunks times the tokens that each reads."""
    ENDS = 53
    """Entries of ``State.ends_us`` and ``State.measured``."""
    SPANS = 54
    """Entries of ``State.spans``."""
    FETCHED = 55
    """What `blocks.fetch_idle` read: written, so that it is read."""


NUM_COUNTERS = 56


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
    """Tokens computed; of a decoder less the ticks of the clock: see `decoders.length_of`."""
    DECODING = auto()
    """1 once the prompt is computed."""
    BECAME = auto()
    """The tick at which it became a decoder."""
    AGE = auto()
    CLASS_NEXT = auto()
    CLASS_PREVIOUS = auto()
    DUE_NEXT = auto()
    DUE_PREVIOUS = auto()
    DUE_TICK = auto()
    """Where it stands in the calendar; -1 where it does not."""
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
    GROWN = auto()
    """1 while it stands in ``State.grown``."""


class K(IntEnum):
    """Rows of ``State.classes``."""

    FIRST = 0
    LAST = auto()
    COUNT = auto()


class B(IntEnum):
    """Places in a row of ``State.blocks``."""

    EXTRA = 0
    """Holders beyond the first: never touched for a block that only one sequence ever held."""
    IDLE_PLACE = auto()
    """Where it stands in ``State.idle``; -1 while it is not idle."""
    KEY = auto()
    """Segment of its prefix key, counted from 1; 0 for none. The key is that with the next.

    Negative while the map does not have it: see `kvsuite.replay.compiled.blocks.publish`."""
    ENTRY = auto()


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
