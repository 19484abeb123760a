"""Small configurations and contents shared by the engine tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.trace.model import Trace
from kvsuite.trace.request import ABSENT, RequestId, TraceSource

MakeConfig = Callable[..., EngineConfig]
MakeTrace = Callable[..., Trace]


@pytest.fixture
def make_config() -> MakeConfig:
    """Return a maker of configurations: 8 blocks of 4 tokens of the tiny layout unless told otherwise."""

    def make(num_blocks: int = 8, block_size: int = 4, **others: object) -> EngineConfig:
        return EngineConfig(model_layout("tiny"), block_size, num_blocks, **others)  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_trace() -> MakeTrace:
    """Return a maker of traces that share nothing, from pairs of prompt and output lengths."""

    def make(*lengths: tuple[int, int]) -> Trace:
        count = len(lengths)
        absent = np.full(count, ABSENT, np.int64)
        zeros = np.zeros(count, np.int64)
        return Trace(
            request_ids=tuple(RequestId(f"r{row}") for row in range(count)),
            arrival_us=zeros,
            prompt_tokens=np.array([prompt for prompt, _ in lengths], np.int64),
            output_tokens=np.array([output for _, output in lengths], np.int64),
            block_size=0,
            node_offsets=np.zeros(count + 1, np.int64),
            nodes=np.zeros(0, np.int64),
            hashed_tokens=absent,
            max_output_tokens=absent,
            parent=absent,
            fork_kind=absent,
            fork_at=absent,
            cancel_after=absent,
            cancel_at_us=absent,
            session=absent,
            turn=absent,
            priority=zeros,
            source=TraceSource("test", "test"),
            rows_read=count,
        )

    return make
