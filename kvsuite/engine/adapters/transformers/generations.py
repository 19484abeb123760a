"""What the generations of transformers' paged cache have in common, and which one is installed.

Continuous batching has been rewritten several times under the same import path, so the release says less than
the structure does::

    A  4.53            cache._block_tables                       not driven here
    B  4.54 .. 4.57    group_cache_managers[i]._block_table      not driven here
    C  5.0  .. 5.17    cache._block_manager (BlockManager)       `block_manager`
    D  5.18 ..         cache.cache_allocators, cache.pool        `sectors`
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId


class Generation(enum.Enum):
    """A structure of the paged cache that can be driven."""

    C = "C"
    D = "D"


@dataclass(slots=True)
class Touched:
    """Blocks and sequences that an operation may have changed since the last snapshot."""

    blocks: set[int] = field(default_factory=set)
    tables: set[RequestId] = field(default_factory=set)

    def clear(self) -> None:
        """Forget everything."""
        self.blocks.clear()
        self.tables.clear()


class Cache(Protocol):
    """One generation's cache under common verbs; ``state`` is the engine's own `RequestState`.

    Every verb does all it says or leaves the engine as it was, and notes in ``touched`` what it changed.
    """

    generation: Generation
    touched: Touched
    tables: Mapping[RequestId, list[int]]
    """The engine's own tables, block ids in token order."""
    num_blocks: int
    """Trash blocks included."""
    trash_blocks: tuple[int, ...]
    effective: Mapping[str, int | str | bool]
    """Policies that change what is allocated."""
    can_forget: bool
    """Whether the engine has a way to drop every cached block."""
    counts_refs: bool
    """Whether the engine counts the holders of a block."""

    def match(self, state: Any, token_ids: Sequence[int]) -> int:
        """Hold the cached blocks that a prompt begins with; return its tokens that need not be computed."""
        ...

    def withdraw(self, state: Any) -> None:
        """Give back what `match` held, so that everything stands as before it, eviction order included."""
        ...

    def blocks_wanted(self, state: Any, num_tokens: int) -> int:
        """Return how many blocks the engine would take for ``num_tokens`` more."""
        ...

    def store(self, state: Any, num_tokens: int) -> bool:
        """Take blocks for ``num_tokens`` more than ``state.position_offset``."""
        ...

    def complete(self, state: Any, num_tokens: int) -> None:
        """Learn that ``num_tokens`` from ``state.position_offset`` on are computed: publish full blocks."""
        ...

    def fork(self, parent: Any, child: Any) -> list[tuple[int, int]] | None:
        """Give ``child`` the blocks of ``parent``; return (source, target) of each block to copy, or None."""
        ...

    def free(self, request_id: RequestId) -> None:
        """Give back what a sequence holds."""
        ...

    def maintain(self) -> None:
        """Do what the engine's scheduler does at the head of every batch."""
        ...

    def forget(self) -> None:
        """Drop every cached block; only where ``can_forget``."""
        ...

    @property
    def num_free(self) -> int:
        """Blocks of the free list, by the engine's own count."""
        ...

    @property
    def cached(self) -> Mapping[int, object]:
        """Blocks that nobody holds and whose content can still be hit, in the order of eviction."""
        ...

    def free_ids(self) -> list[int]:
        """Return the free list."""
        ...

    def ref_count(self, block: int, *, held: bool) -> int:
        """Return the engine's count for a block; ``held`` is whether it stands in a table."""
        ...

    def counted(self, held: Iterable[int]) -> Iterable[int]:
        """Return the blocks whose count is above 0; ``held`` are those that stand in a table."""
        ...

    def read_slots(self, request_id: RequestId, length: int) -> Int64Array:
        """Return the slots of the tokens that the token after ``length`` attends to, itself apart."""
        ...

    def write_slots(self, request_id: RequestId, start: int, stop: int) -> Int64Array:
        """Return the slots that the tokens ``start..stop`` are written to."""
        ...


_MARKS = {
    Generation.D: ("cache_allocators", "pool", "can_store_request_tokens", "prepare_fork_request"),
    Generation.C: ("group_cache_managers", "_block_manager", "allocate_blocks", "fork_request"),
}


def detect(cache: object, version: str) -> Generation:
    """Return the generation of a `PagedAttentionCache`, by its structure.

    **Raises:** `EngineError` naming the version and what of each known structure was not found.
    """
    missing = {
        generation: [mark for mark in marks if not hasattr(cache, mark)]
        for generation, marks in _MARKS.items()
    }
    for generation, lacking in missing.items():
        if not lacking:
            return generation
    lacks = "; ".join(f"for generation {g.value} {', '.join(names)}" for g, names in missing.items())
    raise EngineError(
        f"transformers {version}: the structure of its paged cache is not known, {type(cache).__name__} "
        f"lacks {lacks}: use 5.0.0 or newer, or a newer kvsuite"
    )
