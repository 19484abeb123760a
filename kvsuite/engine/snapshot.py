"""What an engine lets us see: its pools, as they are and as they stand at one moment."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from kvsuite.trace.model import RequestId

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

NO_BLOCKS: Int32Array = np.zeros(0, np.int32)
MAX_BLOCKS = 2**31 - 1
"""Largest pool: block ids are int32."""


def _no_blocks() -> Int32Array:
    return NO_BLOCKS


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    """Which pool: layer group, tier (``device`` or ``host``) and tensor-parallel rank."""

    group: int = 0
    tier: str = "device"
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.tier}/g{self.group}/r{self.rank}"


class PoolKind(enum.Enum):
    """How many blocks of a pool a sequence of ``n`` tokens holds."""

    FULL = "full"
    """``ceil(n / b)``."""
    WINDOW = "window"
    """Those that meet the last ``window_tokens`` tokens; what fell out is null in the table."""
    RING = "ring"
    """``ceil(min(n, W) / b)``: token ``p`` lies in slot ``p mod W`` of the table, over token ``p - W``."""
    STATE = "state"
    """One, whatever the length: a recurrent state."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The fixed facts of one pool of ``num_blocks`` blocks of ``block_size`` tokens.

    A block holds ``block_size * bytes_per_token + pad_bytes_per_block`` bytes.
    """

    key: PoolKey
    num_blocks: int
    block_size: int
    bytes_per_token: int
    pad_bytes_per_block: int = 0
    never_allocatable_blocks: int = 0
    table_entry_bytes: int = 4
    """Bytes of one block-table entry; 0 for a contiguous pool, which needs no table."""
    contiguous: bool = False
    """A control that needs one unbroken run of slots a sequence; False for every paged engine."""
    kind: PoolKind = PoolKind.FULL
    window_tokens: int | None = None
    """Tokens a `PoolKind.WINDOW` or `PoolKind.RING` pool still needs, the newest included."""
    kernel_block_size: int | None = None
    """Tokens of a block as the attention kernel sees it; ``None``: the same."""
    hash_block_size: int | None = None
    """Tokens a prefix key stands for; ``None``: the same."""
    index_bits: int = 64
    """Width of the integers that address an element of the pool."""

    def stored_tokens(self, lengths: Int64Array) -> Int64Array:
        """Return how many tokens of sequences of ``lengths`` have slots: in a ring, the last ``W``."""
        if self.kind is PoolKind.RING and self.window_tokens is not None:
            return np.minimum(lengths, self.window_tokens)
        return lengths

    @property
    def usable_blocks(self) -> int:
        """Blocks a sequence can ever own."""
        return self.num_blocks - self.never_allocatable_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, padding included."""
        return self.block_size * self.bytes_per_token + self.pad_bytes_per_block

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool at one moment, read-only.

    A *full* snapshot (``since is None``) lists everything. A *changed* one (``since`` is the revision it
    builds on) still lists every live sequence with its length, but gives only the tables that changed
    and, for blocks, only those whose state or reference count changed. An engine may always answer with
    a full one; applying changes to the last full one must give the next full one, and the replay checks
    that it does.
    """

    key: PoolKey
    revision: int
    since: int | None
    request_ids: tuple[RequestId, ...]
    """Every live sequence, oldest first."""
    lengths: Int64Array
    """int64[R]: tokens each live sequence holds slots for, look-ahead apart; in a `PoolKind.STATE` pool the
    block size, because a state fills its block."""
    table_rows: Int32Array
    """int32[C]: which of ``request_ids`` the tables below belong to; 0..R-1 in a full snapshot."""
    table_offsets: Int64Array
    """int64[C + 1]: table ``c`` is ``table_blocks[table_offsets[c]:table_offsets[c + 1]]``."""
    table_blocks: Int32Array
    """int32: block ids in token order; null ids where a window has let go."""
    free: Int32Array
    """Usable now, nothing of value inside. Changed snapshots: those that became free."""
    cached: Int32Array
    """Held by no sequence, content can still be hit. Changed snapshots: those that became cached."""
    quarantined: Int32Array = field(default_factory=_no_blocks)
    """Released while a step or transfer may still touch them. Changed: those that became so."""
    live: Int32Array = field(default_factory=_no_blocks)
    """Only in changed snapshots: blocks that came into use (from free, cached or quarantined)."""
    never_allocatable: Int32Array = field(default_factory=_no_blocks)
    """Null and trash blocks; given in every snapshot."""
    null_ids: Int32Array = field(default_factory=_no_blocks)
    """Ids that may stand in a table without being owned."""
    pinned: Int32Array = field(default_factory=_no_blocks)
    """Block ids that a transfer holds at either end, or a launched step for a sequence that has left; once a
    pin, in full in every snapshot. A pin counts as a holder in the reference count; a pinned block without a
    sequence is quarantined."""
    ref_count_ids: Int32Array | None = None
    """Blocks whose reference count the engine claims (full: all above 0; changed: those that changed);
    ``None``: the engine keeps no counts that we can see."""
    ref_counts: Int32Array | None = None
    first_live: Int64Array | None = None
    """int64[R]: first token each sequence still holds; ``None``: all hold from token 0."""
    lookahead_tokens: int = 0
    """Slots beyond its length that each sequence may hold (declared, for drafts)."""
    largest_free_run: int | None = None
    """For contiguous pools: the longest hole, in blocks. ``None`` where any free block serves."""

    @property
    def is_full(self) -> bool:
        """Whether the snapshot stands by itself."""
        return self.since is None

    def table(self, c: int) -> Int32Array:
        """Return the ``c``-th table given."""
        return self.table_blocks[self.table_offsets[c] : self.table_offsets[c + 1]]


STORAGE_ROLES = ("pool", "tables", "workspace")


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine reports of one pool to whoever watches it; each share lies in 0..1."""

    key: PoolKey
    used: float
    """Live and quarantined blocks over usable ones."""
    cached: float
    free: float
    capacity_tokens: int
    """Longest single sequence the empty pool takes, a whole number of blocks."""
    hit_tokens: int
    """Prompt tokens found so far, at first admissions only."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How an engine came to the size of its pools: every byte of the device named once.

    ``observed = neighbour + weights + activation + graphs + other + pool + slack``, and what was requested is
    what is in force.
    """

    observed_bytes: int
    weights_bytes: int
    activation_bytes: int
    graphs_bytes: int
    other_bytes: int
    pool_bytes: int
    slack_bytes: int
    requested_fraction: float
    effective_fraction: float
    fraction_of: str
    """``total`` or ``free``: what the fraction is a fraction of."""
    rank_pool_blocks: tuple[int, ...] = ()
    """Blocks that each rank's own budget would hold; all ranks use the smallest."""
    neighbour_bytes: int = 0
    """Bytes of the device that belong to other processes; part of what is observed."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation that an engine says it holds, counted once per ``data_pointer``."""

    role: str
    """One of `STORAGE_ROLES`."""
    data_pointer: int
    nbytes: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """What an engine says of its own memory: judged against the device, never believed."""

    storages: tuple[Storage, ...]
    claimed_cache_bytes: int
    """Bytes the engine reports as KV cache."""
    committed_cache_bytes: int | None = None
    """Bytes of the cache that memory really backs; ``None``: it makes no difference there, as on a card."""
