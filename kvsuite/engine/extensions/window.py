"""A sliding window over the look-ahead engine: blocks that no settled token needs go back while it runs.

With ``n`` tokens settled, a window of ``W`` and blocks of ``b``, the first

    max(0, floor((n - W + 1) / b))

blocks of a sequence are let go. Tokens in flight and drafts do not count: they may yet be taken back.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.engine.extensions.lookahead import LookaheadCache, LookaheadEngine
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsuite.cache.paged import PagedCache
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Release
    from kvsuite.engine.snapshot import Int64Array, PoolSnapshot
    from kvsuite.trace.model import RequestId

NULL = 0
"""Stands in a table for a block that was let go; never given out."""


class WindowCache(LookaheadCache):
    """A paged cache whose tables may begin with null blocks."""

    def let_go(self, sequence: str, start: int, stop: int) -> None:
        """Give back the blocks ``start..stop`` of a table; those with a key stay cached."""
        table = self._table(sequence, "let_go")
        gone = table.blocks[start:stop]
        table.blocks[start:stop] = array("i", [NULL] * len(gone))
        self._drop(gone[::-1])
        self._changed.add(sequence)

    def _hold(self, blocks: Sequence[int]) -> None:
        super()._hold([block for block in blocks if block != NULL])

    def _drop(self, blocks: Sequence[int]) -> None:
        super()._drop([block for block in blocks if block != NULL])


class WindowEngine(LookaheadEngine):
    """The look-ahead engine with a sliding window; block 0 is the null block.

    Option ``window_tokens`` (default: two blocks) is the window, the newest token included. A prompt is
    admitted as if nothing of it were let go, so the longest one is what the pool holds.

    **Raises:** `ConfigError` for a window below 2 tokens, and for a pool that holds neither a window and a
    block nor the longest sequence: nobody would get past the window.
    """

    name = "reference-window"
    cache_type: type[PagedCache] = WindowCache
    cache: WindowCache

    def __init__(self, config: EngineConfig) -> None:
        options = dict(config.options)
        window = options.pop("window_tokens", max(2, 2 * config.block_size))
        if not isinstance(window, int) or isinstance(window, bool) or window < 2:
            raise ConfigError(f"{self.name}: window_tokens is {window!r}, expected 2 tokens or more")
        options["null_blocks"] = options.get("null_blocks") or 1
        super().__init__(replace(config, options=options))
        self.window_tokens = window
        self._let_go: dict[RequestId, int] = {}
        (pool,) = self._spec.pools
        slots, longest = pool.usable_blocks * pool.block_size, config.max_model_tokens
        if slots < window + pool.block_size and (longest is None or slots < longest):
            raise ConfigError(
                f"{self.name}: {pool.usable_blocks} usable blocks of {pool.block_size} tokens hold no window "
                f"of {window} and the block being filled: give a larger pool"
            )
        self._spec = replace(
            self._spec,
            pools=(replace(pool, kind=PoolKind.WINDOW, window_tokens=window),),
            capabilities=self._spec.capabilities | {Capability.SLIDING_WINDOW},
            effective={**self._spec.effective, "window_tokens": window},
        )

    def due(self, settled_tokens: int) -> int:
        """Return how many leading blocks a sequence of that settled length needs no more."""
        return max(0, (settled_tokens - self.window_tokens + 1) // self.cache.block_size)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares every block of ``parent_id``'s window; never refused."""
        super().fork(parent_id, child_id)
        self._let_go[child_id] = self._let_go.get(parent_id, 0)
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence still holds."""
        super().release(request_id, reason)
        self._let_go.pop(request_id, None)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Settle and publish, then let go of what fell out of the window."""
        super().done(step, accepted)
        for request_id, length in accepted.items():
            start, stop = self._let_go.get(request_id, 0), self.due(length)
            if stop > start:
                self.cache.let_go(request_id, start, stop)
                self._let_go[request_id] = stop

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool with the first token that each sequence still holds."""
        null_ids = np.array([NULL], np.int32)
        return tuple(
            replace(shot, null_ids=null_ids, first_live=self._first_live(shot.request_ids))
            for shot in super().snapshot(since)
        )

    def _first_live(self, request_ids: tuple[RequestId, ...]) -> Int64Array:
        size = self.cache.block_size
        return np.array([self._let_go.get(request_id, 0) * size for request_id in request_ids], np.int64)
