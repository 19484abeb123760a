"""The engine with constant state: one state a sequence, beside attention that grows."""

from __future__ import annotations

import pytest

from kvsuite.cache.layout import attention_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import BlockCopy, Capability, Release
from kvsuite.engine.extensions.state import STATE_POOL, StateEngine
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

A, B, C = (RequestId(name) for name in "abc")
LAYOUT = attention_layout("layers", num_layers=2, kv_heads=1, head_dim=4)
TOKEN_BYTES = 2 * 2 * 4 * 2


def states(num_blocks: int = 8, block_size: int = 4, **options: int | bool) -> StateEngine:
    return StateEngine(EngineConfig(LAYOUT, block_size, num_blocks, options=options))


def run(stop: int, key: int = 7) -> TokenRun:
    return TokenRun(TokenContent((key,), ()), 0, stop)


def test_a_state_pool_beside_attention() -> None:
    attention, state = states(state_bytes=100, state_blocks=3).spec.pools
    assert (attention.kind, attention.block_size, attention.bytes_per_token) == (
        PoolKind.FULL,
        4,
        TOKEN_BYTES,
    )
    assert (state.kind, state.num_blocks, state.block_bytes) == (PoolKind.STATE, 3, 100)


def test_there_is_no_prefix_cache_without_states_to_go_on_from() -> None:
    engine = states()
    assert not engine.spec.claims(Capability.PREFIX_CACHE)
    for name in (A, B):
        assert engine.admit(name, run(9), first_chunk_tokens=9).hit_tokens == 0
        engine.done(0, {name: 9})


@pytest.mark.parametrize("tokens", [1, 4, 5, 32])
def test_one_state_at_any_length(tokens: int) -> None:
    engine = states()
    engine.admit(A, run(tokens), first_chunk_tokens=tokens)
    attention, state = engine.snapshot()
    assert len(attention.table(0)) == -(-tokens // 4)
    assert (len(state.table(0)), state.lengths.tolist(), len(state.free)) == (1, [1], 7)


def test_a_sequence_without_a_state_is_refused_and_takes_no_block() -> None:
    engine = states(state_blocks=1)
    engine.admit(A, run(4), first_chunk_tokens=4)
    refusal = engine.admit(B, run(4, key=8), first_chunk_tokens=4).refusal
    assert refusal is not None
    assert (refusal.pool, refusal.needed_blocks, refusal.free_blocks) == (STATE_POOL, 1, 0)
    assert len(engine.snapshot()[0].free) == 7


def test_a_fork_copies_the_state_at_once() -> None:
    engine = states()
    engine.admit(A, run(6), first_chunk_tokens=6)
    assert engine.fork(A, B)
    attention, state = engine.snapshot()
    assert attention.table(0).tolist() == attention.table(1).tolist()
    parent, child = state.table(0)[0], state.table(1)[0]
    assert parent != child
    assert engine.take_ops().copies == (BlockCopy(STATE_POOL, int(parent), int(child), 1, B),)
    assert engine.take_ops().copies == ()


def test_a_fork_is_refused_where_no_state_is_left() -> None:
    engine = states(state_blocks=1)
    engine.admit(A, run(6), first_chunk_tokens=6)
    assert not engine.fork(A, B)
    assert engine.snapshot()[0].request_ids == (A,)


def test_a_child_that_leaves_takes_its_copy_along() -> None:
    engine = states()
    engine.admit(A, run(6), first_chunk_tokens=6)
    engine.fork(A, B)
    engine.release(B, Release.CANCEL)
    assert engine.take_ops().copies == ()
    engine.release(A, Release.FINISH)
    assert [len(shot.free) for shot in engine.snapshot()] == [8, 8]


@pytest.mark.parametrize(
    ("state_bytes", "block_size", "pad_bytes"),
    [
        (16 * TOKEN_BYTES, 16, 0),
        (16 * TOKEN_BYTES + 1, 32, 16 * TOKEN_BYTES - 1),
        (1, 16, 16 * TOKEN_BYTES - 1),
        (1024 * TOKEN_BYTES, 1024, 0),
    ],
)
def test_uniform_pages_hold_a_state_and_no_more_than_they_must(
    state_bytes: int, block_size: int, pad_bytes: int
) -> None:
    attention, state = states(block_size=16, uniform_pages=True, state_bytes=state_bytes).spec.pools
    assert (attention.block_size, attention.kernel_block_size) == (block_size, 16)
    assert state.pad_bytes_per_block == pad_bytes
    assert state.block_bytes == attention.block_bytes


@pytest.mark.parametrize("options", [{"state_bytes": 0}, {"state_blocks": True}, {"x": 1}])
def test_options_that_cannot_be_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        states(**options)


@pytest.mark.parametrize("options", [{}, {"uniform_pages": True}, {"state_blocks": 9}])
@pytest.mark.parametrize("workload", ["churn", "divergence-burst"])
def test_no_law_is_broken_in_traffic(workload: str, options: dict[str, int]) -> None:
    engine = StateEngine(EngineConfig(LAYOUT, 16, 100, options=options))
    assert replay(load_trace(workload).head(40), engine).violations == ()
