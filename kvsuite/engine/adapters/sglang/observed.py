"""SGLang's allocator and radix tree, with a journal of the pages they move; nothing else is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.block_journal import CACHED, FREE, LIVE

if TYPE_CHECKING:
    from kvsuite.engine.adapters.block_journal import BlockJournal
    from kvsuite.engine.snapshot import Int64Array


def journalled_allocator(base: Any, journal: BlockJournal) -> Any:
    """Return a class over the allocator class ``base`` that marks pages as they are taken and given back."""

    class JournalledAllocator(base):  # type: ignore[misc]
        def alloc(self, *arguments: Any, **options: Any) -> Any:
            return self._taken(super().alloc(*arguments, **options))

        def alloc_extend(self, *arguments: Any, **options: Any) -> Any:
            return self._taken(super().alloc_extend(*arguments, **options))

        def alloc_decode(self, *arguments: Any, **options: Any) -> Any:
            return self._taken(super().alloc_decode(*arguments, **options))

        def free(self, free_index: Any) -> None:
            super().free(free_index)
            journal.mark(free_index.numpy() // self.page_size, FREE)

        def free_page_ids(self, page_ids: Any) -> None:
            super().free_page_ids(page_ids)
            journal.mark(page_ids.numpy(), FREE)

        def _taken(self, slots: Any) -> Any:
            if slots is not None:
                journal.mark(slots.numpy() // self.page_size, LIVE)
            return slots

    return JournalledAllocator


def journalled_tree(base: Any, journal: BlockJournal) -> Any:
    """Return a class over the tree class ``base`` that marks pages of stored, locked and unlocked nodes."""

    class JournalledTree(base):  # type: ignore[misc]
        def insert(self, params: Any) -> Any:
            result = super().insert(params)
            node = result.last_device_node
            if node is not None and node is not self.root_node and node.lock_ref == 0:
                journal.mark(pages_of(node, self.page_size), CACHED)
            return result

        def inc_lock_ref(self, node: Any) -> Any:
            for ancestor in path_of(self, node):
                if ancestor.lock_ref == 0:
                    journal.mark(pages_of(ancestor, self.page_size), LIVE)
            return super().inc_lock_ref(node)

        def dec_lock_ref(self, node: Any, *arguments: Any, **options: Any) -> Any:
            for ancestor in path_of(self, node):
                if ancestor.lock_ref == 1:
                    journal.mark(pages_of(ancestor, self.page_size), CACHED)
            return super().dec_lock_ref(node, *arguments, **options)

    return JournalledTree


def path_of(tree: Any, node: Any) -> list[Any]:
    """Return the nodes from ``node`` up to the root, the root left out."""
    if tree.disable:
        return []
    path = []
    while node is not tree.root_node:
        path.append(node)
        node = node.parent
    return path


def pages_of(node: Any, page_size: int) -> Int64Array:
    """Return the pages of a tree node in token order, int64: its slots come in whole pages."""
    pages: Int64Array = node.value.numpy()[::page_size] // page_size
    return pages


def unlocked_nodes(tree: Any) -> list[Any]:
    """Return the nodes that no sequence holds, least recently used first, children before their parents."""
    found, open_nodes = [], [tree.root_node]
    while open_nodes:
        node = open_nodes.pop()
        open_nodes += node.children.values()
        if node is not tree.root_node and node.lock_ref == 0:
            found.append(node)
    found.reverse()
    return sorted(found, key=lambda node: float(node.last_access_time))


def peek(tree: Any, key: Any) -> list[tuple[Any, int]]:
    """Return the nodes that a look-up of ``key`` would find, each with its tokens; nothing is touched.

    The engine's own look-up refreshes access times and splits nodes, which a refusal must not do.
    """
    found: list[tuple[Any, int]] = []
    if tree.disable:
        return found
    key, node = key.page_aligned(tree.page_size), tree.root_node
    while len(key) > 0:
        child = node.children.get(key.child_key(tree.page_size))
        if child is None:
            break
        tokens = child.key.match(key, page_size=tree.page_size)
        found.append((child, tokens))
        if tokens < len(child.key):
            break
        node, key = child, key[tokens:]
    return found
