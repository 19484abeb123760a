"""Request-driven engines for tests: the sound one on a small pool, and what a test makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.extensions.requests import RequestsEngine
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.trace.model import Trace


@pytest.fixture
def open_requests() -> Callable[..., RequestsEngine]:
    """Open an engine on 64 blocks of 16 tokens of the tiny layout, without a prefix cache."""

    def make(
        kind: type[RequestsEngine] = RequestsEngine,
        *,
        num_blocks: int = 64,
        prefix_cache: bool = False,
        **options: int,
    ) -> RequestsEngine:
        config = EngineConfig(
            model_layout("tiny"), 16, num_blocks, prefix_cache=prefix_cache, options=options
        )
        return kind(config)

    return make


@pytest.fixture
def requests_of() -> Callable[..., Trace]:
    """Make a trace of pairs of prompt and answer lengths, or of whole rows; all arrive at once."""

    def make(*rows: Row | tuple[int, int]) -> Trace:
        made = [
            row if isinstance(row, Row) else Row(timestamp=0, input_length=row[0], output_length=row[1])
            for row in rows
        ]
        return trace_of(made, TraceSource("test", "requests"), block_size=16)

    return make
