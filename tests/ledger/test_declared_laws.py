"""Laws of what an engine declares: silent on the right value of a report, and not on the wrong one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, attention_layout, model_layout
from kvsuite.engine.contract import EngineSpec
from kvsuite.engine.snapshot import MemoryClaim, PoolKey, PoolKind, PoolSnapshot, PoolSpec, Storage
from kvsuite.ledger import bytes_law, groups_law, units_law
from kvsuite.trace.model import RequestId

LLAMA = model_layout("llama-3.1-8b")
FULL = PoolSpec(PoolKey(), 64, 4, 64)
WINDOW = PoolSpec(
    PoolKey(group=1), 9, 8, 64, never_allocatable_blocks=1, kind=PoolKind.WINDOW, window_tokens=16
)
STATE = PoolSpec(PoolKey(group=2), 8, 1, 1024, kind=PoolKind.STATE)


def spec(*pools: PoolSpec, **effective: int) -> EngineSpec:
    return EngineSpec("engine", "1", 1, pools, frozenset(), effective)


def snapshot(*tables: list[int]) -> PoolSnapshot:
    none = np.zeros(0, np.int32)
    return PoolSnapshot(
        key=PoolKey(),
        revision=1,
        since=None,
        request_ids=tuple(RequestId(f"r{row}") for row in range(len(tables))),
        lengths=np.ones(len(tables), np.int64),
        table_rows=np.arange(len(tables), dtype=np.int32),
        table_offsets=np.cumsum([0, *map(len, tables)], dtype=np.int64),
        table_blocks=np.array([block for table in tables for block in table], np.int32),
        free=none,
        cached=none,
    )


class TestBytes:
    @pytest.mark.parametrize(("tp_size", "token"), [(1, 131_072), (4, 32_768), (8, 16_384), (32, 16_384)])
    def test_a_token_is_counted_from_the_streams(self, tp_size: int, token: int) -> None:
        layout = replace(LLAMA, tp_size=tp_size)
        assert bytes_law.token_bytes(layout) == token
        right = PoolSpec(PoolKey(), 8, 16, token)
        assert list(bytes_law.declared_pages([right], layout)) == []
        (found,) = bytes_law.declared_pages([replace(right, bytes_per_token=token + 1)], layout)
        assert str(token) in found.message

    def test_groups_of_a_rank_share_one_token(self) -> None:
        half = PoolSpec(PoolKey(), 8, 16, 65_536)
        assert list(bytes_law.declared_pages([half, replace(half, key=PoolKey(group=1))], LLAMA)) == []
        assert len(list(bytes_law.declared_pages([half, replace(half, key=PoolKey(rank=1))], LLAMA))) == 2

    def test_states_and_other_tiers_are_no_part_of_it(self) -> None:
        pools = [PoolSpec(PoolKey(), 8, 16, 131_072), STATE, PoolSpec(PoolKey(tier="host"), 8, 16, 1)]
        assert list(bytes_law.declared_pages(pools, LLAMA)) == []

    def test_pad_is_what_the_alignment_asks_for(self) -> None:
        layout = replace(LLAMA, num_layers=1, block_alignment_bytes=65_536)
        right = PoolSpec(PoolKey(), 8, 12, 4096, pad_bytes_per_block=16_384)
        assert list(bytes_law.declared_pages([right], layout)) == []
        for pad in (0, 16_383, 81_920):
            assert len(list(bytes_law.declared_pages([replace(right, pad_bytes_per_block=pad)], layout))) == 1

    def test_pages_of_one_rank_may_be_made_equal(self) -> None:
        layout = attention_layout("layers", num_layers=2, kv_heads=1, head_dim=16)
        large = PoolSpec(PoolKey(), 8, 16, 64)
        small = PoolSpec(PoolKey(group=1), 8, 4, 64, pad_bytes_per_block=768)
        assert list(bytes_law.declared_pages([large, small], layout)) == []
        assert list(bytes_law.declared_pages([large, replace(small, pad_bytes_per_block=1)], layout))

    def test_tensors_hold_every_page_once(self) -> None:
        pool = PoolSpec(PoolKey(), 100, 16, 10)
        storages = (Storage("pool", 1, 16_000), Storage("pool", 1, 16_000), Storage("tables", 2, 99))
        assert list(bytes_law.tensor_bytes(MemoryClaim(storages, 16_000), [pool])) == []
        (found,) = bytes_law.tensor_bytes(MemoryClaim((Storage("pool", 1, 8_000),), 8_000), [pool])
        assert "80 for each of 100 blocks" in found.message

    def test_ranks_share_until_heads_run_out(self) -> None:
        right = {1: 64, 2: 32, 4: 16, 8: 8, 16: 8, 32: 8}
        assert list(bytes_law.shares_over_ranks(right, 8)) == []
        assert [v.pool for v in bytes_law.shares_over_ranks({**right, 16: 4, 32: 2}, 8)] == ["tp 16", "tp 32"]
        assert [v.pool for v in bytes_law.shares_over_ranks(dict.fromkeys(right, 64), 8)] == [
            "tp 2",
            "tp 4",
            "tp 8",
        ]

    def test_half_the_width_holds_twice_the_tokens_up_to_a_block(self) -> None:
        wide, narrow = (PoolSpec(PoolKey(), 8, 16, token) for token in (100, 50))
        assert list(bytes_law.tokens_double(12_345, wide, narrow)) == []
        assert list(bytes_law.tokens_double(12_345, wide, replace(narrow, bytes_per_token=60)))

    def test_what_is_auxiliary_stays(self) -> None:
        assert list(bytes_law.auxiliary_kept(1152 + 132, 576 + 132, 132)) == []
        assert list(bytes_law.auxiliary_kept(1152 + 132, (1152 + 132) // 2, 132))

    def test_a_slot_costs_the_same(self) -> None:
        assert list(bytes_law.slots_cost_the_same([FULL, replace(FULL, block_size=8)])) == []
        assert list(bytes_law.slots_cost_the_same([FULL, replace(FULL, block_size=8, bytes_per_token=65)]))

    def test_widths_are_those_of_the_dtypes(self) -> None:
        assert {d.value: d.itemsize for d in Dtype} == bytes_law.WIDTHS


class TestGroups:
    @pytest.mark.parametrize(
        ("tokens", "settled", "full", "window"),
        [(1, 0, 1, 1), (16, 15, 4, 2), (24, 23, 6, 2), (33, 32, 9, 3)],
    )
    def test_blocks_held(self, tokens: int, settled: int, full: int, window: int) -> None:
        held = {FULL.key: full, WINDOW.key: window, STATE.key: 1}
        pools = [FULL, WINDOW, STATE]
        assert list(groups_law.counts(pools, held, tokens, settled)) == []
        more = {key: blocks + 1 for key, blocks in held.items()}
        assert [v.pool for v in groups_law.counts(pools, more, tokens, settled)] == [
            str(p.key) for p in pools
        ]

    def test_a_window_never_meets_more_than_its_demand(self) -> None:
        """Against a count of the blocks that each step's tokens lie in, wherever they begin."""
        for window in range(2, 20):
            pool = replace(WINDOW, window_tokens=window)
            for step in (1, 3, 8, 11):
                met = max(
                    (end - 1) // 8 - max(0, end - step - window + 1) // 8 + 1 for end in range(step, 200)
                )
                assert groups_law.blocks_demanded(pool, 200, step) == met

    def test_130_blocks_and_not_972(self) -> None:
        draft = replace(WINDOW, block_size=16, window_tokens=2048, num_blocks=3000)
        assert groups_law.blocks_demanded(draft, 15_537, 16) == 130
        assert list(groups_law.refusal_needs(draft, 130, 15_537, 16)) == []
        assert len(list(groups_law.refusal_needs(draft, 972, 15_537, 16))) == 1

    def test_23_groups_pin_a_third_of_70_pages(self) -> None:
        groups = [PoolSpec(PoolKey(group=g), 70, 7808, 1) for g in range(23)]
        footprint = groups_law.footprint_bytes(groups, 12, 0)
        assert footprint == 23 * 7808
        assert round(footprint / (70 * 7808), 3) == 0.329

    def test_a_capacity_is_found_and_not_divided(self) -> None:
        pools = [FULL, WINDOW]
        assert groups_law.largest(lambda load: groups_law.holds(pools, [100] * load, 8), 50) == 2
        assert list(groups_law.capacity(pools, 2, lambda load: [100] * load, 8, 50)) == []
        assert list(groups_law.capacity(pools, 1, lambda load: [100] * load, 8, 50))

    def test_two_points_give_a_fixed_part_and_a_rate(self) -> None:
        assert groups_law.fixed_and_rate((10, 130), (20, 160)) == (Fraction(100), Fraction(3))

    def test_keys_alone_double_a_block(self) -> None:
        """A state of 1,024 tokens' keys and values; units of 16 tokens, 2 bytes a token."""
        assert groups_law.smallest_block_tokens(2048, 2, 16) == 1024
        assert groups_law.smallest_block_tokens(2048, 1, 16) == 2048
        attention = PoolSpec(PoolKey(), 4, 1024, 2)
        state = replace(STATE, bytes_per_token=2048)
        assert list(groups_law.minimal_page(attention, state, 16)) == []
        wide = replace(attention, block_size=2048)
        assert list(groups_law.minimal_page(wide, replace(state, pad_bytes_per_block=2048), 16))
        assert list(groups_law.minimal_page(wide, state, 16)) == [], "pages of two sizes share none"

    def test_ids_lie_in_their_pool(self) -> None:
        assert list(groups_law.ids_in_pool([FULL], [snapshot([0, 63])])) == []
        assert list(groups_law.ids_in_pool([FULL], [snapshot()])) == []
        for table in ([64], [-1]):
            assert list(groups_law.ids_in_pool([FULL], [snapshot(table)]))

    def test_limits_states_and_hits(self) -> None:
        assert list(groups_law.never_smaller([FULL], [FULL], "window")) == []
        assert list(groups_law.never_smaller([FULL], [replace(FULL, num_blocks=63)], "window"))
        assert list(groups_law.states_private(STATE, snapshot([0], [1]))) == []
        assert list(groups_law.states_private(STATE, snapshot([0], [0])))
        assert list(groups_law.hits_reach(16, 16, [FULL, WINDOW])) == []
        assert [v.pool for v in groups_law.hits_reach(0, 16, [FULL, WINDOW])] == [str(WINDOW.key)]


