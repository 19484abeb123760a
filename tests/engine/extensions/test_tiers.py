"""The engine with a host tier against the contract; values worked out by hand for blocks of 4 tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, Engine, RefusalReason, Release, SupportsTransfers
from kvsuite.engine.extensions.host_tier import HOST
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.engine.reference import POOL
from kvsuite.errors import BlockError, ConfigError
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene
from kvsuite.replay.tier_verbs import begin, end, of, room_tokens
from kvsuite.trace.load import load_trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.contract import Admission, Transfer
    from kvsuite.engine.snapshot import PoolSnapshot

A, B, C = (RequestId(name) for name in "abc")


def engine_of(num_blocks: int = 8, **options: int) -> TiersEngine:
    return TiersEngine(EngineConfig(model_layout("tiny"), 4, num_blocks, options=options))


def admit(engine: TiersEngine, request_id: RequestId, tokens: int, key: int = 0) -> Admission:
    return engine.admit(request_id, TokenRun(TokenContent((key,), ()), 0, tokens), first_chunk_tokens=tokens)


def host(engine: TiersEngine) -> PoolSnapshot:
    return engine.snapshot()[1]


def device(engine: TiersEngine) -> PoolSnapshot:
    return engine.snapshot()[0]


def stored(engine: TiersEngine, key: int, tokens: int) -> tuple[Transfer, ...]:
    """Compute a prompt, let it go, and return the stores that begin."""
    admit(engine, A, tokens, key)
    engine.done(0, {A: tokens})
    engine.release(A, Release.FINISH)
    return engine.take_ops().transfers


def evicted(engine: TiersEngine) -> None:
    """Take every block of the device once."""
    admit(engine, C, engine.cache.pool.available_blocks * 4, key=99)
    engine.release(C, Release.CANCEL)


def on_the_host(engine: TiersEngine, key: int, tokens: int) -> None:
    for transfer in stored(engine, key, tokens):
        engine.transfer_done(transfer.ref, ok=True)
    evicted(engine)


def reason_of(admission: Admission) -> RefusalReason | None:
    return None if admission.refusal is None else admission.refusal.reason


class TestIdentity:
    def test_it_has_two_pools_and_the_capability(self) -> None:
        engine = engine_of(host_blocks=5, transfer_deadline_us=70)
        assert isinstance(engine, Engine)
        assert isinstance(engine, SupportsTransfers)
        assert [(pool.key, pool.num_blocks) for pool in engine.spec.pools] == [(POOL, 8), (HOST, 5)]
        assert engine.spec.claims(Capability.HOST_TIER)
        assert engine.spec.effective["host_blocks"] == 5
        assert engine.spec.effective["transfer_deadline_us"] == 70

    def test_the_host_is_as_large_as_the_device_unless_told_otherwise(self) -> None:
        assert engine_of(num_blocks=6).spec.pools[1].num_blocks == 6

    def test_without_keys_nothing_can_be_found_so_nothing_is_claimed(self) -> None:
        engine = TiersEngine(EngineConfig(model_layout("tiny"), 4, 8, prefix_cache=False))
        assert not engine.spec.claims(Capability.HOST_TIER)
        assert stored(engine, 0, 9) == ()
        assert admit(engine, B, 9).accepted

    @pytest.mark.parametrize("name", ["host_blocks", "transfer_deadline_us"])
    @pytest.mark.parametrize("value", [0, -1, True, "many"])
    def test_options_that_cannot_be_are_refused(self, name: str, value: int | str) -> None:
        config = EngineConfig(model_layout("tiny"), 4, 8, options={name: value})
        with pytest.raises(ConfigError, match=f"{name} is {value!r}, expected 1 or more"):
            TiersEngine(config)


class TestStores:
    def test_full_blocks_of_a_released_sequence_are_offered_once_the_tail_first(self) -> None:
        """9 tokens: blocks 0 and 1 are full, block 2 has no key."""
        engine = engine_of()
        moves = stored(engine, 0, 9)
        assert [(m.source_pool, m.source, m.target_pool, m.num_tokens) for m in moves] == [
            (POOL, 1, HOST, 4),
            (POOL, 0, HOST, 4),
        ]
        assert {m.request_id for m in moves} == {A}
        assert engine.take_ops().transfers == ()

    def test_both_ends_are_pinned_until_it_ends(self) -> None:
        engine = engine_of()
        first, second = stored(engine, 0, 9)
        assert device(engine).pinned.tolist() == device(engine).quarantined.tolist() == [0, 1]
        assert sorted(host(engine).quarantined.tolist()) == sorted([first.target, second.target])
        assert not admit(engine, B, 7 * 4, key=1).accepted
        engine.transfer_done(first.ref, ok=True)
        assert device(engine).cached.tolist() == [1]
        assert host(engine).cached.tolist() == [first.target]
        engine.transfer_done(second.ref, ok=True)
        assert len(host(engine).cached) == 2

    def test_a_failed_store_leaves_the_host_free(self) -> None:
        engine = engine_of()
        for transfer in stored(engine, 0, 9):
            engine.transfer_done(transfer.ref, ok=False)
        assert len(host(engine).free) == 8
        assert len(device(engine).cached) == 2

    def test_what_is_in_use_again_is_not_stored(self) -> None:
        engine = engine_of()
        admit(engine, A, 9)
        engine.done(0, {A: 9})
        engine.release(A, Release.PREEMPT)
        admit(engine, B, 9)
        assert engine.take_ops().transfers == ()

    def test_a_full_host_evicts_what_was_used_longest_ago(self) -> None:
        """Three host blocks; a and b of one block each, then c of two: a goes."""
        engine = engine_of(host_blocks=3)
        for key, tokens in ((0, 5), (1, 5), (2, 9)):
            on_the_host(engine, key, tokens)
        assert reason_of(admit(engine, A, 5, key=0)) is None
        engine.release(A, Release.CANCEL)
        assert reason_of(admit(engine, A, 5, key=1)) is RefusalReason.LOADING

    def test_a_host_that_is_pinned_whole_takes_nothing(self) -> None:
        engine = engine_of(host_blocks=1)
        assert len(stored(engine, 0, 9)) == 1


class TestLoads:
    def test_a_missing_prefix_is_loaded_and_then_found(self) -> None:
        """17 tokens: 4 blocks on the host, targets 4 of 8."""
        engine = engine_of()
        on_the_host(engine, 0, 17)
        first = admit(engine, B, 17)
        assert reason_of(first) is RefusalReason.LOADING
        assert reason_of(admit(engine, B, 17)) is RefusalReason.LOADING
        moves = engine.take_ops().transfers
        assert [m.target_pool for m in moves] == [POOL] * 4
        assert len(device(engine).quarantined) == 4
        for transfer in moves[:3]:
            engine.transfer_done(transfer.ref, ok=True)
        assert reason_of(admit(engine, B, 17)) is RefusalReason.LOADING
        engine.transfer_done(moves[3].ref, ok=True)
        assert admit(engine, B, 17).hit_tokens == 16
        assert len(host(engine).cached) == 4

    def test_only_what_follows_the_hits_is_loaded(self) -> None:
        """Eight blocks of which six are taken: the chain's tail is gone, its head is still there."""
        engine = engine_of()
        for transfer in stored(engine, 0, 17):
            engine.transfer_done(transfer.ref, ok=True)
        admit(engine, C, 6 * 4, key=99)
        engine.release(C, Release.CANCEL)
        assert reason_of(admit(engine, B, 17)) is RefusalReason.LOADING
        assert len(engine.take_ops().transfers) == 2

    def test_one_load_serves_two_who_wait(self) -> None:
        engine = engine_of()
        on_the_host(engine, 0, 9)
        admit(engine, A, 9)
        assert reason_of(admit(engine, B, 9)) is RefusalReason.LOADING
        moves = engine.take_ops().transfers
        assert len(moves) == 2
        for transfer in moves:
            engine.transfer_done(transfer.ref, ok=True)
        assert admit(engine, A, 9).hit_tokens == admit(engine, B, 9).hit_tokens == 8

    def test_nothing_is_loaded_for_a_prompt_that_has_no_room(self) -> None:
        """3 blocks are needed, 2 are there: refused, and nothing moves."""
        engine = engine_of()
        on_the_host(engine, 0, 9)
        admit(engine, C, 6 * 4, key=99)
        assert reason_of(admit(engine, B, 9)) is RefusalReason.NO_BLOCKS
        assert engine.take_ops().transfers == ()

    def test_a_failed_load_is_forgotten_on_the_host(self) -> None:
        engine = engine_of()
        on_the_host(engine, 0, 9)
        admit(engine, B, 9)
        for transfer in engine.take_ops().transfers:
            engine.transfer_done(transfer.ref, ok=False)
        assert len(host(engine).free) == 8
        assert admit(engine, B, 9).hit_tokens == 0


