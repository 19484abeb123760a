"""LMDeploy's logical blocks and its prefix trie, looked at without a touch.

LMDeploy counts references of *logical* blocks, which it maps to physical ones; tables and snapshots hold
physical ids. The trie holds one reference of each block it names: a block with that one alone is cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.block_journal import CACHED, FREE, LIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.adapters.block_journal import BlockJournal
    from kvsuite.engine.snapshot import Int32Array, Int64Array


class BlockWatch:
    """Follows the references of one `LogicalAllocator` into a journal of physical blocks."""

    def __init__(self, allocator: Any, journal: BlockJournal) -> None:
        self._allocator = allocator
        self._journal = journal
        blocks = allocator._log_mem.num_blocks()
        self._in_trie = np.zeros(blocks, np.bool_)
        self._logical_of = np.full(blocks, -1, np.int64)
        allocator.__class__ = _watched(type(allocator), self)

    def moved(self, blocks: Int64Array) -> None:
        """Learn that the references of logical ``blocks`` are others now."""
        counts = self._allocator.get_ref_count(blocks)
        self._in_trie[blocks[counts == 0]] = False
        physical = self._allocator.get_physical_blocks(blocks)
        self._logical_of[physical] = np.where(counts > 0, blocks, -1)
        idle = (counts == 1) & self._in_trie[blocks]
        for state, chosen in ((FREE, counts == 0), (CACHED, idle), (LIVE, (counts > 0) & ~idle)):
            self._journal.mark(physical[chosen], state)

    def entered(self, node: Any) -> None:
        """Learn that the trie holds ``node`` and its ancestors."""
        new = []
        while node is not None and node.block_id >= 0 and not self._in_trie[node.block_id]:
            new.append(int(node.block_id))
            node = node.parent
        if new:
            self._in_trie[new] = True
            self.moved(np.array(new, np.int64))

    def cached_blocks(self) -> int:
        """Return how many blocks the trie alone holds."""
        return int(np.count_nonzero(self._in_trie & (self._allocator._log_mem.ref_count == 1)))

    def holders(self, physical: Int32Array) -> Int32Array:
        """Return how many sequences hold each physical block: its references but the trie's own."""
        logical = self._logical_of[physical]
        counts = self._allocator.get_ref_count(logical) - self._in_trie[logical]
        return np.where(logical < 0, 0, counts).astype(np.int32)


def _watched(base: Any, watch: BlockWatch) -> Any:
    class WatchedAllocator(base):  # type: ignore[misc]
        def allocate(self, *arguments: Any, **options: Any) -> Any:
            blocks = super().allocate(*arguments, **options)
            watch.moved(blocks)
            return blocks

        def add_ref_count(self, blocks: Any, value: Any) -> None:
            super().add_ref_count(blocks, value)
            watch.moved(blocks)

    return WatchedAllocator


def free_blocks(allocator: Any) -> Int32Array:
    """Return the free physical blocks in the order they are taken."""
    pool = allocator.get_phy_allocator("gpu")
    free: Int32Array = pool._free_blocks[pool._num_blocks - pool._free_count :].astype(np.int32)
    return free


def nodes(trie: Any) -> Iterator[Any]:
    """Yield every node of the trie, parents before their children."""
    below = list(trie._roots.values())
    while below:
        node = below.pop()
        if node.block_id >= 0:
            yield node
        below += node.children.values()


def idle_blocks(trie: Any) -> Int64Array:
    """Return the logical blocks that the trie alone holds, first to be evicted first.

    Access times are whole seconds in LMDeploy; within one, leaves go first, in no order that can be seen.
    """
    idle = [node for node in nodes(trie) if trie.allocator.get_ref_count(node.block_id) == 1]
    times = trie.allocator.get_access_time(np.array([node.block_id for node in idle], np.int64))
    order = sorted(range(len(idle)), key=lambda at: (times[at], -idle[at].prefix_len, idle[at].block_id))
    return np.array([idle[at].block_id for at in order], np.int64)


def matches(trie: Any, ids: Int64Array) -> list[Any]:
    """Return the nodes that a look-up of a prompt would find, its last token left out; nothing is touched."""
    found: list[Any] = []
    node, size = trie._roots.get(None), trie.block_size
    while node is not None and node.prefix_len + size < len(ids):
        tokens = ids[node.prefix_len : node.prefix_len + size]
        node = node.children.get(trie._hash_block(tokens, ()))
        if node is None or not trie._node_matches_block(node, tokens, ()):
            break
        found.append(node)
    return found
