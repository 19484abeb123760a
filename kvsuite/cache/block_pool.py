"""The blocks of one pool: who is free, who is held how often, who is idle but still worth a hit.

Every block is in exactly one state:

    free  --take-->  live (ref count >= 1)  --last drop, no key-->  free
                       |        ^
          last drop, keyed      | hold (prefix hit)
                       v        |
                     cached-idle  --take, when nothing is free-->  live, content lost

The free list is a stack whose first blocks out are 0, 1, 2, ...; cached-idle blocks are evicted oldest
first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Int32Array = npt.NDArray[np.int32]

_CACHED = -1
"""Stands for cached-idle in the states remembered by the journal; others are the ref count."""


@dataclass(frozen=True, slots=True)
class BlockReading:
    """Blocks by state, int32: every block, or those whose state or ref count changed since the last one."""

    free: Int32Array
    """The free list, next one out last; in changes: those that became free."""
    cached: Int32Array
    """Cached-idle, next one evicted first; in changes: those that became so."""
    live: Int32Array
    """Held; in changes: those that nobody held before."""
    counted: Int32Array
    """Those with a ref count above 0; in changes: those with another one than before, 0 included."""
    ref_counts: Int32Array
    """The ref count of each of ``counted``."""


class BlockPool:
    """Free list, ref counts and cached-idle blocks of ``num_blocks`` blocks.

    The first ``never_allocatable_blocks`` ids are kept back (null blocks). Nothing here knows of sequences
    or keys. A journal remembers which blocks were touched, so that a reader can ask for changes alone.

    >>> pool = BlockPool(4)
    >>> list(pool.take(3)[0])
    [0, 1, 2]
    >>> pool.hold([0])
    >>> pool.drop([2, 1, 0], keep={1})     # 1 has a key: it stays cached; 0 has another holder
    >>> pool.num_free, pool.num_cached, pool.ref_count(0)
    (2, 1, 1)
    >>> list(pool.take(2)[0])              # the last one freed comes first
    [2, 3]
    >>> pool.take(1)                       # nothing is free: the idle block is evicted
    (array('i', [1]), [1])
    """

    __slots__ = (
        "_free",
        "_idle",
        "_seen",
        "_touched",
        "never_allocatable_blocks",
        "num_blocks",
        "ref_counts",
    )

    def __init__(self, num_blocks: int, *, never_allocatable_blocks: int = 0) -> None:
        if not 0 <= never_allocatable_blocks < num_blocks:
            raise ConfigError(
                f"a pool of {num_blocks} blocks cannot keep back {never_allocatable_blocks}: "
                "at least one block must be usable"
            )
        self.num_blocks = num_blocks
        self.never_allocatable_blocks = never_allocatable_blocks
        self.ref_counts = array("i", bytes(4 * num_blocks))
        """Ref count of each block; read it, change it through `take`, `hold` and `drop`."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._touched: set[int] = set()
        self._seen = np.zeros(num_blocks, np.int32)
        self._free = self._all_free()

    @property
    def usable_blocks(self) -> int:
        """Blocks that can ever be taken."""
        return self.num_blocks - self.never_allocatable_blocks

    @property
    def num_free(self) -> int:
        """Blocks in the free list."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Cached-idle blocks."""
        return len(self._idle)

    @property
    def available_blocks(self) -> int:
        """Blocks that `take` can give: free ones, and idle ones by eviction."""
        return len(self._free) + len(self._idle)

    def ref_count(self, block: int) -> int:
        """Return how many holders a block has."""
        return self.ref_counts[block]

    def take(self, count: int) -> tuple[array[int], list[int]]:
        """Return ``count`` blocks, held once each, and those of them whose cached content is lost.

        **Raises:** `BlockError` when fewer are available; nothing is taken then.
        """
        if count > self.available_blocks:
            raise BlockError(
                f"{count} blocks asked of a pool with {self.num_free} free and {self.num_cached} cached: "
                "ask available_blocks first"
            )
        free, refs = self._free, self.ref_counts
        start = max(0, len(free) - count)
        taken = free[start:]
        taken.reverse()
        del free[start:]
        evicted = [self._idle.popitem(last=False)[0] for _ in range(count - len(taken))]
        taken.extend(evicted)
        for block in taken:
            refs[block] = 1
        self._touched.update(taken)
        return taken, evicted

    def hold(self, blocks: Sequence[int]) -> None:
        """Add a holder to each block; idle ones come back into use.

        **Raises:** `BlockError` for a block that is neither held nor cached; nothing changes then.
        """
        refs, idle = self.ref_counts, self._idle
        for block in blocks:
            if not refs[block] and block not in idle:
                raise BlockError(f"block {block} is neither held nor cached: only `take` brings it into use")
        for block in blocks:
            if not refs[block]:
                idle.pop(block, None)
            refs[block] += 1
        self._touched.update(blocks)

    def drop(self, blocks: Sequence[int], keep: Collection[int] = ()) -> None:
        """Take a holder from each block, in the order given; one without holders is cached or free.

        Those in ``keep`` become cached-idle, the others go on top of the free list. A table is dropped from
        its tail to its head, so that the tail of a chain is evicted before its head.

        **Raises:** `BlockError` for a block that nobody holds (a double free); nothing changes then.
        """
        refs = self.ref_counts
        for done, block in enumerate(blocks):
            if refs[block] < 1:
                for dropped in blocks[:done]:
                    refs[dropped] += 1
                times = sum(other == block for other in blocks[: done + 1])
                raise BlockError(
                    f"double free: block {block} has ref_count {refs[block]}, expected at least {times}: "
                    "give each block back once per holder"
                )
            refs[block] -= 1
        self._touched.update(blocks)
        for block in dict.fromkeys(blocks):
            if refs[block]:
                continue
            if block in keep:
                self._idle[block] = None
            else:
                self._free.append(block)

    def forget_idle(self) -> list[int]:
        """Make every cached-idle block free and return them; with nothing held, order is as at the start."""
        idle = list(self._idle)
        self._idle.clear()
        self._touched.update(idle)
        if len(self._free) + len(idle) == self.usable_blocks:
            self._free = self._all_free()
        else:
            self._free.extend(reversed(idle))
        return idle

    def take_all(self) -> BlockReading:
        """Return every block, and start the journal afresh."""
        self._read_touched()
        counts = np.array(self.ref_counts, np.int32)
        held = np.flatnonzero(counts).astype(np.int32)
        return BlockReading(
            free=np.array(self._free, np.int32),
            cached=np.fromiter(self._idle, np.int32, len(self._idle)),
            live=held,
            counted=held,
            ref_counts=counts[held],
        )

    def take_changes(self) -> BlockReading:
        """Return what changed since the last reading, ids ascending, and start the journal afresh."""
        touched, before, now = self._read_touched()
        ids = touched.astype(np.int32)
        refs_now = np.maximum(now, 0)
        counted = np.maximum(before, 0) != refs_now
        return BlockReading(
            free=ids[(now == 0) & (before != 0)],
            cached=ids[(now == _CACHED) & (before != _CACHED)],
            live=ids[(now > 0) & (before <= 0)],
            counted=ids[counted],
            ref_counts=refs_now[counted],
        )

    def _all_free(self) -> array[int]:
        return array("i", range(self.num_blocks - 1, self.never_allocatable_blocks - 1, -1))

    def _read_touched(self) -> tuple[npt.NDArray[np.int64], Int32Array, Int32Array]:
        touched = np.fromiter(self._touched, np.int64, len(self._touched))
        touched.sort()
        before, now = self._seen[touched], self._states(touched)
        self._seen[touched] = now
        self._touched.clear()
        return touched, before, now

    def _states(self, blocks: npt.NDArray[np.int64]) -> Int32Array:
        states = np.frombuffer(self.ref_counts, np.int32)[blocks]
        idle = self._idle
        if idle:
            states[[block in idle for block in blocks.tolist()]] = _CACHED
        return states
