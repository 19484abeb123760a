"""Look-ahead over the reference engine: slots for draft tokens beyond the sequence, given back when settled.

A sequence of ``n`` tokens that asks for ``k`` tokens ahead holds, until the step is done::

    ceil(min(n + k, longest sequence) / b) blocks

and ``ceil(n / b)`` for its settled length from then on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.contract import Capability
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import BlockError, ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.cache.block_table import BlockTable
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


class LookaheadCache(PagedCache):
    """A paged cache whose tables may reach beyond their tokens until they are settled.

    Blocks ahead are private: a fork shares only those that hold a token.
    """

    lookahead_tokens = 0
    """Asked for by the extension under way."""
    max_tokens: int | None = None
    """Longest sequence: nothing is reserved beyond it."""

    def reach(self, length: int) -> int:
        """Return how many tokens a sequence of ``length`` has slots for, look-ahead included."""
        ahead = length + self.lookahead_tokens
        return ahead if self.max_tokens is None else max(length, min(ahead, self.max_tokens))

    def extend(self, sequence: str, num_tokens: int) -> bool:
        """Take slots for ``num_tokens`` more tokens and the look-ahead: all of them, or none and False."""
        table = self._table(sequence, "extend")
        due = self.blocks_for(self.reach(table.length + num_tokens))
        if due - len(table.blocks) + self._shares_tail(table) > self.pool.available_blocks:
            return False
        self.settle(sequence, table.length)
        if not super().extend(sequence, num_tokens):
            return False
        if due > len(table.blocks):
            table.blocks.extend(self._take(due - len(table.blocks)))
            self._changed.add(sequence)
        return True

    def fork(self, parent: str, child: str) -> None:
        """Make ``child`` live with the blocks of ``parent`` that hold a token."""
        super().fork(parent, child)
        self.settle(child, self._tables[child].length)

    def settle(self, sequence: str, length: int) -> None:
        """Roll ``sequence`` back to ``length`` tokens and let go of every block beyond them.

        **Raises:** `BlockError` when it never held that many tokens.
        """
        table = self._table(sequence, "settle")
        if not 0 < length <= table.length:
            raise BlockError(f"{sequence} holds {table.length} tokens and cannot be settled at {length}")
        table.length = length
        ahead = table.blocks[self.blocks_for(length) :]
        if ahead:
            del table.blocks[self.blocks_for(length) :]
            self._drop(ahead[::-1])
            self._changed.add(sequence)

    def _shares_tail(self, table: BlockTable) -> bool:
        tail, fill = divmod(table.length, self.block_size)
        return fill > 0 and self._ref_counts[table.blocks[tail]] > 1


class LookaheadEngine(ReferenceEngine):
    """The reference with slots for draft tokens.

    Option ``lookahead_tokens`` (default: two blocks) is the most that one extension may ask for.
    ``EngineConfig.max_model_tokens`` is the longest sequence; nothing is reserved beyond it.

    **Raises:** `ConfigError` for an option that is no number; `EngineError` for more than is declared.
    """

    name = "reference-lookahead"
    cache_type: type[PagedCache] = LookaheadCache
    cache: LookaheadCache

    def __init__(self, config: EngineConfig) -> None:
        options = dict(config.options)
        value = options.pop("lookahead_tokens", 2 * config.block_size)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{self.name}: lookahead_tokens is {value!r}, expected a number of tokens")
        super().__init__(replace(config, options=options))
        self.cache.max_tokens = config.max_model_tokens
        self.lookahead_tokens = value
        effective = {**self._spec.effective, "lookahead_tokens": value}
        if config.max_model_tokens is not None:
            effective["max_model_tokens"] = config.max_model_tokens
        self._spec = replace(
            self._spec,
            capabilities=self._spec.capabilities | {Capability.LOOKAHEAD},
            effective=effective,
        )

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens`` and for drafts beyond them; all or nothing."""
        if not 0 <= lookahead_tokens <= self.lookahead_tokens:
            raise EngineError(
                f"{request_id}: {lookahead_tokens} look-ahead tokens asked, declared are 0 to "
                f"{self.lookahead_tokens}"
            )
        self.cache.lookahead_tokens = lookahead_tokens
        return super().extend(request_id, tokens)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Give back what rejected drafts held, then publish what the step has filled."""
        for request_id, length in accepted.items():
            self.cache.settle(request_id, length)
        super().done(step, accepted)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool with the look-ahead that is declared."""
        shots = super().snapshot(since)
        return tuple(replace(shot, lookahead_tokens=self.lookahead_tokens) for shot in shots)