class TestUnits:
    @pytest.mark.parametrize(
        ("size", "kernel", "unit", "told", "broken"),
        [
            (64, 16, None, 64, False),
            (64, None, 128, 64, False),
            (64, 16, 16, 64, False),
            (1, 2, None, 1, True),
            (64, 24, None, 64, True),
            (64, 0, None, 64, True),
            (64, 16, 96, 64, True),
            (64, 16, None, 128, True),
        ],
    )
    def test_sizes_agree(
        self, size: int, kernel: int | None, unit: int | None, told: int, broken: bool
    ) -> None:
        pool = PoolSpec(PoolKey(), 8, size, 1, kernel_block_size=kernel, hash_block_size=unit)
        assert bool(list(units_law.sizes_agree(spec(pool, block_size=told)))) == broken

    def test_token_20_in_blocks_of_64_and_16(self) -> None:
        """Block 3 is kernel blocks 12 to 15; token 20 is the fifth of the second: slot 13 * 16 + 4."""
        pool = PoolSpec(PoolKey(), 8, 64, 1, kernel_block_size=16)
        table = np.array([3], np.int32)
        right, wrong = np.array([212]), np.array([3 * 16 + 4])
        assert list(units_law.slots_mapped(pool, table, 20, right, "r")) == []
        (found,) = units_law.slots_mapped(pool, table, 20, wrong, "r")
        assert "slot 52, expected 212" in found.message

    def test_the_slot_map_is_a_bijection(self) -> None:
        table = np.array([5, 0, 7, 2], np.int32)
        slots = units_law.kernel_slots(table, 8, 4, 0, 32)
        assert sorted(slots.tolist()) == sorted(b * 8 + o for b in (5, 0, 7, 2) for o in range(8))

    def test_slots_are_distinct_and_inside(self) -> None:
        pool = PoolSpec(PoolKey(), 2, 4, 1)
        assert list(units_law.slots_distinct(pool, np.array([0, 7, 3]))) == []
        for slots in ([0, 0], [8], [-1]):
            assert list(units_law.slots_distinct(pool, np.array(slots)))

    def test_hits_and_tables_show_the_declared_sizes(self) -> None:
        pools = [FULL, replace(WINDOW, hash_block_size=8), STATE]
        assert units_law.hash_unit(pools) == 8
        assert list(units_law.hit_unit(pools, 17, 16)) == []
        assert list(units_law.hit_unit(pools, 16, 16))
        assert list(units_law.hit_unit(pools, 17, 8))
        assert list(units_law.size_measured(FULL, 3, 9)) == []
        assert list(units_law.size_measured(FULL, 2, 9))
        assert list(units_law.size_measured(STATE, 1, 9)) == []

    def test_kernel_sizes_and_differences(self) -> None:
        kernel = replace(FULL, kernel_block_size=2)
        assert list(units_law.kernel_size_kept([kernel, kernel])) == []
        assert list(units_law.kernel_size_kept([kernel, replace(FULL, kernel_block_size=4)]))
        large = replace(FULL, block_size=64)
        assert list(units_law.difference_named(spec(FULL, block_size=4), spec(large, block_size=64))) == []
        (found,) = units_law.difference_named(spec(FULL), spec(large))
        assert found.invariant == "drift"
