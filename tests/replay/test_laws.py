"""Laws of any replay, over random lifecycles; expectations come from closed forms, never from the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.ledger.row import CATEGORIES
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.trace.model import ABSENT, ForkKind, RequestId, Trace, TraceSource

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.replay.driver import Replay

STEP_US = 50_000


@st.composite
def lifecycles(draw: st.DrawFn, *, forks: bool, cancels: bool) -> Trace:
    """A trace of up to 12 requests in a tree of shared 4-token prompt blocks."""
    count = draw(st.integers(1, 12))
    numbers = st.integers(0, 23)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        prompt, output = 1 + draw(numbers), draw(numbers)
        parent, at = ABSENT, ABSENT
        candidates = [i for i, row in enumerate(rows) if row["parent"] == ABSENT]
        if forks and candidates and draw(st.booleans()):
            parent = draw(st.sampled_from(candidates))
            prompt = rows[parent]["prompt"]
            at = prompt + draw(st.integers(0, min(output, rows[parent]["output"])))
        cancel = draw(st.integers(0, output)) if cancels and draw(st.booleans()) else ABSENT
        arrival = (rows[-1]["arrival"] if rows else 0) + STEP_US * draw(st.integers(0, 3))
        rows.append(
            {
                "prompt": prompt,
                "output": output,
                "parent": parent,
                "at": at,
                "cancel": cancel,
                "arrival": arrival,
            }
        )
    return _trace(rows, shared_blocks=draw(st.integers(0, 3)))


def _trace(rows: list[dict[str, Any]], shared_blocks: int) -> Trace:
    """Every prompt begins with the same ``shared_blocks`` nodes of 4 tokens, as far as it reaches."""
    forked = [row.get("parent", ABSENT) != ABSENT for row in rows]
    runs = [
        [] if fork else list(range(min(shared_blocks, row["prompt"] // 4)))
        for fork, row in zip(forked, rows, strict=True)
    ]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(run) for run in runs], out=offsets[1:])

    def column(name: str, default: int = ABSENT) -> Int64Array:
        return np.array([row.get(name, default) for row in rows], np.int64)

    parents = column("parent")
    return Trace(
        request_ids=tuple(RequestId(f"r{i}") for i in range(len(rows))),
        arrival_us=column("arrival"),
        prompt_tokens=column("prompt"),
        output_tokens=column("output"),
        block_size=4,
        node_offsets=offsets,
        nodes=np.array([node for run in runs for node in run], np.int64),
        hashed_tokens=np.array(
            [ABSENT if fork else 4 * len(run) for fork, run in zip(forked, runs, strict=True)], np.int64
        ),
        max_output_tokens=column("max"),
        parent=parents,
        fork_kind=np.where(parents == ABSENT, ABSENT, ForkKind.BEAM).astype(np.int64),
        fork_at=column("at"),
        cancel_after=column("cancel"),
        cancel_at_us=column("cancel_at"),
        session=column("session"),
        turn=column("turn"),
        priority=column("priority", 0),
        source=TraceSource("test", "random"),
        rows_read=len(rows),
    )


def run(
    trace: Trace, *, block_size: int, num_blocks: int, seats: int = 8, budget: int = 16, read_all: bool = True
) -> Replay:
    engine = open_engine("reference", EngineConfig(model_layout("tiny"), block_size, num_blocks))
    return replay(trace, engine, scheduler=SchedulerConfig(seats, budget, STEP_US), read_all=read_all)


@settings(max_examples=60)
@given(
    lifecycles(forks=True, cancels=True), st.sampled_from([1, 2, 3, 4, 8]), st.integers(24, 80), st.booleans()
)
def test_every_law_holds_under_pressure(
    trace: Trace, block_size: int, pool_tokens: int, read_all: bool
) -> None:
    """Any lifecycle, any block size, a pool that is often too small: nothing is violated, everything ends."""
    done = run(trace, block_size=block_size, num_blocks=-(-pool_tokens // block_size), read_all=read_all)
    assert done.violations == ()
    assert done.content.mismatches == 0
    assert all(outcome.ending is not None for outcome in done.outcomes)
    pool = done.timeline.pools[0]
    slots = np.sum([pool.column(name) for name in CATEGORIES], axis=0)
    assert (slots == pool.spec.num_blocks * block_size).all()
    live = np.cumsum(pool.column("allocated") + pool.column("reactivated") - pool.column("freed"))
    assert live.tolist() == pool.column("live_blocks").tolist()


@settings(max_examples=40)
@given(lifecycles(forks=False, cancels=False), st.sampled_from([1, 3, 4, 16]))
def test_without_pressure_each_length_is_a_closed_form(trace: Trace, block_size: int) -> None:
    """Unshared, with room for all: a request holds p + (s - s0) tokens at steps s0 <= s <= s0 + o."""
    unshared = _trace(
        [
            {"prompt": request.prompt_tokens, "output": request.output_tokens, "arrival": request.arrival_us}
            for request in trace
        ],
        shared_blocks=0,
    )
    done = run(unshared, block_size=block_size, num_blocks=1000, seats=64, budget=4096)
    steps = done.timeline.steps
    pool = done.timeline.pools[0]
    tokens, blocks = np.zeros_like(steps), np.zeros_like(steps)
    for request in unshared:
        start = -(-request.arrival_us // STEP_US)
        lives = (steps >= start) & (steps <= start + request.output_tokens)
        length = np.where(lives, request.prompt_tokens + steps - start, 0)
        tokens += length
        blocks += -(-length // block_size)
    assert pool.column("payload").tolist() == tokens.tolist()
    assert pool.column("logical").tolist() == tokens.tolist()
    assert pool.column("live_blocks").tolist() == blocks.tolist()
    assert pool.column("slack").tolist() == (blocks * block_size - tokens).tolist()


@settings(max_examples=30)
@given(lifecycles(forks=False, cancels=False))
def test_an_exact_reservation_is_payload_and_over_reserved_to_the_slot(trace: Trace) -> None:
    """With room for all, a live request owns p + o slots from its first step to its last."""
    engine = open_engine("contiguous-exact", EngineConfig(model_layout("tiny"), 1, 4096, trace=trace))
    done = replay(trace, engine, scheduler=SchedulerConfig(64, 4096, STEP_US))
    assert done.violations == ()
    steps, pool = done.timeline.steps, done.timeline.pools[0]
    owned, held = np.zeros_like(steps), np.zeros_like(steps)
    for request in trace:
        start = -(-request.arrival_us // STEP_US)
        lives = (steps >= start) & (steps <= start + request.output_tokens)
        owned += np.where(lives, request.final_tokens, 0)
        held += np.where(lives, request.prompt_tokens + steps - start, 0)
    assert pool.column("payload").tolist() == held.tolist()
    assert (pool.column("payload") + pool.column("over_reserved")).tolist() == owned.tolist()
    assert pool.column("free").tolist() == (4096 - owned).tolist()


@settings(max_examples=30)
@given(
    lifecycles(forks=False, cancels=True),
    st.sampled_from(["contiguous-max", "contiguous-pow2", "contiguous-exact"]),
)
def test_contiguous_controls_close_and_give_back_what_they_held(trace: Trace, control: str) -> None:
    config = EngineConfig(model_layout("tiny"), 1, 96, trace=trace, max_model_tokens=48)
    done = replay(
        trace, open_engine(control, config), scheduler=SchedulerConfig(8, 16, STEP_US), read_all=True
    )
    assert done.violations == ()
    assert all(outcome.ending is not None for outcome in done.outcomes)


@settings(max_examples=30)
@given(lifecycles(forks=True, cancels=True), st.integers(24, 80))
def test_changed_and_full_snapshots_come_to_the_same_rows(trace: Trace, pool_tokens: int) -> None:
    whole = run(trace, block_size=4, num_blocks=-(-pool_tokens // 4), read_all=True)
    changed = run(trace, block_size=4, num_blocks=-(-pool_tokens // 4), read_all=False)
    assert whole.timeline.pools[0].rows.tolist() == changed.timeline.pools[0].rows.tolist()


@settings(max_examples=30)
@given(lifecycles(forks=False, cancels=True), st.integers(1, 40))
def test_cancelling_at_any_point_leaves_no_block_behind(trace: Trace, budget: int) -> None:
    done = run(trace, block_size=4, num_blocks=40, seats=min(8, budget), budget=budget)
    assert not [v for v in done.violations if v.invariant == "drain"]
    assert {outcome.ending for outcome in done.outcomes} <= {Ending.FINISHED, Ending.CANCELLED}
