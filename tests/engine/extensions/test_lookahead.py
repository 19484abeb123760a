"""Look-ahead over the reference: exact counts, all or nothing, given back when settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.extensions.lookahead import LookaheadCache, LookaheadEngine
from kvsuite.engine.registry import open_engine
from kvsuite.errors import BlockError, ConfigError, EngineError
from kvsuite.replay.scene import Scene
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

CONTENT = TokenContent((0,), ())
A, B = RequestId("a"), RequestId("b")


def engine_of(num_blocks: int = 8, block_size: int = 4, **others: object) -> LookaheadEngine:
    config = EngineConfig(model_layout("tiny"), block_size, num_blocks, **others)  # type: ignore[arg-type]
    engine = open_engine("reference-lookahead", config)
    assert isinstance(engine, LookaheadEngine)
    return engine


def admit(engine: LookaheadEngine, tokens: int, name: RequestId = A) -> None:
    assert engine.admit(name, TokenRun(CONTENT, 0, tokens), first_chunk_tokens=tokens).accepted


def extend(engine: LookaheadEngine, start: int, ahead: int, name: RequestId = A) -> bool:
    return engine.extend(name, TokenRun(CONTENT, start, start + 1), lookahead_tokens=ahead)


def held(engine: LookaheadEngine, name: str = A) -> int:
    return len(engine.cache.tables[name].blocks)


@pytest.mark.parametrize(
    ("tokens", "ahead", "blocks"),
    [(3, 0, 1), (3, 1, 2), (4, 0, 2), (4, 3, 2), (4, 4, 3), (7, 5, 4), (1, 2, 1), (1, 3, 2)],
)
def test_a_table_reaches_over_the_look_ahead(tokens: int, ahead: int, blocks: int) -> None:
    """b = 4: ceil((n + 1 + k) / 4), and ceil((n + 1) / 4) once settled."""
    engine = engine_of()
    admit(engine, tokens)
    assert extend(engine, tokens, ahead)
    assert held(engine) == blocks
    engine.done(0, {A: tokens + 1})
    assert held(engine) == tokens // 4 + 1


def test_nothing_is_reserved_beyond_the_longest_sequence() -> None:
    """Lmax = 10 in blocks of 4: three blocks at 9 and at 10 tokens, however much is ahead."""
    engine = engine_of(max_model_tokens=10)
    admit(engine, 8)
    for length in (8, 9):
        assert extend(engine, length, 8)
        assert held(engine) == 3
        engine.done(length, {A: length + 1})
    assert engine.spec.effective["max_model_tokens"] == 10


def test_a_refused_look_ahead_takes_nothing() -> None:
    engine = engine_of(num_blocks=3)
    admit(engine, 8)
    before = engine.cache.pool.num_free
    assert not extend(engine, 8, 4)
    assert (engine.cache.pool.num_free, held(engine), engine.cache.tables[A].length) == (before, 2, 8)
    assert extend(engine, 8, 3)


def test_a_second_extension_counts_from_the_tokens_and_not_from_the_reservation() -> None:
    engine = engine_of()
    admit(engine, 4)
    assert extend(engine, 4, 8)
    assert held(engine) == 4
    assert extend(engine, 5, 0)
    assert held(engine) == 2


def test_rejected_drafts_are_rolled_back_and_their_blocks_are_free() -> None:
    """6 tokens and 5 drafts of which 1 holds: 7 tokens in 2 blocks of 4."""
    engine = engine_of()
    admit(engine, 6)
    assert engine.extend(A, TokenRun(CONTENT, 6, 11), lookahead_tokens=2)
    assert held(engine) == 4
    engine.done(0, {A: 7})
    (shot,) = engine.snapshot()
    assert (shot.lengths.tolist(), held(engine), len(shot.free)) == ([7], 2, 6)
    assert engine.extend(A, TokenRun(CONTENT, 7, 8))


def test_it_cannot_be_settled_beyond_what_it_was_given() -> None:
    engine = engine_of()
    admit(engine, 6)
    with pytest.raises(BlockError, match="holds 6 tokens and cannot be settled at 7"):
        engine.done(0, {A: 7})


def test_a_fork_shares_tokens_and_no_reservation() -> None:
    engine = engine_of()
    admit(engine, 6)
    assert extend(engine, 6, 5)
    assert engine.fork(A, B)
    assert (held(engine, A), held(engine, B)) == (3, 2)
    engine.release(A, Release.FINISH)
    engine.release(B, Release.FINISH)
    assert engine.cache.pool.num_free == 8


def test_a_shared_tail_is_copied_before_drafts_go_on() -> None:
    scene = Scene(engine_of())
    scene.admit("a", 6)
    scene.step()
    scene.fork("a", "b")
    for name in "ab":
        assert scene.extend(name, lookahead=4)
    scene.step()
    for name in "ab":
        assert scene.extend(name, 2, lookahead=3)
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.parametrize("value", [-1, True, "4"])
def test_the_declared_look_ahead_is_a_number_of_tokens(value: object) -> None:
    with pytest.raises(ConfigError, match="reference-lookahead: lookahead_tokens is"):
        engine_of(options={"lookahead_tokens": value})


def test_more_than_declared_is_against_the_contract() -> None:
    engine = engine_of(options={"lookahead_tokens": 3, "null_blocks": 1})
    admit(engine, 4)
    with pytest.raises(EngineError, match="4 look-ahead tokens asked, declared are 0 to 3"):
        extend(engine, 4, 4)
    assert engine.spec.effective["lookahead_tokens"] == 3
    assert engine.spec.effective["null_blocks"] == 1


def test_it_claims_what_the_reference_claims_and_look_ahead() -> None:
    config = EngineConfig(model_layout("tiny"), 4, 8)
    base = open_engine("reference", config).spec
    assert engine_of().spec.capabilities == base.capabilities | {Capability.LOOKAHEAD}
    assert engine_of().snapshot()[0].lookahead_tokens == 8


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(1, 5)), max_size=12),
)
def test_free_and_held_blocks_always_add_up(prompt: int, rounds: list[tuple[int, int, int]]) -> None:
    """Any rounds of written, reserved and accepted tokens: exact tables, and a whole pool at the end."""
    cache = LookaheadCache(24, 3, prefix_cache=False)
    cache.max_tokens = 40
    cache.admit("a", prompt)
    length = prompt
    for written, ahead, accepted in rounds:
        cache.lookahead_tokens = ahead
        due = -(-max(length + written, min(length + written + ahead, 40)) // 3)
        before = (cache.pool.num_free, list(cache.tables["a"].blocks))
        if cache.extend("a", written):
            assert len(cache.tables["a"].blocks) == due
            length += min(written, accepted)
            cache.settle("a", length)
            assert len(cache.tables["a"].blocks) == -(-length // 3)
        else:
            assert due > 24
            assert (cache.pool.num_free, list(cache.tables["a"].blocks)) == before
        assert cache.pool.num_free == 24 - len(cache.tables["a"].blocks)
    cache.release("a")
    assert cache.pool.num_free == 24
