"""vLLM itself, release by release: numbers from its own rules, worked out by hand.

A pool of ``N`` blocks has ``N - 1``, ids 1 to N - 1: block 0 is the null block. A prompt of ``n`` tokens
holds ``ceil(n / b)`` blocks, and ``floor((n - 1) / b) * b`` tokens of it can be found again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import RefusalReason, Release
from kvsuite.errors import ConfigError, EngineError
from kvsuite.ledger.atomic import state_digest
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Admission, Engine

    Make = Callable[..., Engine]

OLDEST, NEWEST = "0.23.0", "0.33.0"
VERSIONS = [OLDEST, "0.24.0", "0.27.1", "0.28.0", NEWEST]
A, B, C = RequestId("a"), RequestId("b"), RequestId("c")
every_version = pytest.mark.parametrize("version", VERSIONS)


def run(key: int, start: int, stop: int) -> TokenRun:
    return TokenRun(TokenContent((key,), ()), start, stop)


def admit(engine: Engine, name: RequestId, key: int, tokens: int, *, chunk: int | None = None) -> Admission:
    return engine.admit(name, run(key, 0, tokens), first_chunk_tokens=chunk or tokens)


def settle(engine: Engine, **lengths: int) -> None:
    engine.launched(0)
    engine.done(0, {RequestId(name): length for name, length in lengths.items()})


def table(engine: Engine, name: RequestId) -> list[int]:
    (shot,) = engine.snapshot()
    return [int(block) for block in shot.table(shot.request_ids.index(name))]


@every_version
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_are_taken_at_boundaries(vllm: Make, version: str, block_size: int) -> None:
    engine = vllm(version, block_size=block_size, num_blocks=64)
    for number, tokens in enumerate(k * block_size + extra for k in (1, 2) for extra in (-1, 0, 1)):
        if tokens:
            admission = admit(engine, RequestId(f"r{number}"), number, tokens)
            assert (admission.hit_tokens, admission.scheduled_tokens) == (0, tokens)
            assert len(table(engine, RequestId(f"r{number}"))) == -(-tokens // block_size)
    admit(engine, A, 90, 2 * block_size)
    for length in range(2 * block_size + 1, 4 * block_size + 2):
        assert engine.extend(A, run(90, length - 1, length))
        settle(engine, a=length)
        assert len(table(engine, A)) == -(-length // block_size)


@every_version
def test_the_null_block_is_nobody_s(vllm: Make, version: str) -> None:
    engine = vllm(version, block_size=4, num_blocks=6)
    (pool,) = engine.spec.pools
    assert (pool.num_blocks, pool.usable_blocks) == (6, 5)
    (empty,) = engine.snapshot()
    assert (empty.never_allocatable.tolist(), sorted(empty.free.tolist())) == ([0], [1, 2, 3, 4, 5])
    assert admit(engine, A, 1, 20).accepted
    assert sorted(table(engine, A)) == [1, 2, 3, 4, 5]
    engine.release(A, Release.FINISH)
    refusal = admit(engine, B, 2, 21).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.needed_blocks) == (RefusalReason.NEVER_FITS, 6)


@every_version
def test_a_refusal_tells_true_numbers_and_leaves_no_trace(vllm: Make, version: str) -> None:
    """5 blocks: 2 held, 2 cached, 1 free. 4 are needed, of which 1 is found: 3 are short by 1."""
    engine = vllm(version, block_size=4, num_blocks=6)
    admit(engine, A, 1, 8)
    settle(engine, a=8)
    engine.release(A, Release.FINISH)
    admit(engine, B, 2, 7)
    settle(engine, b=7)
    before = state_digest(engine.snapshot())
    content = TokenContent((1, 3), (4,))
    refusal = engine.admit(C, TokenRun(content, 0, 16), first_chunk_tokens=4).refusal
    assert refusal is not None
    told = (refusal.needed_blocks, refusal.free_blocks, refusal.reclaimable_blocks, refusal.reason)
    assert told == (3, 1, 1, RefusalReason.NO_BLOCKS)
    assert not engine.extend(B, run(2, 7, 21))
    assert state_digest(engine.snapshot()) == before


@every_version
def test_a_refused_extension_tells_vllm_its_token_once(vllm: Make, version: str) -> None:
    """Refused, asked again: the block it fills is found as that of 12 tokens, each of them once."""
    engine = vllm(version, block_size=4, num_blocks=6)
    admit(engine, A, 1, 8)
    admit(engine, B, 2, 12)
    settle(engine, a=8, b=12)
    for _ in range(2):
        assert not engine.extend(A, run(1, 8, 9))
    engine.release(B, Release.FINISH)
    for length in range(9, 13):
        assert engine.extend(A, run(1, length - 1, length))
        settle(engine, a=length)
    engine.release(A, Release.FINISH)
    assert admit(engine, C, 1, 13).hit_tokens == 12


@every_version
@pytest.mark.parametrize(("tokens", "found"), [(47, 32), (48, 32), (49, 48)])
def test_a_prompt_found_whole_computes_its_last_block(
    vllm: Make, version: str, tokens: int, found: int
) -> None:
    engine = vllm(version, block_size=16, num_blocks=16)
    admit(engine, A, 1, tokens)
    settle(engine, a=tokens)
    assert admit(engine, B, 1, tokens).hit_tokens == found
    shared = found // 16
    assert table(engine, A)[:shared] == table(engine, B)[:shared]
    (shot,) = engine.snapshot()
    assert shot.ref_counts is not None
    assert sorted(shot.ref_counts.tolist(), reverse=True)[:shared] == [2] * shared


@pytest.mark.parametrize(
    ("version", "order"),
    [
        (OLDEST, [4, 5, 3, 2, 1]),
        ("0.24.0", [3, 2, 1, 4, 5]),
        ("0.27.1", [4, 5, 3, 2, 1]),
        ("0.28.0", [3, 2, 1, 4, 5]),
        (NEWEST, [3, 2, 1, 4, 5]),
    ],
)
def test_which_block_is_used_next(vllm: Make, version: str, order: list[int]) -> None:
    """Blocks 1, 2, 3 come back, the tail first: behind the others, or before them (0.24, and again 0.28)."""
    engine = vllm(version, block_size=4, num_blocks=6, prefix_cache=False)
    admit(engine, A, 1, 12)
    assert table(engine, A) == [1, 2, 3]
    engine.release(A, Release.FINISH)
    assert engine.snapshot()[0].free.tolist() == order


@pytest.mark.parametrize(("version", "order"), [(OLDEST, [4, 5, 3]), ("0.24.0", [3, 4, 5])])
def test_blocks_worth_finding_are_used_last(vllm: Make, version: str, order: list[int]) -> None:
    """10 tokens: blocks 1 and 2 are full and cached, block 3 is not."""
    engine = vllm(version, block_size=4, num_blocks=6)
    admit(engine, A, 1, 10)
    settle(engine, a=10)
    engine.release(A, Release.FINISH)
    (shot,) = engine.snapshot()
    assert (shot.free.tolist(), shot.cached.tolist()) == (order, [2, 1])


def test_a_watermark_needs_a_release_that_has_one(vllm: Make) -> None:
    with pytest.raises(ConfigError, match=r"0\.23\.0 keeps no watermark, 2 blocks are asked"):
        vllm(OLDEST, block_size=4, num_blocks=11, watermark_blocks=2)
    engine = vllm("0.24.0", block_size=4, num_blocks=11, watermark_blocks=2)
    assert admit(engine, A, 1, 20).accepted
    refusal = admit(engine, B, 2, 16).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.needed_blocks, refusal.free_blocks) == (RefusalReason.WATERMARK, 4, 5)
    assert admit(engine, C, 3, 12).accepted


@every_version
def test_drafts_have_slots_and_keep_them(vllm: Make, version: str) -> None:
    """15 + 1 tokens and 5 ahead are ceil(21 / 4) = 6 blocks; 3 drafts, none accepted, take no more."""
    engine = vllm(version, kind="VllmLookaheadEngine", block_size=4, num_blocks=16)
    admit(engine, A, 1, 15)
    settle(engine, a=15)
    assert engine.extend(A, run(1, 15, 16), lookahead_tokens=5)
    settle(engine, a=16)
    assert engine.extend(A, run(1, 16, 20))
    settle(engine, a=17)
    (shot,) = engine.snapshot()
    assert (len(table(engine, A)), shot.lengths.tolist()) == (6, [17])


@every_version
def test_what_the_adapter_does_not_do_is_refused(vllm: Make, version: str) -> None:
    with pytest.raises(ConfigError, match="unknown option 'watermark', expected none"):
        vllm(version, block_size=4, num_blocks=8, options={"watermark": 1})
    engine = vllm(version, block_size=4, num_blocks=8)
    admit(engine, A, 1, 8)
    with pytest.raises(EngineError, match="admitted and live"):
        admit(engine, A, 1, 8)
    with pytest.raises(EngineError, match="holds 8 tokens and is extended from 9"):
        engine.extend(A, run(1, 9, 10))
    with pytest.raises(EngineError, match="only drafts"):
        settle(engine, a=7)


@every_version
def test_changes_come_to_what_is_there(vllm: Make, version: str) -> None:
    """Traffic in a pool that preempts, under every law, with changed snapshots held against full ones."""
    engine = vllm(version, block_size=16, num_blocks=61, max_model_tokens=4096)
    done = replay(load_trace("thrash").head(8), engine, scheduler=SchedulerConfig(16, 256))
    assert done.violations == ()
    assert done.timeline.pools[0].total("preempted") > 0
    assert done.spec.version == version


@pytest.mark.slow
def test_both_loaders_come_to_the_same_ledger(vllm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSUITE_HOST_TIMEOUT_S", "600")
    trace = load_trace("thrash").head(8)
    rows = []
    for loader in ("filtered", "full"):
        engine = vllm(NEWEST, loader=loader, block_size=16, num_blocks=61, max_model_tokens=4096)
        assert engine.spec.provenance["loader"] == loader
        rows.append(replay(trace, engine, scheduler=SchedulerConfig(16, 256)).timeline.pools[0].rows)
    assert (rows[0] == rows[1]).all()


@every_version
def test_a_window_lets_go_when_a_sequence_goes_on(vllm: Make, version: str) -> None:
    """A window of 8 in blocks of 4: with 14 tokens settled floor((14 - 8 + 1) / 4) = 1 block is due."""
    engine = vllm(version, kind="VllmWindowEngine", block_size=4, num_blocks=9, options={"window_tokens": 8})
    admit(engine, A, 1, 14)
    settle(engine, a=14)
    first, *others = table(engine, A)
    assert first != 0, "nothing is let go of before the sequence goes on"
    assert engine.extend(A, run(1, 14, 15))
    (shot,) = engine.snapshot()
    assert shot.table(0).tolist() == [0, *others]
    assert shot.first_live is not None
    assert (shot.first_live.tolist(), shot.null_ids.tolist()) == ([4], [0])
    assert first in shot.free.tolist()
