"""Generation C, 5.0 to 5.17: one `BlockManager`, a table a layer group, allocation sized by the scheduler.

Cached blocks are dropped one by one as they are needed, the newest first, and the free list is a queue. The
scheduler takes ``(n - room + 1) // b + 1`` blocks, one more than needed where ``n mod b`` is 0 or ``b - 1``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.keywords import takes
from kvsuite.engine.adapters.transformers.generations import Generation, Touched
from kvsuite.engine.adapters.transformers.opening import TRASH_BLOCKS
from kvsuite.engine.adapters.transformers.slots import rows_to_slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsuite.engine.adapters.transformers.opening import Opened
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId


class BlockManagerCache:
    """`Cache` over ``_block_manager``, the group's tables and the scheduler's allocation."""

    generation = Generation.C
    can_forget = False

    def __init__(self, opened: Opened) -> None:
        self.touched = Touched()
        self._cache, self._scheduler = opened.cache, opened.scheduler
        self._manager = self._cache._block_manager
        (self._group,) = self._cache.group_cache_managers
        self._size: int = self._cache.block_size
        self.tables: Mapping[RequestId, list[int]] = self._group.block_table
        usable = int(self._cache.num_blocks)
        self.num_blocks = usable + TRASH_BLOCKS
        self.trash_blocks: tuple[int, ...] = (usable, usable + 1)
        self.effective: Mapping[str, int | str | bool] = {"eviction": "newest_first"}
        self._ring_blocks: int | None = getattr(self._group, "_max_blocks_per_request", None)
        self.counts_refs = bool(self._group.uses_block_sharing)
        self._counts_given = takes(self._cache.mark_shareable_blocks_as_complete, "num_complete_blocks")

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of value."""
        return len(self._manager._uninit_block_ids)

    @property
    def cached(self) -> Mapping[int, object]:
        """Complete blocks that nobody holds; the last goes first."""
        cached: Mapping[int, object] = self._manager._init_block_ids
        return cached

    def free_ids(self) -> list[int]:
        """Return the free list, next first."""
        return list(self._manager._uninit_block_ids)

    def ref_count(self, block: int, *, held: bool) -> int:
        """Return the manager's count."""
        del held
        known = self._manager._id_to_block.get(block)
        return 0 if known is None else int(known.ref_count)

    def counted(self, held: Iterable[int]) -> Iterable[int]:
        """Return what the manager counts as held."""
        del held
        return [block for block, known in self._manager._id_to_block.items() if known.ref_count]

    def match(self, state: Any, token_ids: Sequence[int]) -> int:
        """Hold the cached blocks that a prompt begins with.

        The engine may find the whole prompt; it then computes the last token again, in the shared block.
        """
        self._before_match = list(self._manager._init_block_ids)
        hit = int(self._cache.search_prefix_match(state.request_id, token_ids))
        if hit:
            state.allocated_blocks += hit // self._size
            self._note(state.request_id, 0)
        return min(hit, len(token_ids) - 1)

    def withdraw(self, state: Any) -> None:
        """Give hits back and put the cached blocks in the order that they had."""
        if state.request_id not in self.tables:
            return
        self.free(state.request_id)
        cached = self._manager._init_block_ids
        cached.clear()
        cached.update(dict.fromkeys(self._before_match))

    def blocks_wanted(self, state: Any, num_tokens: int) -> int:
        """Return what the scheduler asks for: see `FIFOScheduler._allocate_blocks_if_needed`."""
        room = state.allocated_blocks * self._size - state.position_offset
        if room >= num_tokens and state.allocated_blocks:
            return 0
        wanted = int((num_tokens - room + 1) // self._size + 1)
        return (
            wanted if self._ring_blocks is None else min(wanted, self._ring_blocks - state.allocated_blocks)
        )

    def store(self, state: Any, num_tokens: int) -> bool:
        """Take blocks, as many as the scheduler finds needed."""
        request_id = state.request_id
        before = len(self.tables.get(request_id, ()))
        if not self._scheduler._allocate_blocks_if_needed(state, num_tokens):
            return False
        if len(self.tables[request_id]) > before:
            self._note(request_id, before)
        return True

    def complete(self, state: Any, num_tokens: int) -> None:
        """Publish the blocks that ``num_tokens`` more have filled; a double of a published one is swapped."""
        full = (state.position_offset % self._size + num_tokens) // self._size
        if not full:
            return
        table = self.tables[state.request_id]
        before = table[:]
        if self._counts_given:
            self._cache.mark_shareable_blocks_as_complete(state, full)
        else:
            self._cache.blocks_to_complete[state.request_id] = full
            self._cache.mark_shareable_blocks_as_complete(state)
        if table != before:
            self.touched.tables.add(state.request_id)
            self.touched.blocks.update(set(before) ^ set(table))

    def fork(self, parent: Any, child: Any) -> list[tuple[int, int]] | None:
        """Share complete blocks and pair the others with fresh ones; None where there are not enough.

        Releases that can tell beforehand are asked; earlier ones raise, and leak what they had held by then.
        """
        allowed = getattr(self._cache, "compute_max_num_forks", None)
        if allowed is not None and allowed(parent.request_id) < 1:
            return None
        try:
            sources, targets = self._cache.fork_request(parent.request_id, [child.request_id])
        except ValueError:
            self.touched.blocks.update(self.tables[parent.request_id])
            return None
        child.allocated_blocks = parent.allocated_blocks
        self._note(child.request_id, 0)
        return list(zip(sources, targets, strict=True))

    def free(self, request_id: RequestId) -> None:
        """Give back what a sequence holds; its complete blocks stay cached."""
        self.touched.blocks.update(self.tables.get(request_id, ()))
        self._cache.free_blocks(request_id)

    def maintain(self) -> None:
        """Nothing to do: blocks are dropped when they are taken."""

    def forget(self) -> None:
        """Not offered by this generation."""
        raise NotImplementedError

    def read_slots(self, request_id: RequestId, length: int) -> Int64Array:
        """Return what `get_read_indices` gives for the next token, the place of that token apart."""
        window = self._ring_blocks is not None
        rows = self._group.get_read_indices(request_id, length, 1 if window else 0)
        return rows_to_slots(rows[:-1] if window else rows, self._size, self._size)

    def write_slots(self, request_id: RequestId, start: int, stop: int) -> Int64Array:
        """Return what `get_write_indices` gives; tokens that no window keeps go to a trash block."""
        rows = self._group.get_write_indices(request_id, start, stop - start)
        trash = self.trash_blocks[-1] * self._size  # -1 stands for it before 5.8
        return rows_to_slots([trash if row < 0 else row for row in rows], self._size, self._size)

    def _note(self, request_id: RequestId, start: int) -> None:
        self.touched.tables.add(request_id)
        self.touched.blocks.update(self.tables[request_id][start:])
