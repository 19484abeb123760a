"""The tail-slack law: a table holds ceil(n / b) blocks, so 0 <= slack <= b - 1, at every length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.registry import open_engine as open_any
from kvsuite.ledger.invariants import slack_outside_bound
from kvsuite.trace.model import RequestId, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.plugin.replays import EngineOpener

paged = pytest.mark.requires(Capability.PAGED)


def slack_of(engine: Engine, tokens: int) -> int:
    """Admit one sequence of ``tokens`` tokens, look at its table, and let it go."""
    request_id = RequestId("lonely")
    run = TokenRun(TokenContent((0,), ()), 0, tokens)
    assert engine.admit(request_id, run, first_chunk_tokens=tokens, max_tokens=tokens).accepted
    (snapshot, *_) = engine.snapshot()
    (spec, *_) = engine.spec.pools
    engine.take_ops()
    engine.release(request_id, Release.FINISH)
    assert snapshot.lengths.tolist() == [tokens]
    return len(snapshot.table(0)) * spec.block_size - tokens


@paged
def test_slack_stays_below_one_block(open_engine: EngineOpener, summary_line: Callable[[str], None]) -> None:
    """The named case: n in {1, 15, 16, 17, 63} at b = 16 leaves {15, 1, 0, 15, 1} slots empty."""
    engine = open_engine(block_size=16, num_blocks=8)
    assert {n: slack_of(engine, n) for n in (1, 15, 16, 17, 63)} == {1: 15, 15: 1, 16: 0, 17: 15, 63: 1}
    summary_line("PASS: tail slack stays below one block")


@paged
@pytest.mark.parametrize("block_size", [1, 2, 8, 16, 64, 256])
def test_slack_at_exact_boundaries_and_one_past(open_engine: EngineOpener, block_size: int) -> None:
    """At k * b nothing is empty, one token past it b - 1 slots are."""
    engine = open_engine(block_size=block_size, num_blocks=8)
    for blocks in (1, 2, 5):
        assert slack_of(engine, blocks * block_size) == 0
        assert slack_of(engine, blocks * block_size + 1) == block_size - 1


@paged
def test_slack_of_any_length_in_any_block_size(open_engine: EngineOpener) -> None:
    """Slack is -n mod b."""

    @given(st.integers(1, 600), st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64, 128]))
    def law(tokens: int, block_size: int) -> None:
        engine = open_engine(block_size=block_size, num_blocks=-(-tokens // block_size) + 8)
        slack = slack_of(engine, tokens)
        assert 0 <= slack < block_size
        assert slack == -tokens % block_size

    law()


@paged
def test_slack_while_a_sequence_grows(open_engine: EngineOpener) -> None:
    """Token by token over four blocks: the block comes with the token that needs it, never before."""
    engine = open_engine(block_size=4, num_blocks=8)
    request_id, content = RequestId("growing"), TokenContent((0,), ())
    assert engine.admit(request_id, TokenRun(content, 0, 1), first_chunk_tokens=1, max_tokens=16).accepted
    for length in range(1, 17):
        (snapshot, *_) = engine.snapshot()
        assert len(snapshot.table(0)) == -(-length // 4)
        if length < 16:
            assert engine.extend(request_id, TokenRun(content, length, length + 1))


@pytest.mark.parametrize("control", ["contiguous-max", "contiguous-pow2", "contiguous-exact"])
def test_reservation_breaks_the_law(control: str) -> None:
    """33 tokens of a request that may grow to 600 hold 600, 64 and 600 slots; blocks of 16 would hold 48."""
    row = Row(request_id="lonely", timestamp=0, input_length=33, output_length=567)
    trace = trace_of([row], TraceSource("by hand", "reservation"), block_size=16)
    config = EngineConfig(model_layout("tiny"), 16, 64, max_model_tokens=600, trace=trace)
    engine = open_any(control, config)
    run = TokenRun(TokenContent((0,), ()), 0, 33)
    assert engine.admit(RequestId("lonely"), run, first_chunk_tokens=33, max_tokens=600).accepted
    held = np.array([len(engine.snapshot()[0].table(0))])
    assert held[0] == {"contiguous-max": 600, "contiguous-pow2": 64, "contiguous-exact": 600}[control]
    assert slack_outside_bound(np.array([33]), held, 16).tolist() == [0]
