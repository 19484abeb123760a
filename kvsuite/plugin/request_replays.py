"""Takes traces through engines that are driven by requests, for cases; every replay is judged at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsuite.plugin.notes import notes_of
from kvsuite.plugin.replays import Replayer, refuse_violations
from kvsuite.plugin.subjects import subjects_of

if TYPE_CHECKING:
    import pytest

    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.trace.model import Trace


class RequestReplayer:
    """Replays traces for one case on the engine called ``engine_name``, and notes each for the record.

    ``block_size`` is the size the engine has by default: some have no other. ``num_blocks`` counts blocks
    that a sequence can own: those the engine keeps back come on top.
    """

    def __init__(self, item: pytest.Item, engine_name: str, notes: Replayer) -> None:
        self._item = item
        self._engine_name = engine_name
        self._notes = notes
        (pool, *_) = subjects_of(item.config).spec(engine_name).pools
        self.block_size = pool.block_size
        self._kept_back_blocks = pool.never_allocatable_blocks

    def __call__(
        self, trace: Trace, *, num_blocks: int, block_size: int | None = None, **config: Any
    ) -> RequestReplay:
        """Take ``trace`` through a fresh engine; ``config`` takes the other fields of `EngineConfig`.

        **Raises:** `InvariantViolation` naming invariant, step and pool.
        """
        __tracebackhide__ = True
        done = self.watch(trace, num_blocks=num_blocks, block_size=block_size, **config)
        refuse_violations(self._item, done)
        return done

    def watch(
        self, trace: Trace, *, num_blocks: int, block_size: int | None = None, **config: Any
    ) -> RequestReplay:
        """Take ``trace`` through a fresh engine and leave what is broken to the caller."""
        from kvsuite.cache.layout import model_layout
        from kvsuite.engine.config import EngineConfig
        from kvsuite.engine.registry import open_request_engine
        from kvsuite.replay.requests.driver import replay_requests
        from kvsuite.sweep.lengths import longest_declared_tokens

        asked = EngineConfig(
            layout=model_layout("tiny"),
            block_size=block_size or self.block_size,
            num_blocks=num_blocks + self._kept_back_blocks,
            **{"max_model_tokens": longest_declared_tokens(trace), **config},
        )
        done = replay_requests(trace, open_request_engine(self._engine_name, asked))
        notes_of(self._item).worker = done.content.mode
        self._notes.note(trace, done, asked)
        return done
