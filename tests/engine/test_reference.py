"""The reference engine against the contract; expected values worked out by hand for blocks of 4 tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import (
    NO_OPS,
    Admission,
    BlockCopy,
    Capability,
    Engine,
    RefusalReason,
    Release,
    SupportsFork,
    SupportsResetCache,
)
from kvsuite.engine.reference import POOL, ReferenceEngine
from kvsuite.errors import BlockError, ConfigError, EngineError
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

MakeConfig = Callable[..., EngineConfig]
R1, R2, R3, R4 = (RequestId(f"r{number}") for number in (1, 2, 3, 4))
SYSTEM = 7


def private(key: int) -> TokenContent:
    return TokenContent((key,), ())


def after_system(tokens: int, key: int) -> TokenContent:
    """Content that starts with ``tokens`` tokens of one system prompt."""
    return TokenContent((SYSTEM, key), (tokens,))


def admit(engine: ReferenceEngine, request_id: RequestId, content: TokenContent, tokens: int) -> Admission:
    return engine.admit(request_id, TokenRun(content, 0, tokens), first_chunk_tokens=tokens)


def grow(engine: ReferenceEngine, request_id: RequestId, content: TokenContent, stop: int) -> bool:
    start = engine.cache.tables[request_id].length
    return engine.extend(request_id, TokenRun(content, start, stop))


def test_it_satisfies_the_contract_and_what_it_claims(make_config: MakeConfig) -> None:
    engine = ReferenceEngine(make_config())
    assert isinstance(engine, Engine)
    assert isinstance(engine, SupportsFork)
    assert isinstance(engine, SupportsResetCache)
    assert engine.spec.capabilities == {
        Capability.PAGED,
        Capability.PREFIX_CACHE,
        Capability.FORK,
        Capability.COPY_ON_WRITE,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
        Capability.RESET_CACHE,
    }


def test_its_spec_says_what_it_really_runs_with(make_config: MakeConfig) -> None:
    spec = ReferenceEngine(
        make_config(prefix_cache=False, watermark_blocks=2, options={"null_blocks": 1})
    ).spec
    assert not spec.claims(Capability.PREFIX_CACHE)
    assert spec.effective == {
        "block_size": 4,
        "num_blocks": 8,
        "null_blocks": 1,
        "prefix_cache": False,
        "watermark_blocks": 2,
        "admission": "whole_prompt",
        "cow": "lazy",
        "eviction": "lru",
        "free_list": "lifo",
    }
    (pool,) = spec.pools
    assert (pool.num_blocks, pool.usable_blocks, pool.block_size) == (8, 7, 4)
    assert (pool.bytes_per_token, pool.block_bytes, pool.pool_bytes) == (128, 512, 4096)
    assert (spec.layout, spec.dtype) == ("tiny L2 k2x8+v2x8 bfloat16 tp1", "bfloat16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nul_blocks": 1}, "unknown option 'nul_blocks', expected null_blocks"),
        ({"null_blocks": -1}, "null_blocks is -1"),
        ({"null_blocks": True}, "null_blocks is True"),
        ({"null_blocks": 8}, "cannot keep back 8"),
    ],
)
def test_options_that_cannot_be_are_refused(
    make_config: MakeConfig, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ReferenceEngine(make_config(options=options))


def test_null_blocks_are_shown_and_never_given_out(make_config: MakeConfig) -> None:
    engine = ReferenceEngine(make_config(num_blocks=3, options={"null_blocks": 1}))
    admit(engine, R1, private(1), 8)
    (shot,) = engine.snapshot()
    assert (shot.table(0).tolist(), shot.free.tolist(), shot.never_allocatable.tolist()) == ([1, 2], [], [0])


class TestPublishing:
    def test_a_prompt_is_hit_once_its_step_is_done(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, after_system(8, 1), 10)
        assert admit(engine, R2, after_system(8, 2), 10).hit_tokens == 0
        engine.done(0, {R1: 10, R2: 10})
        assert admit(engine, R3, after_system(8, 3), 10).hit_tokens == 8

    def test_sharing_ends_inside_a_block_where_content_does(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, after_system(6, 1), 10)
        engine.done(0, {R1: 10})
        assert admit(engine, R2, after_system(6, 2), 10).hit_tokens == 4

    def test_an_answer_is_hit_too(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 6)
        engine.done(0, {R1: 6})
        for stop in range(7, 10):
            assert grow(engine, R1, private(1), stop)
            engine.done(stop, {R1: stop})
        engine.release(R1, Release.PREEMPT)
        assert admit(engine, R1, private(1), 9) == Admission(hit_tokens=8, scheduled_tokens=9)

    def test_a_step_that_never_ends_publishes_nothing(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 8)
        engine.release(R1, Release.CANCEL)
        (shot,) = engine.snapshot()
        assert (len(shot.free), len(shot.cached)) == (8, 0)

    def test_only_what_is_settled_is_published(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        engine.admit(R1, TokenRun(private(1), 0, 12), first_chunk_tokens=6)
        engine.done(0, {R1: 6})
        assert grow(engine, R1, private(1), 12)
        assert admit(engine, R2, private(1), 12).hit_tokens == 4
        engine.done(1, {R1: 12})
        assert admit(engine, R3, private(1), 12).hit_tokens == 8

    def test_a_child_publishes_its_own_tokens(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        parent = private(1)
        admit(engine, R1, parent, 6)
        engine.done(0, {R1: 6})
        assert engine.fork(R1, R2)
        child = parent.forked(6, 2)
        assert grow(engine, R1, parent, 8)
        assert grow(engine, R2, child, 8)
        engine.done(1, {R1: 8, R2: 8})
        engine.release(R1, Release.FINISH)
        engine.release(R2, Release.FINISH)
        assert admit(engine, R3, child, 9).hit_tokens == 8
        assert admit(engine, R4, parent, 9).hit_tokens == 8
        tables = engine.cache.tables
        assert tables[R3].blocks[0] == tables[R4].blocks[0]
        assert tables[R3].blocks[1] != tables[R4].blocks[1]

    def test_a_refused_prompt_is_looked_up_afresh(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(num_blocks=4))
        admit(engine, R1, after_system(8, 1), 12)
        engine.done(0, {R1: 12})
        assert not admit(engine, R2, private(2), 12).accepted
        assert admit(engine, R2, after_system(8, 2), 12).hit_tokens == 8

    def test_a_reset_forgets(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 8)
        engine.done(0, {R1: 8})
        assert not engine.reset_cache()
        engine.release(R1, Release.FINISH)
        assert engine.reset_cache()
        assert admit(engine, R1, private(1), 8).hit_tokens == 0

    def test_without_a_prefix_cache_nothing_is_hit(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(prefix_cache=False))
        admit(engine, R1, private(1), 9)
        engine.done(0, {R1: 9})
        assert admit(engine, R2, private(1), 9).hit_tokens == 0


class TestRefusals:
    def refusal(self, engine: ReferenceEngine, tokens: int) -> tuple[int, int, int, RefusalReason]:
        refusal = admit(engine, R4, private(4), tokens).refusal
        assert refusal is not None
        assert refusal.pool == POOL
        return refusal.needed_blocks, refusal.free_blocks, refusal.reclaimable_blocks, refusal.reason

    def test_larger_than_the_pool(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(num_blocks=4, options={"null_blocks": 1}))
        assert self.refusal(engine, 13) == (4, 3, 0, RefusalReason.NEVER_FITS)
        assert admit(engine, R1, private(1), 12).accepted

    def test_not_enough_blocks_now(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(num_blocks=4))
        admit(engine, R1, private(1), 4)
        engine.done(0, {R1: 4})
        admit(engine, R2, private(2), 4)
        engine.release(R1, Release.FINISH)
        assert self.refusal(engine, 16) == (4, 2, 1, RefusalReason.NO_BLOCKS)
        assert admit(engine, R4, private(4), 12).accepted

    def test_blocks_promised_to_a_prompt_under_way(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(num_blocks=6))
        engine.admit(R1, TokenRun(private(1), 0, 16), first_chunk_tokens=4)
        assert self.refusal(engine, 12) == (3, 5, 0, RefusalReason.PROMISED)

    def test_blocks_kept_back(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config(num_blocks=4, watermark_blocks=1))
        admit(engine, R1, private(1), 8)
        assert self.refusal(engine, 8) == (2, 2, 0, RefusalReason.WATERMARK)


def test_a_divergence_is_reported_as_a_copy_once(make_config: MakeConfig) -> None:
    engine = ReferenceEngine(make_config())
    admit(engine, R1, private(1), 7)
    engine.fork(R1, R2)
    assert grow(engine, R1, private(1), 8)
    assert engine.take_ops().copies == (BlockCopy(POOL, 1, 2, 3, R1),)
    assert engine.take_ops() is NO_OPS


class TestMisuse:
    def test_tokens_must_follow(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 6)
        with pytest.raises(EngineError, match="r1 holds 6 tokens and is extended from 7"):
            engine.extend(R1, TokenRun(private(1), 7, 8))

    def test_look_ahead_is_not_claimed(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 6)
        with pytest.raises(EngineError, match="r1: 2 look-ahead tokens asked, none are claimed"):
            engine.extend(R1, TokenRun(private(1), 6, 7), lookahead_tokens=2)

    def test_unknown_sequences_are_named(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        with pytest.raises(BlockError, match="release of unknown sequence 'r1'"):
            engine.release(R1, Release.FINISH)
        with pytest.raises(BlockError, match="extend of unknown sequence 'r1'"):
            engine.extend(R1, TokenRun(private(1), 0, 1))
        with pytest.raises(BlockError, match="fork of unknown sequence 'r1'"):
            engine.fork(R1, R2)
        with pytest.raises(EngineError, match="r1 is settled at 6 tokens but not live"):
            engine.done(0, {R1: 6})

    def test_more_than_was_scheduled_cannot_be_settled(self, make_config: MakeConfig) -> None:
        engine = ReferenceEngine(make_config())
        admit(engine, R1, private(1), 6)
        with pytest.raises(BlockError, match="r1 holds 6 tokens: its first 2 blocks of 4 are not all full"):
            engine.done(0, {R1: 8})