class TestClock:
    def test_a_deadline_ends_a_transfer_and_an_answer_after_it_changes_nothing(self) -> None:
        """Begun at 40 us with 50 us to go: still there at 89, over at 90."""
        engine = engine_of(transfer_deadline_us=50)
        engine.tick(40)
        first, second = stored(engine, 0, 9)
        engine.tick(89)
        assert len(host(engine).pinned) == 2
        engine.tick(90)
        assert len(host(engine).free) == 8
        engine.transfer_done(first.ref, ok=True)
        engine.transfer_done(second.ref, ok=True)
        assert len(host(engine).free) == 8

    def test_a_load_that_is_over_before_it_began_never_begins(self) -> None:
        engine = engine_of(transfer_deadline_us=50)
        on_the_host(engine, 0, 9)
        admit(engine, B, 9)
        engine.tick(50)
        assert engine.take_ops().transfers == ()
        assert len(device(engine).free) == 8


class TestReset:
    def test_both_tiers_are_empty_and_what_is_under_way_comes_to_nothing(self) -> None:
        engine = engine_of()
        on_the_host(engine, 0, 9)
        admit(engine, B, 9)
        loads = engine.take_ops().transfers
        stores = stored(engine, 1, 5)
        assert engine.reset_cache()
        for transfer in (*loads, *stores):
            engine.transfer_done(transfer.ref, ok=True)
        assert len(device(engine).free) == len(host(engine).free) == 8

    def test_it_is_refused_while_a_sequence_lives(self) -> None:
        engine = engine_of()
        on_the_host(engine, 0, 9)
        admit(engine, C, 1, key=5)
        assert not engine.reset_cache()
        assert len(host(engine).cached) == 2


