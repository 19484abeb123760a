"""The observed engine: what it makes of a paper device, its gauges, and the bytes it claims."""

from __future__ import annotations

from typing import Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.extensions.observed import PAGE_BYTES, ObservedEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

SIZE = 4
UNIT = 512
"""A block of 4 tokens of the tiny layout: 2 layers, keys and values, 2 heads of 8, 2 bytes each."""
NOTHING = {"weights_bytes": 0, "activation_bytes": 0, "graphs_bytes": 0, "other_bytes": 0}


def make(
    num_blocks: int = 8, *, block_size: int = SIZE, max_model_tokens: int | None = None, **options: Any
) -> ObservedEngine:
    layout = model_layout("tiny")
    config = EngineConfig(layout, block_size, num_blocks, max_model_tokens=max_model_tokens, options=options)
    engine = open_engine("reference-observed", config)
    assert isinstance(engine, ObservedEngine)
    return engine


def admit(engine: ObservedEngine, name: str, tokens: int) -> None:
    run = TokenRun(TokenContent((int.from_bytes(name.encode()),), ()), 0, tokens)
    assert engine.admit(RequestId(name), run, first_chunk_tokens=tokens).accepted
    engine.done(0, {RequestId(name): tokens})


class TestPool:
    def test_without_a_device_it_has_the_pool_asked_for(self) -> None:
        """On a device of twice 64 + 36 blocks' bytes, 36 of them in weights: 164 would have fitted."""
        engine = make(64, **{**NOTHING, "weights_bytes": 36 * UNIT})
        assert engine.spec.pools[0].num_blocks == 64
        told = engine.budget()
        assert (told.pool_bytes, told.slack_bytes, told.rank_pool_blocks) == (64 * UNIT, 100 * UNIT, (164,))

    @pytest.mark.parametrize(
        ("percent", "fraction_of", "neighbour", "blocks"),
        [
            (100, "total", 0, 80),  # 100 - 20
            (50, "total", 0, 30),  # 50 - 20
            (50, "total", 50, 30),
            (50, "free", 0, 40),  # half of 80
            (50, "free", 50, 15),  # half of 30
            (33, "free", 0, 26),  # 26.4
        ],
    )
    def test_a_fraction_of_a_device(
        self, percent: int, fraction_of: str, neighbour: int, blocks: int
    ) -> None:
        options = {**NOTHING, "weights_bytes": 15 * UNIT, "other_bytes": 5 * UNIT}
        options |= {"neighbour_bytes": neighbour * UNIT, "device_bytes": 100 * UNIT}
        engine = make(1000, **options, memory_percent=percent, fraction_of=fraction_of)
        assert engine.spec.pools[0].num_blocks == blocks
        told = engine.budget()
        assert told.observed_bytes == 100 * UNIT
        assert told.slack_bytes == (100 - neighbour - 20 - blocks) * UNIT

    def test_the_smallest_rank_decides_and_what_was_asked_for_is_the_most(self) -> None:
        ranks = f"{10 * UNIT},{7 * UNIT + 511},{9 * UNIT}"
        assert make(100, device_bytes=ranks, **NOTHING).budget().rank_pool_blocks == (10, 7, 9)
        assert make(100, device_bytes=ranks, **NOTHING).spec.pools[0].num_blocks == 7
        assert make(5, device_bytes=ranks, **NOTHING).spec.pools[0].num_blocks == 5

    def test_sequences_of_a_length(self) -> None:
        engine = make(100, device_bytes=200 * UNIT, max_model_tokens=17, sequences=3, **NOTHING)
        assert engine.spec.pools[0].num_blocks == 3 * 5

    def test_a_draft_block_has_its_price(self) -> None:
        engine = make(100, device_bytes=60 * UNIT, draft_block_bytes=UNIT // 2, **NOTHING)
        assert engine.spec.pools[0].num_blocks == 40

    def test_fraction_and_unit_are_effective_values(self) -> None:
        effective = make(memory_percent=50, fraction_of="free").spec.effective
        assert (effective["memory_percent"], effective["fraction_of"]) == (50, "free")

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"colour": 1}, "unknown option 'colour', expected one of null_blocks, device_bytes"),
            ({"fraction_of": "half"}, "fraction_of is 'half', expected total or free"),
            ({"memory_percent": 0}, "memory_percent is 0, expected 1 to 100"),
            ({"memory_percent": 101}, "memory_percent is 101, expected 1 to 100"),
            ({"weights_bytes": -1}, "weights_bytes is -1, expected a whole number"),
            ({"graphs_bytes": True}, "graphs_bytes is True, expected a whole number"),
            ({"device_bytes": "10,-2"}, "device_bytes is '10,-2', expected a whole number of bytes for each"),
            ({**NOTHING, "device_bytes": 511}, "leaves 511 bytes to the pool, a block takes 512"),
            (
                {"device_bytes": 10_000, "neighbour_bytes": 1},
                "a budget of 10000 bytes does not fit beside a neighbour's 1 on a device of 10000",
            ),
        ],
    )
    def test_what_it_refuses(self, options: dict[str, Any], told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            make(**options)


class TestGauges:
    def test_shares_of_usable_blocks(self) -> None:
        engine = make(9, null_blocks=1)
        admit(engine, "a", 2 * SIZE)
        admit(engine, "b", SIZE + 1)
        engine.release(RequestId("a"), Release.FINISH)
        (told,) = engine.gauges()
        assert (told.used, told.cached, told.free) == (2 / 8, 2 / 8, 4 / 8)
        assert told.capacity_tokens == 32

    def test_hits_count_at_the_first_admission(self) -> None:
        engine = make()
        admit(engine, "a", 9)
        engine.release(RequestId("a"), Release.PREEMPT)
        admit(engine, "a", 9)
        assert engine.gauges()[0].hit_tokens == 0
        engine.release(RequestId("a"), Release.FINISH)
        admit(engine, "a", 9)
        assert engine.gauges()[0].hit_tokens == 8


class TestMemory:
    def test_storages_lie_apart_and_the_pool_is_the_cache(self) -> None:
        engine = make(64, activation_bytes=5000)
        claim = engine.memory()
        assert {s.role: s.nbytes for s in claim.storages} == {
            "pool": 64 * UNIT,
            "tables": 8 * 64 * 4,
            "workspace": 5000,
        }
        assert claim.claimed_cache_bytes == 64 * UNIT
        ends = [storage.data_pointer + storage.nbytes for storage in claim.storages]
        assert all(end <= after.data_pointer for end, after in zip(ends, claim.storages[1:], strict=False))

    def test_pages_are_committed_when_a_block_on_them_is_first_taken(self) -> None:
        engine = make(64)
        assert engine.memory().committed_cache_bytes == 0
        admit(engine, "a", 8 * SIZE)
        assert engine.memory().committed_cache_bytes == PAGE_BYTES
        admit(engine, "b", 1)
        assert engine.memory().committed_cache_bytes == 2 * PAGE_BYTES
        engine.release(RequestId("a"), Release.FINISH)
        assert engine.memory().committed_cache_bytes == 2 * PAGE_BYTES

    def test_a_block_across_pages_commits_both(self) -> None:
        engine = make(8, block_size=3 * 16)  # 6,144 bytes a block: block 0 meets pages 0 and 1
        admit(engine, "a", 1)
        assert engine.memory().committed_cache_bytes == 2 * PAGE_BYTES
        admit(engine, "b", 1)
        assert engine.memory().committed_cache_bytes == 3 * PAGE_BYTES


def test_it_allocates_as_the_reference_does() -> None:
    trace = load_trace("churn").head(60)
    config = EngineConfig(model_layout("tiny"), 16, 80)
    plain, observed = (replay(trace, make_one(config)) for make_one in (ReferenceEngine, ObservedEngine))
    assert observed.violations == ()
    assert (plain.timeline.pools[0].rows == observed.timeline.pools[0].rows).all()
    assert observed.timeline.device
    claimed = {Capability.GAUGES, Capability.BUDGET, Capability.MEMORY}
    assert observed.spec.capabilities == plain.spec.capabilities | claimed
