"""The engine of several groups, seen through its snapshots: what each group holds is worked out by hand."""

from __future__ import annotations

import pytest

from kvsuite.cache.layout import attention_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import RefusalReason, Release
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

A, B = RequestId("a"), RequestId("b")
CONTENT = TokenContent((7,), ())


def groups(
    layers: int = 6, num_blocks: int = 32, prefix_cache: bool = True, **options: int | bool
) -> GroupsEngine:
    layout = attention_layout("layers", num_layers=layers, kv_heads=1, head_dim=4)
    return GroupsEngine(EngineConfig(layout, 4, num_blocks, prefix_cache=prefix_cache, options=options))


def run(start: int, stop: int, key: int = 7) -> TokenRun:
    return TokenRun(TokenContent((key,), ()), start, stop)


def tables(engine: GroupsEngine) -> list[list[int]]:
    """Return the table of the oldest sequence in each group."""
    return [shot.table(0).tolist() for shot in engine.snapshot()]


class TestPools:
    def test_two_groups_by_default(self) -> None:
        full, window = groups().spec.pools
        assert (full.kind, full.block_size, full.num_blocks, full.key.group) == (PoolKind.FULL, 4, 32, 0)
        assert (window.kind, window.block_size, window.num_blocks) == (PoolKind.WINDOW, 8, 33)
        assert (window.window_tokens, window.never_allocatable_blocks, window.key.group) == (16, 1, 1)

    def test_a_third_group_has_blocks_eight_times_as_large(self) -> None:
        assert [pool.block_size for pool in groups(third_group=True).spec.pools] == [4, 8, 32]

    @pytest.mark.parametrize(
        ("layers", "third", "dealt"),
        [(1, False, [1]), (2, False, [1, 1]), (5, False, [3, 2]), (2, True, [1, 1]), (26, True, [9, 9, 8])],
    )
    def test_layers_are_dealt_out_and_an_empty_group_has_no_pool(
        self, layers: int, third: bool, dealt: list[int]
    ) -> None:
        one_layer = 2 * 1 * 4 * 2
        pools = groups(layers, third_group=third).spec.pools
        assert [pool.bytes_per_token for pool in pools] == [count * one_layer for count in dealt]

    def test_one_kernel_serves_all_and_keys_stand_for_the_common_multiple(self) -> None:
        pools = groups(third_group=True).spec.pools
        assert {pool.kernel_block_size for pool in pools} == {4}
        assert {pool.hash_block_size for pool in pools} == {32}

    @pytest.mark.parametrize(
        "options", [{"third_group": 1}, {"window_blocks": 1}, {"window_tokens": 1}, {"x": 1}]
    )
    def test_options_that_cannot_be_are_refused(self, options: dict[str, int]) -> None:
        layout = attention_layout("layers", num_layers=2, kv_heads=1, head_dim=4)
        with pytest.raises(ConfigError):
            GroupsEngine(EngineConfig(layout, 4, 32, options=options))


