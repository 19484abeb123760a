"""A paged KV cache as bookkeeping: which block of the pool holds which tokens of which sequence.

It holds no tensors; `PagedCache.slot` says where a token belongs in those of the caller.

>>> cache = PagedCache(num_blocks=8, block_size=4)
>>> cache.admit("r1", 6, keys=["system"])              # 6 tokens need 2 blocks; block 0 is full
Admitted(hit_tokens=0, scheduled_tokens=6)
>>> cache.publish("r1", ["system"])                    # computed: others may share it from now on
>>> cache.admit("r2", 7, keys=["system"])              # r2 starts with the same 4 tokens
Admitted(hit_tokens=4, scheduled_tokens=7)
>>> cache.tables["r1"], cache.tables["r2"]
(BlockTable([0, 1], length=6), BlockTable([0, 2], length=7))
>>> cache.fork("r1", "r1-b")                           # shares everything, the half full block too
>>> cache.extend("r1-b", 1)                            # so the first to write gets a copy of it
True
>>> cache.take_copies()
[Copy(source=1, target=3, num_tokens=2, sequence='r1-b')]
>>> cache.admit("r3", 40)
Shortfall(needed_blocks=10, free_blocks=4, reclaimable_blocks=0, promised_blocks=0, never_fits=True)
>>> for sequence in ("r1", "r2", "r1-b"):
...     cache.release(sequence)
>>> cache.pool.num_free, cache.pool.num_cached         # the shared prompt stays for the next one
(7, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.cache.block_pool import BlockPool
from kvsuite.cache.block_table import BlockTable, blocks_for
from kvsuite.cache.prefix_cache import PrefixCache
from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Hashable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that is live now, and how many of its tokens were found and have slots."""

    hit_tokens: int
    scheduled_tokens: int


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a sequence was not admitted. The gate is described at `PagedCache.admit`."""

    needed_blocks: int
    """New blocks for the whole prompt, hits apart."""
    free_blocks: int
    reclaimable_blocks: int
    """Cached-idle blocks that are not among the sequence's own hits."""
    promised_blocks: int
    """Blocks that prompts admitted before have yet to take."""
    never_fits: bool
    """The prompt is larger than the empty pool."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the first ``num_tokens`` slots of block ``source`` to ``target``, before the next write."""

    source: int
    target: int
    num_tokens: int
    sequence: str


