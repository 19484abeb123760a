"""Which pages the blocks in use need: page arithmetic over block ids, without a single byte touched.

    blocks   |   0   |   1   |   2   |   3   |          block bytes 6144, page bytes 4096
    pages    |  0  |  1  |  2  |  3  |  4  |  5  |      page 1 is held by blocks 0 and 1

A page is needed while any block that overlaps it is resident, so the expected committed bytes are exact
for every block size. Where block bytes are a multiple of the page, they are resident blocks x block bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

Int64Array = npt.NDArray[np.int64]


class ResidentBlocks:
    """Resident blocks of one pool, and for each page how many of them overlap it."""

    def __init__(self, num_blocks: int, block_bytes: int, page_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.page_bytes = page_bytes
        self._resident = np.zeros(num_blocks, np.bool_)
        self._holders = np.zeros(-(-num_blocks * block_bytes // page_bytes), np.int32)
        self._pages = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that are resident."""
        return int(np.count_nonzero(self._resident))

    @property
    def expected_committed_bytes(self) -> int:
        """Bytes of the pages that resident blocks overlap."""
        return self._pages * self.page_bytes

    def take(self, blocks: Int64Array) -> Int64Array:
        """Make ``blocks`` resident and return the pages they need that none needed before, int64, sorted.

        **Mutates:** the set of resident blocks.
        """
        new = np.unique(blocks[~self._resident[blocks]])
        overlapped = self._overlapped(new)
        fresh = np.unique(overlapped[self._holders[overlapped] == 0])
        np.add.at(self._holders, overlapped, 1)
        self._resident[new] = True
        self._pages += len(fresh)
        return fresh

    def keep(self, used: Int64Array) -> Int64Array:
        """Let go of all blocks but ``used`` and return the pages no block needs any more, int64, sorted.

        **Mutates:** the set of resident blocks.
        """
        gone = self._resident.copy()
        gone[used] = False
        overlapped = self._overlapped(np.flatnonzero(gone))
        np.subtract.at(self._holders, overlapped, 1)
        idle = np.unique(overlapped[self._holders[overlapped] == 0])
        self._resident[gone] = False
        self._pages -= len(idle)
        return idle

    def _overlapped(self, blocks: Int64Array) -> Int64Array:
        """Return every page that each block overlaps; a page stands once for each of its blocks."""
        first = blocks * self.block_bytes // self.page_bytes
        last = ((blocks + 1) * self.block_bytes - 1) // self.page_bytes
        counts = last - first + 1
        starts = np.cumsum(counts) - counts
        return np.asarray(np.repeat(first - starts, counts) + np.arange(counts.sum()), np.int64)


def runs(pages: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield (first page, number of pages) for each unbroken run of sorted ``pages``.

    >>> list(runs(np.array([3, 4, 5, 9])))
    [(3, 3), (9, 1)]
    """
    if len(pages) == 0:
        return
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    for run in np.split(pages, breaks):
        yield int(run[0]), len(run)
