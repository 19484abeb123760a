"""The contiguous controls: reservations, holes and moves, worked out by hand on pools of a few slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contiguous.base import POOL, ContiguousEngine
from kvsuite.engine.contiguous.controls import ContiguousExact, ContiguousMax, ContiguousPow2
from kvsuite.engine.contract import (
    NO_OPS,
    BlockCopy,
    Capability,
    Engine,
    RefusalReason,
    Release,
    SupportsFork,
)
from kvsuite.errors import BlockError, ConfigError, EngineError
from kvsuite.trace.model import Trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

MakeConfig = Callable[..., EngineConfig]
MakeTrace = Callable[..., Trace]
CONTENT = TokenContent((1,), ())


def admit(
    engine: ContiguousEngine, name: str, tokens: int, *, chunk: int | None = None, cap: int | None = None
) -> RefusalReason | None:
    answer = engine.admit(
        RequestId(name), TokenRun(CONTENT, 0, tokens), first_chunk_tokens=chunk or tokens, max_tokens=cap
    )
    return answer.refusal.reason if answer.refusal else None


def grow(engine: ContiguousEngine, name: str, start: int, stop: int) -> bool:
    return engine.extend(RequestId(name), TokenRun(CONTENT, start, stop))


def finish(engine: ContiguousEngine, name: str) -> None:
    engine.release(RequestId(name), Release.FINISH)


def tables(engine: ContiguousEngine) -> dict[str, list[int]]:
    (shot,) = engine.snapshot()
    return {request_id: shot.table(row).tolist() for row, request_id in enumerate(shot.request_ids)}


@pytest.mark.parametrize("kind", [ContiguousMax, ContiguousPow2, ContiguousExact])
def test_a_control_claims_no_more_than_it_does(
    kind: type[ContiguousEngine], make_config: MakeConfig, make_trace: MakeTrace
) -> None:
    engine = kind(make_config(num_blocks=3, block_size=16, trace=make_trace((4, 4))))
    assert isinstance(engine, Engine)
    assert not isinstance(engine, SupportsFork)
    assert engine.spec.capabilities == {Capability.CHUNKED_PREFILL, Capability.PREEMPTION}
    (pool,) = engine.spec.pools
    assert pool.contiguous
    assert (pool.num_blocks, pool.block_size, pool.pool_bytes) == (48, 1, 48 * 128)
    assert engine.spec.effective["num_slots"] == 48


class TestMax:
    def test_the_declared_cap_is_reserved_from_the_start(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config(num_blocks=5))
        assert admit(engine, "r1", 3, cap=10) is None
        (shot,) = engine.snapshot()
        assert (shot.table(0).tolist(), shot.lengths.tolist()) == (list(range(10)), [3])
        assert (len(shot.free), shot.largest_free_run) == (10, 10)
        assert grow(engine, "r1", 3, 10)
        assert tables(engine) == {"r1": list(range(10))}

    def test_without_a_declared_cap_the_model_s_is_reserved(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config(num_blocks=5, max_model_tokens=16))
        admit(engine, "r1", 3)
        admit(engine, "r2", 3, cap=4)
        assert {name: len(run) for name, run in tables(engine).items()} == {"r1": 16, "r2": 4}

    def test_no_cap_at_all_is_a_clear_error(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config())
        with pytest.raises(ConfigError, match=r"r1 declares no max_tokens .* give max_model_tokens"):
            admit(engine, "r1", 3)
        assert tables(engine) == {}

    def test_growth_past_the_cap_is_a_clear_error(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config())
        admit(engine, "r1", 3, cap=4)
        with pytest.raises(EngineError, match="r1 grows to 5 tokens, past the 4 that were declared"):
            grow(engine, "r1", 3, 5)

    def test_room_in_pieces_is_no_room(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config(num_blocks=4))
        for name in ("r1", "r2", "r3", "r4"):
            assert admit(engine, name, 1, cap=4) is None
        finish(engine, "r1")
        finish(engine, "r3")
        assert admit(engine, "r5", 1, cap=5) is RefusalReason.NO_CONTIGUOUS_RUN
        assert engine.fragmentation_events == 1
        assert engine.snapshot()[0].largest_free_run == 4
        assert admit(engine, "r5", 1, cap=9) is RefusalReason.NO_BLOCKS
        assert admit(engine, "r5", 1, cap=17) is RefusalReason.NEVER_FITS
        assert engine.fragmentation_events == 1
        finish(engine, "r2")
        assert admit(engine, "r5", 1, cap=5) is None
        assert tables(engine)["r5"] == [0, 1, 2, 3, 4]

    def test_a_refusal_names_what_was_needed_and_what_there_was(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config(num_blocks=2))
        admit(engine, "r1", 1, cap=5)
        run = TokenRun(CONTENT, 0, 2)
        refusal = engine.admit(RequestId("r2"), run, first_chunk_tokens=2, max_tokens=4).refusal
        assert refusal is not None
        assert (refusal.needed_blocks, refusal.free_blocks, refusal.reclaimable_blocks) == (4, 3, 0)

    def test_chunks_fill_the_run_that_was_reserved(self, make_config: MakeConfig) -> None:
        engine = ContiguousMax(make_config())
        answer = engine.admit(RequestId("r1"), TokenRun(CONTENT, 0, 9), first_chunk_tokens=4, max_tokens=12)
        assert (answer.hit_tokens, answer.scheduled_tokens) == (0, 4)
        assert grow(engine, "r1", 4, 9)
        assert engine.snapshot()[0].lengths.tolist() == [9]


class TestPow2:
    def test_the_next_power_of_two_is_reserved(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config())
        for name, tokens in (("r1", 1), ("r2", 4), ("r3", 5)):
            assert admit(engine, name, tokens) is None
        assert {name: len(run) for name, run in tables(engine).items()} == {"r1": 1, "r2": 4, "r3": 8}

    def test_it_doubles_in_place_where_a_hole_follows(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=4))
        admit(engine, "r1", 4)
        assert grow(engine, "r1", 4, 5)
        assert tables(engine) == {"r1": list(range(8))}
        assert engine.take_ops() is NO_OPS

    def test_it_moves_with_all_its_tokens_where_none_follows(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=4))
        admit(engine, "r1", 4)
        admit(engine, "r2", 2)
        assert grow(engine, "r1", 4, 5)
        assert tables(engine) == {"r1": list(range(6, 14)), "r2": [4, 5]}
        copies = engine.take_ops().copies
        assert copies == tuple(BlockCopy(POOL, token, 6 + token, 1, RequestId("r1")) for token in range(4))
        assert engine.take_ops() is NO_OPS
        assert admit(engine, "r3", 4) is None
        assert tables(engine)["r3"] == [0, 1, 2, 3]

    def test_both_runs_are_needed_while_it_moves(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=3))
        admit(engine, "r1", 4)
        admit(engine, "r2", 1)
        before = tables(engine)
        assert not grow(engine, "r1", 4, 5)  # 7 slots are free, 8 in a row are needed
        assert tables(engine) == before
        assert engine.fragmentation_events == 0
        finish(engine, "r2")
        assert grow(engine, "r1", 4, 5)

    def test_growth_refused_by_holes_is_counted(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=4))
        for name in ("r1", "r2", "r3"):
            admit(engine, name, 4)
        finish(engine, "r1")
        before = tables(engine)
        assert not grow(engine, "r2", 4, 5)  # 8 slots are free: 0..3 and 12..15
        assert engine.fragmentation_events == 1
        assert tables(engine) == before
        finish(engine, "r3")
        assert grow(engine, "r2", 4, 5)
        assert tables(engine) == {"r2": list(range(4, 12))}

    def test_several_doublings_at_once(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=8))
        admit(engine, "r1", 2)
        assert grow(engine, "r1", 2, 17)
        assert tables(engine) == {"r1": list(range(32))}

    def test_copies_of_a_sequence_that_left_are_dropped(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config(num_blocks=4))
        admit(engine, "r1", 4)
        admit(engine, "r2", 2)
        grow(engine, "r1", 4, 5)
        engine.release(RequestId("r1"), Release.PREEMPT)
        assert engine.take_ops() is NO_OPS


class TestExact:
    def test_exactly_the_final_length_is_reserved(
        self, make_config: MakeConfig, make_trace: MakeTrace
    ) -> None:
        engine = ContiguousExact(make_config(trace=make_trace((3, 7), (2, 0))))
        admit(engine, "r0", 3, cap=32)
        admit(engine, "r1", 2)
        assert tables(engine) == {"r0": list(range(10)), "r1": [10, 11]}
        assert grow(engine, "r0", 3, 10)

    def test_a_resumed_request_reserves_the_same(
        self, make_config: MakeConfig, make_trace: MakeTrace
    ) -> None:
        engine = ContiguousExact(make_config(trace=make_trace((3, 7))))
        admit(engine, "r0", 3)
        grow(engine, "r0", 3, 6)
        engine.release(RequestId("r0"), Release.PREEMPT)
        assert admit(engine, "r0", 6) is None
        assert len(tables(engine)["r0"]) == 10

    def test_it_cannot_be_opened_without_a_trace(self, make_config: MakeConfig) -> None:
        with pytest.raises(ConfigError, match="contiguous-exact must know final lengths"):
            ContiguousExact(make_config())

    def test_a_request_of_another_trace_is_named(
        self, make_config: MakeConfig, make_trace: MakeTrace
    ) -> None:
        engine = ContiguousExact(make_config(trace=make_trace((3, 7))))
        with pytest.raises(EngineError, match="r9 is not among the 1 requests of the trace"):
            admit(engine, "r9", 3)

    def test_growth_past_the_trace_is_named(self, make_config: MakeConfig, make_trace: MakeTrace) -> None:
        engine = ContiguousExact(make_config(trace=make_trace((3, 1))))
        admit(engine, "r0", 3)
        with pytest.raises(EngineError, match=r"r0 grows to 5 tokens, but the trace .* ends it at 4"):
            grow(engine, "r0", 3, 5)


class TestMisuse:
    def test_unknown_and_live_names(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config())
        admit(engine, "r1", 3)
        with pytest.raises(BlockError, match="r1 is live already"):
            admit(engine, "r1", 3)
        with pytest.raises(BlockError, match="release of unknown sequence 'r2': not among the 1 live ones"):
            finish(engine, "r2")
        with pytest.raises(BlockError, match="extend of unknown sequence 'r2'"):
            grow(engine, "r2", 0, 1)

    def test_tokens_must_follow(self, make_config: MakeConfig) -> None:
        engine = ContiguousPow2(make_config())
        admit(engine, "r1", 3)
        with pytest.raises(EngineError, match="r1 holds 3 tokens and is extended from 4"):
            grow(engine, "r1", 4, 5)

    def test_there_are_no_options(self, make_config: MakeConfig) -> None:
        with pytest.raises(ConfigError, match="contiguous-pow2: unknown option 'fit'"):
            ContiguousPow2(make_config(options={"fit": "best"}))
