"""Look-ahead for draft tokens: what is reserved, what is given back, and where it ends.

With ``n`` tokens, ``k`` ahead, blocks of ``b`` and a longest sequence of ``Lmax``, a table holds
``ceil(min(n + k, Lmax) / b)`` blocks until the step is settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.errors import ConfigError
from kvsuite.ledger.counts import (
    entries_due,
    fits_empty_pool,
    judge_counts,
    longest_sequence,
    monotone_in_lookahead,
)
from kvsuite.ledger.invariants import raise_violations
from kvsuite.ledger.ranges import reads_within_table, table_columns
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.plugin.replays import EngineOpener, Replayer
    from kvsuite.replay.scene import Scene

    Play = Callable[..., Scene]

BLOCK = 4
LONGEST = 5 * BLOCK
pytestmark = pytest.mark.requires(Capability.LOOKAHEAD)


@pytest.fixture
def play(kv_scene: Play, open_engine: EngineOpener) -> Play:
    """Open a scene on a pool with exactly so many usable blocks, whatever the engine keeps back."""

    def opened(*, usable_blocks: int, null_blocks: int = 0, **config: Any) -> Scene:
        config |= {"options": {"null_blocks": null_blocks}} if null_blocks else {}
        try:
            pool = open_engine(num_blocks=usable_blocks + 8, **config).spec.pools[0]
        except ConfigError as refusal:
            if null_blocks:
                pytest.skip(f"takes no option null_blocks: {refusal}")
            raise
        try:
            return kv_scene(num_blocks=usable_blocks + pool.never_allocatable_blocks, **config)
        except ConfigError as refusal:
            pytest.skip(f"refuses a pool of {usable_blocks} blocks at the start: {refusal}")

    return opened


def within_declared(scene: Scene, lookahead: int) -> int:
    """Return ``lookahead``; skip where the engine declares that it reserves less."""
    declared = scene.engine.snapshot()[0].lookahead_tokens
    if lookahead > declared:
        pytest.skip(f"declares a look-ahead of {declared} tokens, {lookahead} are asked")
    return lookahead


def grown(scene: Scene, tokens: int) -> None:
    """Bring the sequence ``a`` to ``tokens`` tokens, settled."""
    assert scene.admit("a", tokens).accepted
    scene.step()


def held(scene: Scene) -> int:
    """Return the entries in the table of ``a`` now."""
    (snapshot, *_) = scene.engine.snapshot()
    return len(snapshot.table(snapshot.request_ids.index(RequestId("a"))))


def blocks_due(tokens: int, lookahead: int) -> int:
    """Return ``ceil(min(n + k, Lmax) / b)``."""
    return -(-min(tokens + lookahead, LONGEST) // BLOCK)


def around_the_need() -> list[tuple[int, int, int]]:
    """Boundary lengths, look-aheads, and pools that hold the sequence before it decodes: n, k, need +-1."""
    lengths = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, LONGEST - 1, LONGEST)
    return [
        (tokens, lookahead, spare)
        for tokens in lengths
        for lookahead in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1)
        for spare in (-1, 0, 1)
        if blocks_due(tokens, lookahead) + spare >= blocks_due(tokens - 1, 0)
    ]


@pytest.mark.parametrize("null_blocks", [0, 1], ids=["no-null", "null"])
@pytest.mark.parametrize(("tokens", "lookahead", "spare"), around_the_need())
def test_a_look_ahead_holds_exactly_what_is_due(
    play: Play, tokens: int, lookahead: int, spare: int, null_blocks: int
) -> None:
    """One decode to ``tokens`` with ``lookahead`` ahead, in a pool around its need; then all comes back."""
    need = blocks_due(tokens, lookahead)
    scene = play(
        usable_blocks=need + spare, null_blocks=null_blocks, block_size=BLOCK, max_model_tokens=LONGEST
    )
    within_declared(scene, lookahead)
    grown(scene, tokens - 1)
    pools = scene.engine.spec.pools
    fits = fits_empty_pool(pools, tokens, lookahead_tokens=lookahead, max_tokens=LONGEST)
    if fits is False:
        with scene.unchanged(f"a look-ahead of {lookahead} tokens"):
            assert not scene.extend("a", lookahead=lookahead), f"{need} blocks are due and were not there"
        judge_counts(pools, scene.engine.snapshot(), max_tokens=LONGEST)
    elif scene.extend("a", lookahead=lookahead):
        ahead = {RequestId("a"): lookahead}
        judge_counts(pools, scene.engine.snapshot(), lookahead=ahead, max_tokens=LONGEST)
    else:
        assert fits is None, f"{need} blocks are due and free, and the look-ahead was refused"
    scene.step()
    scene.drain()
    scene.judge()


def test_pages_of_drafts_come_back_at_the_end(play: Play) -> None:
    """1,696 pages of 64: after one request with drafts in two more pages, 108,544 tokens are free again."""
    scene = play(usable_blocks=1_696, block_size=64, prefix_cache=False)
    (snapshot, *_) = scene.engine.snapshot()
    lookahead = min(128, snapshot.lookahead_tokens)
    grown(scene, 64)
    assert scene.extend("a", lookahead=lookahead)
    scene.step()
    scene.drain()
    scene.judge()
    assert scene.column("free") == 108_544


@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_free_tokens_at_the_end_do_not_depend_on_the_block_size(play: Play, block_size: int) -> None:
    """Draft depth 3, nothing accepted, four rounds: 256 tokens of pool are free afterwards in any size."""
    scene = play(usable_blocks=256 // block_size, block_size=block_size, prefix_cache=False)
    grown(scene, 15)
    for length in range(16, 20):
        assert scene.extend("a", 4)
        scene.launch()
        scene.settle(a=length)
    scene.drain()
    scene.judge()
    assert scene.column("free") == 256


@pytest.mark.parametrize("drafts", [0, 1, 2])
def test_a_draft_round_reserves_what_it_writes(play: Play, drafts: int) -> None:
    """Three steps write a token and two drafts: in blocks of one token, n + 2 slots and not n + 3."""
    scene = play(usable_blocks=16, block_size=1)
    within_declared(scene, drafts)
    grown(scene, 5)
    assert scene.extend("a", lookahead=drafts)
    judge_counts(scene.engine.spec.pools, scene.engine.snapshot(), lookahead={RequestId("a"): drafts})
    assert held(scene) == 6 + drafts
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.parametrize(("longest", "block_size", "columns"), [(80_000, 128, 625), (LONGEST, BLOCK, 5)])
@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize("before_the_end", [0, 1, 3])
def test_look_ahead_stops_at_the_longest_sequence(
    play: Play, longest: int, block_size: int, columns: int, lookahead: int, before_the_end: int
) -> None:
    """At full context a draft would be key 80,001 in column 625 of a table of 0 to 624."""
    assert table_columns(longest, block_size) == columns
    scene = play(
        usable_blocks=columns + 2, block_size=block_size, max_model_tokens=longest, prefix_cache=False
    )
    within_declared(scene, lookahead)
    grown(scene, longest - before_the_end - 1)
    assert scene.extend("a", lookahead=lookahead)
    (pool, *_) = scene.engine.spec.pools
    addressed = [held(scene) * block_size]
    raise_violations(list(reads_within_table(pool, columns, addressed)))
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.parametrize("lookahead", [0, 1, BLOCK, BLOCK + 1])
def test_a_sequence_with_drafts_grows_to_its_declared_length(play: Play, lookahead: int) -> None:
    """A pool for one longest sequence and its drafts: the sequence comes to ``Lmax``, not to ``Lmax - k``."""
    scene = play(usable_blocks=-(-(LONGEST + lookahead) // BLOCK), block_size=BLOCK, max_model_tokens=LONGEST)
    within_declared(scene, lookahead)
    found = LONGEST // 2
    grown(scene, found)
    while found < LONGEST and scene.extend("a", lookahead=lookahead):
        found += 1
        scene.step()
    scene.drain()
    scene.judge()
    raise_violations(list(longest_sequence(str(scene.engine.spec.pools[0].key), found, LONGEST)))


@pytest.mark.parametrize("tokens", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_more_look_ahead_never_takes_fewer_blocks(play: Play, tokens: int) -> None:
    """Blocks held at one length, by look-ahead 0 to b + 1."""
    blocks: dict[int, int] = {}
    for lookahead in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1):
        scene = play(usable_blocks=8, block_size=BLOCK)
        within_declared(scene, lookahead)
        grown(scene, tokens)
        assert scene.extend("a", lookahead=lookahead)
        blocks[lookahead] = held(scene)
        scene.step()
        scene.drain()
        scene.judge()
    (pool, *_) = scene.engine.spec.pools
    raise_violations(list(monotone_in_lookahead(pool, blocks)))
    assert blocks == {k: entries_due(pool, tokens + 1, lookahead_tokens=k) for k in blocks}


@pytest.mark.parametrize("tokens", [2 * BLOCK - 1, 2 * BLOCK])
def test_a_refused_look_ahead_changes_nothing(play: Play, tokens: int) -> None:
    """One block is free where two are due: none is taken, and a decode without drafts goes on."""
    scene = play(usable_blocks=5, block_size=BLOCK)
    within_declared(scene, BLOCK + 1)
    assert scene.admit("b", 2 * BLOCK).accepted
    grown(scene, tokens)
    lookahead = 2 * BLOCK if tokens % BLOCK else BLOCK + 1
    within_declared(scene, lookahead)
    with scene.unchanged(f"a look-ahead of {lookahead} tokens"):
        assert not scene.extend("a", lookahead=lookahead)
    assert scene.extend("a")
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.parametrize("accepted", [1, 2, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("tokens", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_rejected_drafts_are_rolled_back(play: Play, tokens: int, accepted: int) -> None:
    """A token and b drafts are written, ``accepted`` of them hold; what follows lies where the rest was."""
    scene = play(usable_blocks=8, block_size=BLOCK)
    grown(scene, tokens)
    assert scene.extend("a", BLOCK + 1)
    scene.launch()
    scene.settle(a=tokens + accepted)
    scene.step()
    scene.judge()
    judge_counts(scene.engine.spec.pools, scene.engine.snapshot())
    for _ in range(BLOCK + 1):
        assert scene.extend("a")
        scene.step()
    judge_counts(scene.engine.spec.pools, scene.engine.snapshot())
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_a_rejected_draft_is_never_found_by_others(play: Play) -> None:
    """A draft fills a block and is rejected; who asks for that very text must compute it."""
    scene = play(usable_blocks=8, block_size=BLOCK)
    text = scene.prompts.of(("text", 3 * BLOCK))
    assert scene.admit("a", BLOCK + 1, content=text).accepted
    scene.step()
    assert scene.extend("a", BLOCK - 1)
    scene.launch()
    scene.settle(a=BLOCK + 2)
    assert scene.extend("a", BLOCK - 2)
    scene.step()
    found = scene.admit("b", 3 * BLOCK, content=text).hit_tokens
    scene.step()
    scene.drain()
    scene.judge()
    assert found == BLOCK


@pytest.mark.parametrize("lookahead", [1, 17])
def test_traffic_with_drafts_closes_and_drains(kv_replay: Replayer, lookahead: int) -> None:
    """Traffic in a pool that preempts, with drafts asked for at every decode and all rejected."""
    done = kv_replay(
        load_trace("thrash").head(8),
        block_size=16,
        num_blocks=60,
        slots="probe",
        read_all=False,
        scheduler=SchedulerConfig(lookahead_tokens=lookahead),
    )
    assert done.timeline.pools[0].peak("max_slack") >= 15 + lookahead // 16
    assert {outcome.ending for outcome in done.outcomes} - {None}