def test_an_unknown_sequence_is_refused() -> None:
    with pytest.raises(BlockError, match="unknown sequence 'a'"):
        engine_of().release(A, Release.FINISH)


@pytest.mark.parametrize(("workload", "requests"), [("churn", 60), ("thrash", 20)])
def test_a_replay_keeps_every_law_while_prompts_are_loaded(workload: str, requests: int) -> None:
    """Transfers end with their step there; the driver moves the bytes and reads what was loaded."""
    trace = load_trace(workload).head(requests)
    done = replay(trace, TiersEngine(EngineConfig(model_layout("tiny"), 16, 60)))
    assert done.violations == ()
    assert done.content.mismatches == 0
    assert all(outcome.ending is not None for outcome in done.outcomes)
    assert done.refusals[RefusalReason.LOADING] > 0


VERBS = ["store", "ask", "ask", "step", "release", "acknowledge", "evict", "extend", "cancel", "tick"]


def store_and_evict(scene: Scene, prompt: str, tokens: int) -> None:
    """Let the host have a prompt and the device lose it, as far as there is room."""
    if scene.admit("first", tokens, content=of(scene, prompt)).accepted:
        scene.step()
        scene.release("first")
        scene.step()
    if scene.admit("filler", room_tokens(scene)).accepted:
        scene.release("filler", Release.CANCEL)


@given(
    st.lists(
        st.tuples(st.sampled_from(VERBS), st.integers(0, 2), st.integers(0, 9)), min_size=10, max_size=40
    )
)
def test_any_order_of_verbs_keeps_every_law(verbs: list[tuple[str, int, int]]) -> None:
    """Two prompts, three names, and everything that can happen to them; content is read at each step."""
    scene = Scene(engine_of(host_blocks=3, transfer_deadline_us=1000))
    clock_us = 0
    for verb, which, amount in verbs:
        name, lives = f"{which}", f"{which}" in scene.running
        prompt, tokens = f"prompt {amount % 2}", 5 + amount
        if verb == "store":
            store_and_evict(scene, prompt, tokens)
        elif verb == "ask" and not lives:
            scene.admit(name, tokens, content=of(scene, prompt))
        elif verb == "step":
            begin(scene)
        elif verb == "release" and lives:
            scene.release(name, list(Release)[amount % 4])
        elif verb == "cancel" and not lives:
            scene.cancel(name)
        elif verb == "acknowledge" and scene.transfers:
            scene.acknowledge(scene.transfers[amount % len(scene.transfers)], ok=amount > 0)
        elif verb == "evict" and scene.admit("filler", room_tokens(scene)).accepted:
            scene.release("filler", Release.CANCEL)
        elif verb == "extend" and lives:
            scene.extend(name)
        elif verb == "tick" and amount == 0:
            clock_us += 1000
            scene.tick(clock_us)
            scene.transfers.clear()
    end(scene)