class PagedCache:
    """Admits, grows, forks and releases sequences over one pool of blocks.

    A refused operation (a `Shortfall`, or False) changes nothing, not even the order of eviction.
    Sequences are named by strings, prefixes by any hashable chain identity, one a full block.

    **Raises:** `BlockError` from every method for a sequence that is unknown, or live already.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        watermark_blocks: int = 0,
        never_allocatable_blocks: int = 0,
    ) -> None:
        if block_size < 1:
            raise ConfigError(f"block size {block_size} is not positive: give a size of 1 token or more")
        self.block_size = block_size
        self.watermark_blocks = watermark_blocks
        self.pool = BlockPool(num_blocks, never_allocatable_blocks=never_allocatable_blocks)
        self.prefixes = PrefixCache() if prefix_cache else None
        self._ref_counts = self.pool.ref_counts
        self._tables: dict[str, BlockTable] = {}
        self._promised_blocks = 0
        self._copies: list[Copy] = []
        self._changed: set[str] = set()

    @property
    def tables(self) -> Mapping[str, BlockTable]:
        """Live sequences, oldest first; for reading."""
        return self._tables

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of ``num_tokens`` holds."""
        return blocks_for(num_tokens, self.block_size)

    def slot(self, sequence: str, position: int) -> int:
        """Return the pool slot of a token: ``block * block_size + offset``."""
        table = self._table(sequence, "slot")
        if not 0 <= position < table.length:
            raise BlockError(f"{sequence} holds {table.length} tokens: position {position} has no slot")
        block, offset = divmod(position, self.block_size)
        return table.blocks[block] * self.block_size + offset

    def admit(
        self,
        sequence: str,
        num_tokens: int,
        *,
        first_chunk_tokens: int | None = None,
        keys: Sequence[Hashable] = (),
    ) -> Admitted | Shortfall:
        """Make ``sequence`` live with a prompt of ``num_tokens``, or say what is short.

        ``keys`` are the chain identities of its full blocks. Known ones are hits and held at once, but at
        least one token is always left to compute: at most ``num_tokens - 1`` tokens, in full blocks, hit.
        Slots are taken for the hits and ``first_chunk_tokens`` more (by default the rest).

        The gate asks for the whole prompt, chunked or not::

            new blocks + watermark <= free + cached-idle (own hits apart) - promised to earlier prompts

        so prompts that are computed in chunks side by side never count on the same block. Growth by
        decoding is not promised: it may still take those blocks. The watermark is waived when no sequence
        is live.
        """
        if sequence in self._tables:
            raise BlockError(f"{sequence} is live already: release it before it is admitted again")
        if num_tokens < 1 or (first_chunk_tokens is not None and first_chunk_tokens < 1):
            raise BlockError(
                f"{sequence}: {num_tokens} tokens in a first chunk of {first_chunk_tokens}: at least 1 each"
            )
        hits = self._hits(keys, (num_tokens - 1) // self.block_size)
        total = self.blocks_for(num_tokens)
        shortfall = self._shortfall(total, hits)
        if shortfall is not None:
            return shortfall
        hit_tokens = len(hits) * self.block_size
        scheduled = min(num_tokens, hit_tokens + (first_chunk_tokens or num_tokens))
        self.pool.hold(hits)
        table = BlockTable(hits, scheduled)
        table.blocks.extend(self._take(self.blocks_for(scheduled) - len(hits)))
        table.published_blocks = len(hits)
        self._promise(table, total - len(table.blocks))
        self._tables[sequence] = table
        self._changed.add(sequence)
        return Admitted(hit_tokens, scheduled)

    def extend(self, sequence: str, num_tokens: int) -> bool:
        """Take slots for ``num_tokens`` more tokens: all of them, or none and False.

        Where the last block is part full and shared, the sequence moves to a private copy of it.
        """
        try:
            table = self._tables[sequence]
        except KeyError:
            raise self._unknown(sequence, "extend") from None
        if num_tokens < 1:
            raise BlockError(f"{sequence} is extended by {num_tokens} tokens: at least 1")
        length, blocks = table.length + num_tokens, table.blocks
        if length <= len(blocks) * self.block_size and self._ref_counts[blocks[-1]] == 1:
            table.length = length
            return True
        return self._grow(sequence, table, length)

    def fork(self, parent: str, child: str) -> None:
        """Make ``child`` live with every block of ``parent``; costs no block until one of them writes."""
        table = self._table(parent, "fork")
        if child in self._tables:
            raise BlockError(f"{child} is live already: a fork of {parent} needs a new name")
        self._hold(table.blocks)
        self._tables[child] = table.forked()
        self._changed.add(child)

    def release(self, sequence: str) -> None:
        """Give back what ``sequence`` holds; blocks with a key stay cached when the last holder leaves."""
        table = self._table(sequence, "release")
        self._drop(table.blocks[::-1])
        del self._tables[sequence]
        self._promise(table, 0)
        self._changed.discard(sequence)
        self._copies = [copy for copy in self._copies if self._ref_counts[copy.target]]

    def publish(self, sequence: str, keys: Sequence[Hashable]) -> None:
        """Offer the next ``len(keys)`` blocks of ``sequence`` to others: they are full and computed.

        Blocks are published in order, each once; `BlockTable.published_blocks` says how far it is.

        **Raises:** `BlockError` when a block among them is not full.
        """
        if self.prefixes is None:
            return
        table = self._table(sequence, "publish")
        start = table.published_blocks
        stop = start + len(keys)
        if stop * self.block_size > table.length:
            raise BlockError(
                f"{sequence} holds {table.length} tokens: its first {stop} blocks of {self.block_size} "
                "are not all full, and only full blocks are published"
            )
        for block, key in zip(table.blocks[start:stop], keys, strict=True):
            self.prefixes.publish(block, key)
        table.published_blocks = stop

    def take_copies(self) -> list[Copy]:
        """Return, once, the copies to be made before the next writes, in order."""
        copies, self._copies = self._copies, []
        return copies

    def take_changed(self) -> set[str]:
        """Return, once, the live sequences whose tables changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def reset_prefixes(self) -> bool:
        """Forget every cached block; False, and nothing changes, while a sequence is live."""
        if self._tables:
            return False
        idle = self.pool.forget_idle()
        if self.prefixes is not None:
            self.prefixes.forget(idle)
        return True

    def _hits(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        return [] if self.prefixes is None else self.prefixes.match(keys, limit)

    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        pool = self.pool
        needed = total_blocks - len(hits)
        reclaimable = pool.num_cached - sum(not self._ref_counts[block] for block in hits)
        watermark = self.watermark_blocks if self._tables else 0
        if needed + watermark <= pool.num_free + reclaimable - self._promised_blocks:
            return None
        never = total_blocks > pool.usable_blocks
        return Shortfall(needed, pool.num_free, reclaimable, self._promised_blocks, never)

    def _grow(self, sequence: str, table: BlockTable, length: int) -> bool:
        blocks = table.blocks
        copies_tail = self._shares_tail(table)
        new = self.blocks_for(length) - len(blocks)
        if new + copies_tail > self.pool.available_blocks:
            return False
        if copies_tail:
            source, target = blocks[-1], self._take(1)[0]
            self._copies.append(Copy(source, target, table.length % self.block_size, sequence))
            blocks[-1] = target
            self._drop([source])
        blocks.extend(self._take(new))
        table.length = length
        self._promise(table, max(0, table.promised_blocks - new))
        self._changed.add(sequence)
        return True

    def _shares_tail(self, table: BlockTable) -> bool:
        return table.length % self.block_size > 0 and self._ref_counts[table.blocks[-1]] > 1

    def _take(self, count: int) -> array[int]:
        taken, evicted = self.pool.take(count)
        if evicted and self.prefixes is not None:
            self.prefixes.forget(evicted)
        return taken

    def _hold(self, blocks: Sequence[int]) -> None:
        self.pool.hold(blocks)

    def _drop(self, blocks: Sequence[int]) -> None:
        self.pool.drop(blocks, () if self.prefixes is None else self.prefixes.key_of)

    def _promise(self, table: BlockTable, blocks: int) -> None:
        self._promised_blocks += blocks - table.promised_blocks
        table.promised_blocks = blocks

    def _table(self, sequence: str, verb: str) -> BlockTable:
        try:
            return self._tables[sequence]
        except KeyError:
            raise self._unknown(sequence, verb) from None

    def _unknown(self, sequence: str, verb: str) -> BlockError:
        return BlockError(
            f"{verb} of unknown sequence {sequence!r}: not among the {len(self._tables)} live ones; "
            "it was never admitted, or was released before"
        )