class TestOneAnswer:
    def test_each_group_takes_its_own_blocks(self) -> None:
        engine = groups(third_group=True)
        assert engine.admit(A, run(0, 33), first_chunk_tokens=33).scheduled_tokens == 33
        assert [len(table) for table in tables(engine)] == [9, 5, 2]

    def test_the_window_slides_when_a_step_is_settled(self) -> None:
        engine = groups()
        engine.admit(A, run(0, 33), first_chunk_tokens=33)
        assert 0 not in tables(engine)[1]
        engine.done(0, {A: 33})
        full, window = tables(engine)
        assert (len(full), window[:2], 0 in window[2:]) == (9, [0, 0], False)

    def test_growth_is_refused_by_any_group_and_taken_by_none(self) -> None:
        engine = groups(window_blocks=4, prefix_cache=False)
        assert engine.admit(A, run(0, 8), first_chunk_tokens=8).accepted
        assert engine.admit(B, run(0, 16, key=8), first_chunk_tokens=16).accepted
        before = [shot.free.tolist() for shot in engine.snapshot()]
        assert not engine.extend(A, run(8, 9))
        assert [shot.free.tolist() for shot in engine.snapshot()] == before
        assert engine.groups[0].cache.tables[A].length == 8

    def test_a_refusal_names_the_pool_that_is_short(self) -> None:
        engine = groups(window_blocks=4, prefix_cache=False)
        refusal = engine.admit(A, run(0, 33), first_chunk_tokens=33).refusal
        assert refusal is not None
        assert (refusal.pool.group, refusal.needed_blocks, refusal.free_blocks) == (1, 5, 3)
        assert refusal.reason is RefusalReason.NEVER_FITS

    def test_a_window_is_asked_for_what_it_meets(self) -> None:
        """W = 16, b = 8, one token a step: 16 tokens in a row meet 3 blocks at most."""
        engine = groups(num_blocks=64, window_blocks=4, prefix_cache=False)
        assert engine.admit(A, run(0, 100), first_chunk_tokens=1).accepted
        refusal = engine.admit(B, run(0, 100, key=8), first_chunk_tokens=1).refusal
        assert refusal is not None
        assert (refusal.needed_blocks, refusal.free_blocks, refusal.reason) == (3, 2, RefusalReason.NO_BLOCKS)

    @pytest.mark.parametrize(("tokens", "found"), [(8, 0), (9, 8), (12, 8), (16, 8), (17, 16), (20, 16)])
    def test_hits_are_whole_blocks_of_every_group(self, tokens: int, found: int) -> None:
        engine = groups()
        for name in (A, B):
            admission = engine.admit(name, run(0, tokens), first_chunk_tokens=tokens)
            engine.done(0, {name: tokens})
        assert admission.hit_tokens == found

    def test_a_prefix_that_one_group_has_evicted_is_not_found(self) -> None:
        engine = groups(window_blocks=6)
        engine.admit(A, run(0, 16), first_chunk_tokens=16)
        engine.done(0, {A: 16})
        engine.release(A, Release.FINISH)
        engine.admit(B, run(0, 40, key=8), first_chunk_tokens=40)
        engine.release(B, Release.FINISH)
        assert engine.groups[0].cache.pool.num_cached == 4
        assert engine.groups[1].cache.pool.num_cached == 0
        assert engine.admit(A, run(0, 17), first_chunk_tokens=17).hit_tokens == 0

    def test_reset_forgets_every_group(self) -> None:
        engine = groups()
        engine.admit(A, run(0, 16), first_chunk_tokens=16)
        engine.done(0, {A: 16})
        assert not engine.reset_cache()
        engine.release(A, Release.FINISH)
        assert engine.reset_cache()
        assert [len(shot.cached) for shot in engine.snapshot()] == [0, 0]

    def test_a_fork_copies_the_tail_of_each_group(self) -> None:
        """9 tokens: one in the last block of 4, one in the last block of 8."""
        engine = groups()
        engine.admit(A, run(0, 9), first_chunk_tokens=9)
        engine.done(0, {A: 9})
        engine.fork(A, B)
        assert engine.extend(B, TokenRun(CONTENT.forked(9, 8), 9, 10))
        assert [(copy.pool.group, copy.num_tokens) for copy in engine.take_ops().copies] == [(0, 1), (1, 1)]


class TestSlots:
    def test_slots_count_the_kernels_blocks(self) -> None:
        """Blocks of 8 are two kernel blocks of 4: token 9 lies in the second block, whatever the pool."""
        engine = groups(prefix_cache=False)
        engine.admit(A, run(0, 10), first_chunk_tokens=10)
        full, window = tables(engine)
        read = engine.read_slots(A)
        assert read[0].tolist() == [full[p // 4] * 4 + p % 4 for p in range(10)]
        assert read[1].tolist() == [window[p // 8] * 8 + p % 8 for p in range(10)]

    def test_writes_are_what_came_since_the_last_launch(self) -> None:
        engine = groups(prefix_cache=False)
        engine.admit(A, run(0, 6), first_chunk_tokens=4)
        assert [len(slots) for slots in engine.write_slots(A)] == [4, 4]
        engine.launched(0)
        engine.done(0, {A: 4})
        engine.extend(A, run(4, 6))
        assert engine.write_slots(A)[0].tolist() == engine.read_slots(A)[0].tolist()[4:]

    def test_what_a_window_let_go_of_has_no_slot(self) -> None:
        engine = groups(prefix_cache=False)
        engine.admit(A, run(0, 33), first_chunk_tokens=33)
        engine.done(0, {A: 33})
        assert [len(slots) for slots in engine.read_slots(A)] == [33, 33 - 2 * 8]


@pytest.mark.parametrize("options", [{}, {"third_group": True}, {"window_blocks": 40}, {"window_tokens": 33}])
@pytest.mark.parametrize("workload", ["churn", "shared-prefix", "divergence-burst"])
def test_no_law_is_broken_in_traffic(workload: str, options: dict[str, int]) -> None:
    layout = attention_layout("layers", num_layers=3, kv_heads=1, head_dim=4)
    engine = GroupsEngine(EngineConfig(layout, 16, 100, options=options))
    assert replay(load_trace(workload).head(40), engine).violations == ()
