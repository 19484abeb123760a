"""Which block holds which prefix: full blocks only, one block a key."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence


class PrefixCache:
    """Two maps that mirror each other: key to block, block to key.

    A key stands for every token from the start of a sequence to the end of the block (a chain identity),
    so equal keys mean equal content. The cache says nothing of who holds a block.

    >>> prefixes = PrefixCache()
    >>> prefixes.publish(7, "system prompt"), prefixes.publish(8, "system prompt")
    (True, False)
    >>> prefixes.match(["system prompt", "question"], limit=2)
    [7]
    """

    __slots__ = ("_blocks", "key_of")

    def __init__(self) -> None:
        self._blocks: dict[Hashable, int] = {}
        self.key_of: dict[int, Hashable] = {}
        """Key of each block that has one; read it, change it through the methods."""

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, keys: Sequence[Hashable], limit: int) -> list[int]:
        """Return the blocks of the leading known keys, at most ``limit``; changes nothing."""
        found: list[int] = []
        blocks = self._blocks
        for key in islice(keys, limit):
            block = blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: int, key: Hashable) -> bool:
        """Give ``block`` its key; False, and nothing changes, when either of them is taken.

        Two sequences that compute equal blocks at once end here: the second block stays without a key.
        """
        if key in self._blocks or block in self.key_of:
            return False
        self._blocks[key] = block
        self.key_of[block] = key
        return True

    def forget(self, blocks: Iterable[int]) -> None:
        """Remove the keys of blocks whose content is lost; blocks without a key are passed over."""
        for block in blocks:
            key = self.key_of.pop(block, None)
            if key is not None:
                del self._blocks[key]
