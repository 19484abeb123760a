"""Live sequences of a vLLM: their requests, their lengths, and their tables as last read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.adapters.token_ids import ids_of
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from collections.abc import Collection

    from kvsuite.engine.snapshot import Int32Array, Int64Array
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent


@dataclass(slots=True)
class Held:
    """One live sequence."""

    request: Any
    """vLLM's own ``Request``."""
    table: list[Any]
    """vLLM's own table of it, which it changes in place."""
    content: TokenContent
    length: int
    """Tokens that have slots, look-ahead apart."""
    told: int
    """Tokens that vLLM has been told of."""
    blocks: array[int] = field(default_factory=lambda: array("i"))
    """Ids of its table."""
    let_go: int = 0
    """Leading entries that are null."""

    def read(self, null_block: int) -> list[int]:
        """Read the table again; return the ids that came in or went, the null block apart.

        A table only grows at its end, and becomes null from its front.
        """
        blocks, table = self.blocks, self.table
        changed = [block.block_id for block in table[len(blocks) :]]
        blocks.extend(changed)
        while self.let_go < len(table) and table[self.let_go].is_null:
            if blocks[self.let_go] != null_block:
                changed.append(blocks[self.let_go])
                blocks[self.let_go] = null_block
            self.let_go += 1
        return [block for block in changed if block != null_block]

    def read_whole(self, table: list[Any]) -> None:
        """Read every entry again, of the table that vLLM keeps now."""
        self.table = table
        self.blocks = array("i", [block.block_id for block in table])


class LiveSequences:
    """Live sequences, oldest first, and which tables changed since they were last given out."""

    def __init__(self) -> None:
        self.held: dict[RequestId, Held] = {}
        self._changed: set[RequestId] = set()
        self._request_ids: tuple[RequestId, ...] | None = ()

    def add(self, request_id: RequestId, held: Held) -> None:
        """Learn of a new sequence, the youngest."""
        self.held[request_id] = held
        self._request_ids = None
        self._changed.add(request_id)

    def remove(self, request_id: RequestId) -> Held:
        """Learn that a sequence is gone; return what it was."""
        self._request_ids = None
        self._changed.discard(request_id)
        return self.held.pop(request_id)

    def table_changed(self, request_id: RequestId) -> None:
        """Learn that a table has changed."""
        self._changed.add(request_id)

    @property
    def request_ids(self) -> tuple[RequestId, ...]:
        """Every live sequence, oldest first."""
        if self._request_ids is None:
            self._request_ids = tuple(self.held)
        return self._request_ids

    def lengths(self) -> Int64Array:
        """Return how many tokens each sequence has slots for."""
        return np.array([held.length for held in self.held.values()], np.int64)

    def let_go_blocks(self) -> Int64Array:
        """Return how many leading blocks each sequence has let go of."""
        return np.array([held.let_go for held in self.held.values()], np.int64)

    def take_tables(self, *, changed_only: bool) -> tuple[Int32Array, Int64Array, Int32Array]:
        """Return rows, offsets and blocks of the tables that changed since the last call, or of all."""
        wanted: Collection[RequestId] = self._changed if changed_only else self.held
        rows = [row for row, request_id in enumerate(self.request_ids) if request_id in wanted]
        tables = [self.held[self.request_ids[row]].blocks for row in rows]
        self._changed.clear()
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(blocks) for blocks in tables], out=offsets[1:])
        return np.array(rows, np.int32), offsets, np.frombuffer(b"".join(tables), np.int32)


class TokenIds:
    """Token ids as vLLM is given them: those of the contents where it hashes them, zeros otherwise."""

    AHEAD = 64
    """Ids worked out at once for a sequence that decodes; vLLM is given one at a time."""

    def __init__(self, *, hashed: bool) -> None:
        self._hashed = hashed
        self._ahead: dict[RequestId, tuple[TokenContent, int, list[int]]] = {}

    def of(self, run: TokenRun) -> list[int]:
        """Return one id a token."""
        return ids_of(run).tolist() if self._hashed else [0] * len(run)

    def one(self, request_id: RequestId, content: TokenContent, position: int) -> int:
        """Return the id of one token of a sequence that decodes."""
        if not self._hashed:
            return 0
        known, start, ids = self._ahead.get(request_id, (None, 0, ()))
        if known is not content or not start <= position < start + len(ids):
            start, ids = position, self.of(TokenRun(content, position, position + self.AHEAD))
            self._ahead[request_id] = (content, start, ids)
        return ids[position - start]

    def forget(self, request_id: RequestId) -> None:
        """Learn that a sequence is gone."""
        self._ahead.pop(request_id, None)
