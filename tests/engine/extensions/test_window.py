"""The sliding window: what it lets go of, when, and that it never lets go of more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Admission, Capability, Release
from kvsuite.engine.extensions.window import WindowEngine
from kvsuite.engine.registry import open_engine
from kvsuite.engine.snapshot import Int64Array, PoolKey, PoolKind
from kvsuite.errors import ConfigError
from kvsuite.replay.driver import replay
from kvsuite.replay.scene import Scene
from kvsuite.replay.worker import ProbeWorker
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import RequestId, Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent, TokenRun

MakeTrace = Callable[..., Trace]
A = RequestId("a")


def engine_of(window: int, num_blocks: int = 16, block_size: int = 4) -> WindowEngine:
    config = EngineConfig(
        model_layout("tiny"),
        block_size,
        num_blocks,
        options={"window_tokens": window},
        max_model_tokens=(num_blocks - 1) * block_size,
    )
    engine = open_engine("reference-window", config)
    assert isinstance(engine, WindowEngine)
    return engine


def grown(scene: Scene, prompt: int, tokens: int) -> None:
    assert scene.admit("a", prompt).accepted
    scene.step()
    for _ in range(prompt, tokens):
        assert scene.extend("a")
        scene.step()


def nulls(engine: WindowEngine, row: int = 0) -> int:
    (shot,) = engine.snapshot()
    table = shot.table(row)
    leading = int(np.argmax(table != 0)) if table.any() else len(table)
    assert not (table[leading:] == 0).any()
    return leading


@pytest.mark.parametrize(
    ("window", "settled", "let_go"),
    [
        (8, 8, 0),
        (8, 10, 0),
        (8, 11, 1),
        (8, 14, 1),
        (8, 15, 2),
        (9, 11, 0),
        (9, 12, 1),
        (7, 9, 0),
        (7, 10, 1),
        (2, 4, 0),
        (2, 5, 1),
        (100, 40, 0),
    ],
)
def test_it_lets_go_of_what_no_settled_token_needs(window: int, settled: int, let_go: int) -> None:
    """b = 4: with n settled, the next token looks at n - W + 1 on: floor((n - W + 1) / 4) blocks go."""
    scene = Scene(engine_of(window))
    grown(scene, 4, settled)
    assert isinstance(scene.engine, WindowEngine)
    assert nulls(scene.engine) == let_go
    assert scene.engine.snapshot()[0].first_live.tolist() == [4 * let_go]  # type: ignore[union-attr]
    scene.drain()
    scene.judge()


def test_a_token_in_flight_takes_nothing_away() -> None:
    """W = 128, b = 32: with 158 settled and one in flight nothing goes; with 159 settled a block does."""
    scene = Scene(engine_of(128, block_size=32))
    grown(scene, 158, 158)
    assert isinstance(scene.engine, WindowEngine)
    assert scene.extend("a")
    scene.launch()
    assert nulls(scene.engine) == 0
    scene.settle()
    assert nulls(scene.engine) == 1
    scene.drain()
    scene.judge()


def test_a_rejected_draft_takes_nothing_away() -> None:
    """W = 8, b = 4: 10 settled and 5 drafts written, all rejected but one: 11 settled, one block goes."""
    scene = Scene(engine_of(8))
    grown(scene, 4, 10)
    assert isinstance(scene.engine, WindowEngine)
    assert scene.extend("a", 5, lookahead=4)
    scene.launch()
    scene.settle(a=11)
    assert nulls(scene.engine) == 1
    assert scene.extend("a")
    scene.step()
    scene.drain()
    scene.judge()


@given(st.integers(2, 40), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 40))
def test_a_window_touches_at_most_one_block_more_than_it_fills(window: int, size: int, extra: int) -> None:
    """With a token in flight: at most ceil(W / b) + 1 blocks, and at least W tokens."""
    engine = engine_of(window, block_size=size, num_blocks=50)
    settled = window + extra
    blocks = -(-(settled + 1) // size) - engine.due(settled)
    assert blocks <= -(-window // size) + 1
    assert settled + 1 - engine.due(settled) * size >= window


@pytest.mark.parametrize("workload", ["churn", "thrash"])
def test_a_window_longer_than_any_sequence_is_full_attention(workload: str) -> None:
    """One block more for the null block: rows, outcomes and preemptions are those of the reference."""
    trace = load_trace(workload).head(12)
    layout = model_layout("tiny")
    full = replay(trace, open_engine("reference", EngineConfig(layout, 16, 60)))
    config = EngineConfig(layout, 16, 61, max_model_tokens=960, options={"window_tokens": 1 << 20})
    windowed = replay(trace, open_engine("reference-window", config))
    assert windowed.violations == full.violations == ()
    assert windowed.outcomes == full.outcomes
    for name in ("payload", "slack", "free", "cached", "shared_blocks", "preempted", "hit"):
        with_window = windowed.timeline.pools[0].column(name)
        assert np.array_equal(with_window, full.timeline.pools[0].column(name)), name


def test_traffic_closes_under_any_window() -> None:
    for window in (2, 15, 17, 64):
        config = EngineConfig(model_layout("tiny"), 16, 60, options={"window_tokens": window})
        done = replay(load_trace("thrash").head(6), open_engine("reference-window", config))
        assert done.violations == ()
        assert done.timeline.pools[0].peak("window_dropped") > 0


def test_forks_share_the_window_and_let_go_apart() -> None:
    scene = Scene(engine_of(6))
    grown(scene, 6, 10)
    scene.fork("a", "b")
    for name in "ab":
        assert scene.extend(name)
    scene.step()
    for _ in range(4):
        assert scene.extend("b")
        scene.step()
    scene.release("a")
    assert scene.extend("b")
    scene.step()
    scene.drain()
    scene.judge()


def test_what_a_window_lets_go_can_still_be_found() -> None:
    """The first block of a prompt is let go and stays cached: who asks for it again finds it."""
    scene = Scene(engine_of(4))
    text = scene.prompts.of(("text", 12))
    scene.admit("a", 12, content=text)
    scene.step()
    assert scene.admit("b", 12, content=text).hit_tokens == 8
    scene.step()
    scene.drain()
    scene.judge()


def test_nothing_of_a_sequence_is_left_when_its_name_comes_again() -> None:
    engine = engine_of(4)
    for _ in range(2):
        run = TokenRun(TokenContent((0,), ()), 0, 12)
        assert engine.admit(A, run, first_chunk_tokens=12).accepted
        assert nulls(engine) == 0
        engine.done(0, {A: 12})
        assert nulls(engine) == 2
        engine.release(A, Release.PREEMPT)


@pytest.mark.parametrize("window", [1, 0, True, "8"])
def test_a_window_is_two_tokens_or_more(window: object) -> None:
    with pytest.raises(
        ConfigError, match=r"reference-window: window_tokens is .*, expected 2 tokens or more"
    ):
        engine_of(window)  # type: ignore[arg-type]


def test_its_pool_says_what_it_is() -> None:
    spec = engine_of(9).spec
    (pool,) = spec.pools
    assert (pool.kind, pool.window_tokens, pool.usable_blocks) == (PoolKind.WINDOW, 9, 15)
    assert spec.claims(Capability.SLIDING_WINDOW)
    assert spec.effective["window_tokens"] == 9
    (shot,) = engine_of(9).snapshot()
    assert shot.null_ids.tolist() == shot.never_allocatable.tolist() == [0]


def test_a_pool_below_a_window_and_a_block_is_refused_unless_it_holds_the_longest_sequence() -> None:
    """W = 8, b = 4: two usable blocks hold the window alone, three hold it with the block being filled."""
    options = {"window_tokens": 8}
    with pytest.raises(ConfigError, match="2 usable blocks of 4 tokens hold no window of 8"):
        WindowEngine(EngineConfig(model_layout("tiny"), 4, 3, options=options))
    WindowEngine(EngineConfig(model_layout("tiny"), 4, 4, options=options))
    WindowEngine(EngineConfig(model_layout("tiny"), 4, 3, max_model_tokens=8, options=options))


class ForgetsTheFirst(ProbeWorker):
    """Loses the first token of a prompt."""

    def write(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        skipped = int(len(slots) > 1)
        super().write(pool, slots[skipped:], tags[skipped:])


def test_a_prompt_is_read_before_its_window_lets_go_of_it(make_trace: MakeTrace) -> None:
    """W = 8 over a prompt of 40: its first token is gone by the next step, and is read before that."""
    config = EngineConfig(model_layout("tiny"), 4, 16, options={"window_tokens": 8})
    trace, engine = make_trace((40, 4)), WindowEngine(config)
    clean = replay(trace, WindowEngine(config))
    assert clean.violations == ()
    assert clean.content.tokens_read > clean.content.tokens_written
    (found,) = replay(trace, engine, ForgetsTheFirst(engine.spec.pools)).violations
    assert found.invariant == "content"
    assert "token 0 of r0" in found.message
    assert "before it leaves its window (1 tokens" in found.message


class NullsHitsAtAdmission(WindowEngine):
    """Never holds the found blocks that lie before the window; ``extra`` more are a fault."""

    extra = 0

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        gone = self.due(admission.hit_tokens)
        if gone:
            self.cache.let_go(request_id, 0, gone + self.extra)
            self._let_go[request_id] = gone + self.extra
        return admission


class NullsOneTooMany(NullsHitsAtAdmission):
    """Lets go of a block that the window still needs."""

    extra = 1


@pytest.mark.parametrize(
    ("engine_type", "broken"),
    [(WindowEngine, set()), (NullsHitsAtAdmission, set()), (NullsOneTooMany, {"window"})],
)
@pytest.mark.parametrize("read_all", [False, True])
def test_found_blocks_before_the_window_may_be_null_at_once(
    engine_type: type[WindowEngine], broken: set[str], read_all: bool
) -> None:
    """A prompt of 42 that is found up to 40, with a window of 9: 8 blocks of 4 lie before it."""
    rows = [
        Row(request_id=name, timestamp=at, input_length=42, output_length=6, hash_ids=[*range(11)])
        for name, at in (("a", 0), ("b", 1000))
    ]
    trace = trace_of(rows, TraceSource("by hand", "again"), block_size=4)
    engine = engine_type(EngineConfig(model_layout("tiny"), 4, 32, options={"window_tokens": 9}))
    done = replay(trace, engine, read_all=read_all)
    assert done.outcomes[1].hit_tokens == 40
    assert {violation.invariant for violation in done.violations} & {"window"} == broken
    if not broken:
        assert done.violations == ()
        pool = done.timeline.pools[0]
        held = 2 if engine_type is NullsHitsAtAdmission else 10
        assert pool.total("reactivated") == held
