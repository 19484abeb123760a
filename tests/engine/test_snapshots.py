"""Changes applied to a full snapshot give the next full one, for every engine and any traffic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Engine, Release, SupportsFork
from kvsuite.engine.registry import open_engine
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot

ENGINES = ("reference", "contiguous-max", "contiguous-pow2")
STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(("admit", "extend", "fork", "release")), st.integers(0, 5), st.integers(1, 9)
        ),
        max_size=5,
    ),
    min_size=3,
    max_size=15,
)


@dataclass
class Picture:
    """What one reader knows of a pool."""

    lengths: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    cached: set[int] = field(default_factory=set)
    ref_counts: dict[int, int] = field(default_factory=dict)

    def take(self, shot: PoolSnapshot) -> None:
        """Apply a snapshot as `PoolSnapshot` documents it."""
        if shot.is_full:
            self.tables, self.free, self.cached, self.ref_counts = {}, set(), set(), {}
        self.lengths = dict(zip(shot.request_ids, shot.lengths.tolist(), strict=True))
        given = {shot.request_ids[row]: shot.table(c).tolist() for c, row in enumerate(shot.table_rows)}
        known = self.tables | given
        self.tables = {request_id: known[request_id] for request_id in shot.request_ids}
        free, cached, live = (set(ids.tolist()) for ids in (shot.free, shot.cached, shot.live))
        assert len(free) + len(cached) + len(live) == len(free | cached | live)
        self.free = (self.free - cached - live) | free
        self.cached = (self.cached - free - live) | cached
        if shot.ref_count_ids is not None and shot.ref_counts is not None:
            self.ref_counts |= dict(zip(shot.ref_count_ids.tolist(), shot.ref_counts.tolist(), strict=True))
            self.ref_counts = {block: count for block, count in self.ref_counts.items() if count}


@dataclass
class Traffic:
    """Random but lawful use of an engine; requests of one family start with the same tokens."""

    engine: Engine
    contents: dict[RequestId, TokenContent] = field(default_factory=dict)
    lengths: dict[RequestId, int] = field(default_factory=dict)
    made: int = 0

    def do(self, verb: str, who: int, tokens: int) -> None:
        live = list(self.lengths)
        if verb == "admit":
            self.admit(who, tokens)
        elif live:
            getattr(self, verb)(live[who % len(live)], tokens)

    def admit(self, who: int, tokens: int) -> None:
        self.made += 1
        request_id = RequestId(f"r{self.made}")
        content = TokenContent((who % 2, 100 + self.made), (6,))
        prompt = TokenRun(content, 0, tokens)
        answer = self.engine.admit(request_id, prompt, first_chunk_tokens=max(1, tokens // 2), max_tokens=24)
        if answer.accepted:
            self.contents[request_id], self.lengths[request_id] = content, answer.scheduled_tokens

    def extend(self, request_id: RequestId, tokens: int) -> None:
        start = self.lengths[request_id]
        stop = min(24, start + tokens)
        if stop > start and self.engine.extend(request_id, TokenRun(self.contents[request_id], start, stop)):
            self.lengths[request_id] = stop

    def fork(self, parent: RequestId, tokens: int) -> None:
        del tokens
        self.made += 1
        child = RequestId(f"r{self.made}")
        if isinstance(self.engine, SupportsFork) and self.engine.fork(parent, child):
            self.contents[child] = self.contents[parent].forked(self.lengths[parent], 100 + self.made)
            self.lengths[child] = self.lengths[parent]

    def release(self, request_id: RequestId, tokens: int) -> None:
        del tokens
        self.engine.release(request_id, Release.PREEMPT)
        del self.lengths[request_id]


def run(engine: Engine, steps: list[list[tuple[str, int, int]]]) -> None:
    traffic, seen = Traffic(engine), Picture()
    (shot,) = engine.snapshot()
    seen.take(shot)
    for number, verbs in enumerate(steps):
        for verb, who, tokens in verbs:
            traffic.do(verb, who, tokens)
        engine.take_ops()
        (shot,) = engine.snapshot(shot.revision)
        assert not shot.is_full
        seen.take(shot)
        assert seen.lengths == traffic.lengths
        (shot,) = engine.snapshot()
        whole = Picture()
        whole.take(shot)
        assert seen == whole
        assert list(whole.lengths) == list(traffic.lengths), "oldest first"
        engine.done(number, traffic.lengths)


def open_small(name: str) -> Engine:
    return open_engine(name, EngineConfig(model_layout("tiny"), 4, 12))


@pytest.mark.parametrize("name", ENGINES)
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_changes_add_up_to_the_whole(name: str, steps: list[list[tuple[str, int, int]]]) -> None:
    run(open_small(name), steps)


@pytest.mark.parametrize("fault", ["changes-omit-cached", "changes-omit-freed"])
def test_a_change_left_out_is_seen(fault: str) -> None:
    one_life = [("admit", 0, 9)], [("extend", 0, 5)], [("release", 0, 1)]
    run(open_small("reference"), [list(step) for step in one_life])
    with pytest.raises(AssertionError):
        run(open_small(f"mutant:{fault}"), [list(step) for step in one_life])


@pytest.mark.parametrize("name", ENGINES)
def test_an_older_revision_is_answered_in_full(name: str) -> None:
    engine = open_small(name)
    (first,) = engine.snapshot()
    (second,) = engine.snapshot(first.revision)
    assert second.since == first.revision
    assert second.revision > first.revision
    assert engine.snapshot(first.revision)[0].is_full
    assert engine.snapshot(10_000)[0].is_full


@pytest.mark.parametrize("name", ENGINES)
def test_a_step_without_change_lists_lengths_only(name: str) -> None:
    engine = open_small(name)
    content = TokenContent((1,), ())
    engine.admit(RequestId("r1"), TokenRun(content, 0, 5), first_chunk_tokens=5, max_tokens=8)
    (shot,) = engine.snapshot()
    assert engine.extend(RequestId("r1"), TokenRun(content, 5, 6))
    (shot,) = engine.snapshot(shot.revision)
    assert shot.lengths.tolist() == [6]
    for listed in (shot.table_rows, shot.table_blocks, shot.free, shot.cached, shot.live):
        assert len(listed) == 0


def test_a_reader_sees_a_table_replaced_by_a_copy() -> None:
    engine = open_small("reference")
    assert isinstance(engine, SupportsFork)
    content = TokenContent((1,), ())
    engine.admit(RequestId("r1"), TokenRun(content, 0, 6), first_chunk_tokens=6)
    engine.fork(RequestId("r1"), RequestId("r2"))
    (shot,) = engine.snapshot()
    assert shot.ref_counts is not None
    assert shot.ref_counts.tolist() == [2, 2]
    engine.extend(RequestId("r1"), TokenRun(content, 6, 7))
    (shot,) = engine.snapshot(shot.revision)
    assert (shot.table_rows.tolist(), shot.table(0).tolist(), shot.live.tolist()) == ([0], [0, 2], [2])
    assert shot.ref_count_ids is not None
    assert shot.ref_counts is not None
    assert dict(zip(shot.ref_count_ids.tolist(), shot.ref_counts.tolist(), strict=True)) == {1: 1, 2: 1}


def test_snapshots_do_not_change_with_the_engine() -> None:
    engine = open_small("reference")
    content = TokenContent((1,), ())
    engine.admit(RequestId("r1"), TokenRun(content, 0, 6), first_chunk_tokens=6)
    (shot,) = engine.snapshot()
    kept = replace(
        shot, lengths=shot.lengths.copy(), table_blocks=shot.table_blocks.copy(), free=shot.free.copy()
    )
    engine.extend(RequestId("r1"), TokenRun(content, 6, 20))
    for name in ("lengths", "table_blocks", "free"):
        assert np.array_equal(getattr(shot, name), getattr(kept, name))
