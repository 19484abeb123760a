"""Generation D, 5.18 and newer: one pool of sectors, cut into blocks by an allocator for each attention type.

With one attention type a sector is one block. Cached blocks are dropped all at once: when the free share
falls below the scheduler's safety margin, or when a sequence cannot be stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.transformers.generations import Generation, Touched
from kvsuite.engine.adapters.transformers.slots import rows_to_slots
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsuite.engine.adapters.transformers.opening import Opened
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId


class SectorCache:
    """`Cache` over ``cache_allocators`` and ``pool``.

    **Raises:** `EngineError` when a sector holds more than one block: the suite's pool would not be the
    engine's.
    """

    generation = Generation.D
    can_forget = counts_refs = True

    def __init__(self, opened: Opened) -> None:
        self.touched = Touched()
        self._cache, self._scheduler = opened.cache, opened.scheduler
        (self._allocator,) = self._cache.cache_allocators.values()
        self._pool, self._ledger = self._cache.pool, self._allocator.ledger
        if self._allocator.blocks_per_sector != 1:
            raise EngineError(
                f"transformers {opened.version}: a sector holds {self._allocator.blocks_per_sector} blocks "
                f"of {self._allocator.tokens_per_page} tokens, expected 1"
            )
        trash = self._pool.num_reserved_sectors
        self.tables: Mapping[RequestId, list[int]] = self._allocator.block_table
        self.num_blocks = self._pool.num_sectors + trash
        self.trash_blocks = tuple(range(trash))
        self.effective: Mapping[str, int | str | bool] = {
            "eviction": "flush_all",
            "safety_margin_percent": round(100 * self._scheduler.safety_margin),
        }

    @property
    def num_free(self) -> int:
        """Free sectors, and free blocks of sectors that were given out."""
        return int(self._pool.num_free_sectors + self._pool.count_free_blocks(self._allocator.index))

    @property
    def cached(self) -> Mapping[int, object]:
        """The ledger's cached blocks, oldest first; they go all at once."""
        cached: Mapping[int, object] = self._ledger.cached_blocks
        return cached

    def free_ids(self) -> list[int]:
        """Return free sectors, then free blocks of sectors that were given out."""
        trees = self._pool._free_blocks[self._allocator.index].trees
        return [*self._pool.free_sectors, *(block for leaves in trees.values() for block in leaves)]

    def ref_count(self, block: int, *, held: bool) -> int:
        """Return the ledger's count: it writes down those above 1, and a block held once is implied."""
        return int(self._ledger.shared_ref_counts.get(block, int(held)))

    def counted(self, held: Iterable[int]) -> Iterable[int]:
        """Return what tables hold, and what the ledger counts beside it."""
        return {*held, *self._ledger.shared_ref_counts}

    def match(self, state: Any, token_ids: Sequence[int]) -> int:
        """Hold the cached blocks that a prompt begins with, at most all but its last token."""
        self._before_match = list(self._ledger.cached_blocks)
        hit = int(self._cache.search_prefix_match(state.request_id, token_ids))
        if hit:
            self._note(state.request_id, 0)
        return hit

    def withdraw(self, state: Any) -> None:
        """Give hits back and put the cached blocks in the order that they had."""
        if state.request_id not in self.tables:
            return
        self.free(state.request_id)
        cached = self._ledger.cached_blocks
        cached.clear()
        cached.update(dict.fromkeys(self._before_match))

    def blocks_wanted(self, state: Any, num_tokens: int) -> int:
        """Return the allocator's own count."""
        return int(self._allocator.needs_new_blocks(state.request_id, state.position_offset, num_tokens))

    def store(self, state: Any, num_tokens: int) -> bool:
        """Take blocks; drop the cached ones first where that makes room, as the engine's scheduler does."""
        request_id = state.request_id
        before = len(self.tables.get(request_id, ()))
        stored = self._cache.can_store_request_tokens(state, num_tokens)
        if not stored:
            wanted = self.blocks_wanted(state, num_tokens)
            if not self.cached or wanted > self.num_free + len(self.cached):
                return False
            self.forget()
            stored = self._cache.can_store_request_tokens(state, num_tokens)
        if stored and len(self.tables[request_id]) > before:
            self._note(request_id, before)
        return bool(stored)

    def complete(self, state: Any, num_tokens: int) -> None:
        """Publish the blocks that ``num_tokens`` more have filled; a double of a published one is swapped."""
        full = self._cache.count_new_complete_blocks(state, num_tokens)
        if not full:
            return
        table = self.tables[state.request_id]
        before = table[:]
        self._cache.mark_complete_blocks(state, full)
        if table != before:
            self.touched.tables.add(state.request_id)
            self.touched.blocks.update(set(before) ^ set(table))

    def fork(self, parent: Any, child: Any) -> list[tuple[int, int]] | None:
        """Share full blocks and pair the last with a fresh one; None where there is no free one for it.

        Cached blocks are not dropped for a fork: the engine lets the child start from its prompt instead.
        """
        self._pool.try_to_free_sectors()
        pairs: dict[str, tuple[list[int], list[int]]] = {
            name: ([], []) for name in self._cache.cache_allocators
        }
        if not self._cache.prepare_fork_request(parent, [child.request_id], pairs):
            return None
        self._note(child.request_id, 0)
        ((sources, targets),) = pairs.values()
        return list(zip(sources, targets, strict=True))

    def free(self, request_id: RequestId) -> None:
        """Give back what a sequence holds; its published blocks stay cached."""
        self.touched.blocks.update(self.tables.get(request_id, ()))
        self._cache.free_blocks(request_id)

    def maintain(self) -> None:
        """Keep the safety margin: free sectors go back, and the cached blocks too where it is not met."""
        below = self.cached and self._cache.compute_free_capacity() < self._scheduler.safety_margin
        idle = list(self.cached) if below else []
        self._scheduler._try_to_meet_safety_margin()
        self.touched.blocks.update(idle)

    def forget(self) -> None:
        """Drop every cached block."""
        self.touched.blocks.update(self.cached)
        self._cache.evict_cached_blocks()
        self._pool.try_to_free_sectors()

    def read_slots(self, request_id: RequestId, length: int) -> Int64Array:
        """Return what `get_read_indices` gives for the next token, the place of that token apart."""
        rows = self._allocator.get_read_indices(request_id, length, 1 if self._window else 0)
        return self._slots(rows[:-1] if self._window else rows)

    def write_slots(self, request_id: RequestId, start: int, stop: int) -> Int64Array:
        """Return what `get_write_indices` gives; tokens that no window keeps go to a trash block."""
        return self._slots(self._allocator.get_write_indices(request_id, start, stop - start))

    @property
    def _window(self) -> bool:
        return hasattr(self._allocator, "sliding_window")

    def _slots(self, rows: list[int]) -> Int64Array:
        return rows_to_slots(rows, self._allocator.block_physical_stride, self._allocator.tokens_per_page)

    def _note(self, request_id: RequestId, start: int) -> None:
        self.touched.tables.add(request_id)
        self.touched.blocks.update(self.tables[request_id][start:])
