"""Each mutant departs from the reference in the one way it names, shown on the engine itself."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Admission, Capability, Release, SupportsMemory
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.registry import open_engine
from kvsuite.ledger.row import CATEGORIES
from kvsuite.mutants import MUTANTS
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot

R1, R2, R3, R4 = (RequestId(f"r{number}") for number in (1, 2, 3, 4))
SIZE = 4


def open_mutant(fault: str, num_blocks: int = 8) -> ReferenceEngine:
    engine = open_engine(
        fault if fault == "reference" else f"mutant:{fault}",
        EngineConfig(model_layout("tiny"), SIZE, num_blocks),
    )
    assert isinstance(engine, ReferenceEngine)
    return engine


def private(key: int) -> TokenContent:
    return TokenContent((key,), ())


def admit(
    engine: ReferenceEngine, request_id: RequestId, key: int, tokens: int, chunk: int = 99
) -> Admission:
    return engine.admit(request_id, TokenRun(private(key), 0, tokens), first_chunk_tokens=chunk)


def grow(engine: ReferenceEngine, request_id: RequestId, key: int, stop: int) -> bool:
    start = engine.cache.tables[request_id].length
    return engine.extend(request_id, TokenRun(private(key), start, stop))


def shot(engine: ReferenceEngine) -> PoolSnapshot:
    return engine.snapshot()[0]


def category_blocks(seen: PoolSnapshot) -> int:
    """Blocks that a ledger would count: distinct ones in tables, and every entry of every list."""
    lists = (seen.free, seen.cached, seen.quarantined, seen.never_allocatable)
    return len(np.unique(seen.table_blocks)) + sum(map(len, lists))


def busy(engine: ReferenceEngine) -> PoolSnapshot:
    """Two live sequences of three and two blocks, one idle block, the rest free."""
    admit(engine, R3, 3, 4)
    engine.done(0, {R3: 4})
    admit(engine, R1, 1, 9)
    admit(engine, R2, 2, 6)
    engine.release(R3, Release.FINISH)
    return shot(engine)


def forked(engine: ReferenceEngine) -> None:
    """A parent of 6 tokens in blocks 0 and 1, and a child that has just written its seventh."""
    admit(engine, R1, 1, 6)
    engine.fork(R1, R2)
    assert engine.extend(R2, TokenRun(private(1).forked(6, 2), 6, 7))


class TestTable:
    def test_every_mutant_opens_under_its_name_and_says_what_is_wrong(self) -> None:
        for name, mutant in MUTANTS.items():
            config = EngineConfig(model_layout("tiny"), 16, 64, max_model_tokens=256)
            assert open_engine(f"mutant:{name}", config).spec.name == f"mutant:{name}"
            assert mutant.fault.endswith(".")
            assert "\n" not in mutant.fault
            assert mutant.shown_by

    def test_faults_are_told_once(self) -> None:
        assert len({mutant.fault for mutant in MUTANTS.values()}) == len(MUTANTS)

    def test_misreports_cover_at_least_six_categories(self) -> None:
        categories = {mutant.category for mutant in MUTANTS.values() if mutant.category}
        assert categories <= set(CATEGORIES)
        assert len(categories) >= 6

    def test_no_mutant_is_loaded_before_it_is_asked_for(self) -> None:
        probe = (
            "import sys, kvsuite.engine.registry as r; r.engine_names(); r.describe_engines(); "
            "sys.exit(any(name.startswith('kvsuite.mutants') for name in sys.modules))"
        )
        assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


class TestMisreports:
    def test_the_reference_accounts_for_every_block(self) -> None:
        assert category_blocks(busy(open_mutant("reference"))) == 8

    @pytest.mark.parametrize(
        ("fault", "difference"),
        [
            ("repeated-block", -1),
            ("tail-hidden", -1),
            ("entry-too-many", +1),
            ("cached-also-free", +1),
            ("live-also-free", +1),
            ("free-missing", -1),
            ("null-unreported", -1),
            ("null-as-free", +1),
        ],
    )
    def test_a_block_is_missing_or_counted_twice(self, fault: str, difference: int) -> None:
        seen = busy(open_mutant(fault))
        assert category_blocks(seen) == 8 + difference
        assert seen.lengths.tolist() == [9, 6]

    def test_released_blocks_are_nowhere_until_the_next_step_is_done(self) -> None:
        engine = open_mutant("quarantine-hidden")
        admit(engine, R1, 1, 9)
        engine.done(0, {R1: 9})
        engine.release(R1, Release.FINISH)
        assert category_blocks(shot(engine)) == 5
        engine.done(1, {})
        assert category_blocks(shot(engine)) == 8
        assert admit(engine, R2, 1, 9).hit_tokens == 8

    def test_lengths_are_rounded_up(self) -> None:
        assert busy(open_mutant("slack-as-payload")).lengths.tolist() == [12, 8]

    def test_shared_blocks_have_one_holder(self) -> None:
        engine = open_mutant("ref-counts-of-one")
        admit(engine, R1, 1, 6)
        engine.fork(R1, R2)
        assert list(engine.cache.pool.ref_counts[:2]) == [2, 2]
        counts = shot(engine).ref_counts
        assert counts is not None
        assert counts.tolist() == [1, 1]

    def test_more_cache_is_claimed_than_its_storage_holds(self) -> None:
        engine = open_mutant("reserve-as-cache")
        assert engine.spec.claims(Capability.MEMORY)
        assert isinstance(engine, SupportsMemory)
        claim = engine.memory()
        (storage,) = claim.storages
        assert storage.nbytes == 8 * SIZE * 128
        assert claim.claimed_cache_bytes > storage.nbytes


class TestContent:
    def test_the_reference_copies_what_the_parent_wrote(self) -> None:
        engine = open_mutant("reference")
        forked(engine)
        (copy,) = engine.take_ops().copies
        assert (copy.source, copy.target, copy.num_tokens) == (1, 2, 2)

    def test_the_copy_is_lost(self) -> None:
        engine = open_mutant("copy-skipped")
        forked(engine)
        assert engine.take_ops().copies == ()
        assert engine.cache.tables[R2].blocks.tolist() == [0, 2]

    def test_the_copy_is_one_token_short(self) -> None:
        engine = open_mutant("copy-one-short")
        forked(engine)
        assert [copy.num_tokens for copy in engine.take_ops().copies] == [1]

    def test_the_shared_block_is_written(self) -> None:
        engine = open_mutant("writes-shared-block")
        forked(engine)
        assert engine.take_ops().copies == ()
        assert engine.cache.tables[R2].blocks.tolist() == [0, 1]

    @pytest.mark.parametrize(("fault", "hit"), [("reference", 0), ("stale-key", 8)])
    def test_an_evicted_prefix_is_still_hit(self, fault: str, hit: int) -> None:
        engine = open_mutant(fault, num_blocks=3)
        admit(engine, R1, 1, 9)
        engine.done(0, {R1: 9})
        engine.release(R1, Release.FINISH)
        admit(engine, R2, 2, 12)
        engine.release(R2, Release.CANCEL)
        assert admit(engine, R3, 1, 9).hit_tokens == hit

    @pytest.mark.parametrize(("fault", "hit"), [("reference", 0), ("publish-on-allocation", 8)])
    def test_a_half_filled_block_is_hit(self, fault: str, hit: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 12, chunk=6)
        assert admit(engine, R2, 1, 12).hit_tokens == hit

    @pytest.mark.parametrize(("fault", "hit"), [("reference", 0), ("keys-without-content", 4)])
    def test_another_prompt_is_hit(self, fault: str, hit: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 5)
        engine.done(0, {R1: 5})
        assert admit(engine, R2, 2, 5).hit_tokens == hit

    @pytest.mark.parametrize(("fault", "count"), [("reference", 2), ("fork-forgets-reference", 1)])
    def test_a_fork_is_not_counted(self, fault: str, count: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 6)
        engine.fork(R1, R2)
        assert list(engine.cache.pool.ref_counts[:2]) == [count, count]
        engine.release(R1, Release.FINISH)
        engine.release(R2, Release.FINISH)

    @pytest.mark.parametrize(("fault", "distinct"), [("reference", 2), ("double-free", 1)])
    def test_two_sequences_get_one_block(self, fault: str, distinct: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 3)
        engine.release(R1, Release.CANCEL)
        admit(engine, R2, 2, 3)
        admit(engine, R3, 3, 3)
        assert len({engine.cache.tables[name].blocks[0] for name in (R2, R3)}) == distinct


class TestBehaviour:
    @pytest.mark.parametrize(
        ("fault", "leaks_on"), [("leak-on-cancel", Release.CANCEL), ("leak-on-preempt", Release.PREEMPT)]
    )
    @pytest.mark.parametrize("reason", list(Release))
    def test_blocks_are_lost_on_one_way_out(self, fault: str, leaks_on: Release, reason: Release) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 9)
        engine.release(R1, reason)
        assert category_blocks(shot(engine)) == (5 if reason is leaks_on else 8)

    @pytest.mark.parametrize(
        ("fault", "blocks"),
        [
            ("reference", [1, 1, 2, 2, 3]),
            ("surplus-at-boundary", [1, 2, 2, 3, 3]),
            ("late-block", [1, 1, 1, 2, 2]),
        ],
    )
    def test_blocks_at_the_boundary(self, fault: str, blocks: list[int]) -> None:
        for tokens, expected in zip((3, 4, 5, 8, 9), blocks, strict=True):
            whole, grown = open_mutant(fault), open_mutant(fault)
            admit(whole, R1, 1, tokens)
            admit(grown, R1, 1, 1)
            for stop in range(2, tokens + 1):
                assert grow(grown, R1, 1, stop)
            assert len(shot(whole).table_blocks) == len(shot(grown).table_blocks) == expected

    @pytest.mark.parametrize(("fault", "held"), [("reference", 0), ("refusal-keeps-hits", 1)])
    def test_a_refusal_holds_on_to_its_hits(self, fault: str, held: int) -> None:
        engine = open_mutant(fault, num_blocks=3)
        admit(engine, R1, 1, 4)
        engine.done(0, {R1: 4})
        engine.release(R1, Release.FINISH)
        assert not admit(engine, R2, 1, 16).accepted
        assert engine.cache.pool.ref_count(0) == held

    @pytest.mark.parametrize(("fault", "hit"), [("reference", 4), ("whole-prompt-hit", 8)])
    def test_a_whole_prompt_is_hit(self, fault: str, hit: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 8)
        engine.done(0, {R1: 8})
        assert admit(engine, R2, 1, 8).hit_tokens == hit

    @pytest.mark.parametrize(
        ("fault", "free", "cached"),
        [("reference", 1, 1), ("changes-omit-cached", 1, 0), ("changes-omit-freed", 0, 1)],
    )
    def test_a_change_is_left_out_and_the_whole_is_right(self, fault: str, free: int, cached: int) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 6)
        engine.done(0, {R1: 6})
        revision = shot(engine).revision
        engine.release(R1, Release.FINISH)
        (changes,) = engine.snapshot(revision)
        assert (len(changes.free), len(changes.cached)) == (free, cached)
        assert category_blocks(shot(engine)) == 8

    @pytest.mark.parametrize(("fault", "table"), [("reference", [0, 1]), ("free-list-fifo", [2, 3])])
    def test_freed_blocks_go_to_the_other_end(self, fault: str, table: list[int]) -> None:
        engine = open_mutant(fault)
        admit(engine, R1, 1, 6)
        engine.release(R1, Release.CANCEL)
        admit(engine, R2, 2, 6)
        seen = shot(engine)
        assert seen.table_blocks.tolist() == table
        assert category_blocks(seen) == 8

    @pytest.mark.parametrize(("fault", "hits"), [("reference", (0, 4)), ("evicts-newest", (4, 0))])
    def test_the_other_chain_is_evicted(self, fault: str, hits: tuple[int, int]) -> None:
        found = []
        for key in (1, 2):
            engine = open_mutant(fault, num_blocks=2)
            for request_id, content in ((R1, 1), (R2, 2)):
                admit(engine, request_id, content, 4)
                engine.done(0, {request_id: 4})
                engine.release(request_id, Release.FINISH)
            admit(engine, R3, 3, 4)
            engine.release(R3, Release.CANCEL)
            found.append(admit(engine, R4, key, 5).hit_tokens)
        assert tuple(found) == hits


QUIET_MODULES = ("kvsuite.mutants.behaviour", "kvsuite.mutants.content", "kvsuite.mutants.misreports")
PROVOKED_WHEN_BUSY = {"keys-without-content", "late-block"}


def test_a_fault_that_is_not_provoked_shows_nothing() -> None:
    expected = busy(open_mutant("reference"))
    for name, mutant in MUTANTS.items():
        quiet = getattr(mutant.factory, "__module__", "") in QUIET_MODULES
        if quiet and mutant.category is None and name not in PROVOKED_WHEN_BUSY:
            seen = busy(open_mutant(name))
            assert seen.request_ids == expected.request_ids
            for column in ("lengths", "table_offsets", "cached"):
                assert np.array_equal(getattr(seen, column), getattr(expected, column)), name
