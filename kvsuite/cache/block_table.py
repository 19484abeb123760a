"""The block table of one sequence, and the arithmetic of blocks and slots."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold ``num_tokens``: the quotient, rounded up.

    >>> [blocks_for(n, 16) for n in (0, 1, 16, 17)]
    [0, 1, 1, 2]
    """
    return -(-num_tokens // block_size)


class BlockTable:
    """Blocks of a sequence in token order, with what the cache must remember beside them.

    Token ``p`` lies in slot ``blocks[p // block_size] * block_size + p % block_size`` of the pool.
    """

    __slots__ = ("blocks", "length", "promised_blocks", "published_blocks")

    def __init__(self, blocks: Iterable[int], length: int) -> None:
        self.blocks = array("i", blocks)
        self.length = length
        """Tokens that have a slot."""
        self.promised_blocks = 0
        """Blocks still to be taken for a prompt that was admitted whole."""
        self.published_blocks = 0
        """Leading blocks whose keys have been offered to the prefix cache."""

    def forked(self) -> BlockTable:
        """Return a table of the same blocks and length; nothing is promised to it."""
        twin = BlockTable(self.blocks, self.length)
        twin.published_blocks = self.published_blocks
        return twin

    def __repr__(self) -> str:
        return f"BlockTable({self.blocks.tolist()}, length={self.length})"
