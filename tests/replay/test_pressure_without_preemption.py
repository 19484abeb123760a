"""What a replay does where it may not do what it usually does: no preemption, a watermark that stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability, RefusalReason, Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.replay.batch import Ending
from kvsuite.replay.driver import Replay, replay
from kvsuite.replay.judged import judged_replay
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.trace.model import RequestId, Trace


class NeverPreempted(ReferenceEngine):
    """Claims no preemption, and says so when it is asked for one."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        claims = self._spec.capabilities - {Capability.PREEMPTION}
        self._spec = replace(self._spec, capabilities=claims)

    def release(self, request_id: RequestId, reason: Release) -> None:
        assert reason is not Release.PREEMPT
        super().release(request_id, reason)


class StrictCache(PagedCache):
    """Keeps its watermark with nothing running too, and refuses for good what cannot go beside it."""

    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        needed, available = total_blocks - len(hits), self.pool.available_blocks
        if needed + self.watermark_blocks <= available - self._promised_blocks:
            return None
        never = total_blocks + self.watermark_blocks > self.pool.usable_blocks
        return Shortfall(needed, self.pool.num_free, self.pool.num_cached, self._promised_blocks, never)


class Strict(ReferenceEngine):
    cache_type = StrictCache


class Timid(Strict):
    """Refuses one block more than its watermark for good."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.cache.watermark_blocks += 1


def growing(*lengths: tuple[int, int]) -> Trace:
    shape: dict[str, Any] = {"timestamp": 0}
    rows = [
        Row(request_id=f"r{k}", input_length=n, output_length=m, **shape) for k, (n, m) in enumerate(lengths)
    ]
    return trace_of(rows, TraceSource("by hand", "growing"), block_size=4)


def said(done: Replay) -> list[str]:
    return [str(violation) for violation in done.violations]


def test_whoever_cannot_grow_ends_where_nobody_can_be_preempted() -> None:
    """3 blocks of 4: two prompts of 4 tokens, of which the first takes the last block for its fifth."""
    engine = NeverPreempted(EngineConfig(model_layout("tiny"), 4, 3))
    done = replay(growing((4, 3), (4, 3)), engine, read_all=True)
    assert said(done) == [
        "progress at step 1 in pool device/g0/r0: r1 was refused growth from 4 to 5 tokens, and the engine "
        "does not claim PREEMPTION: whom it admits it must let finish; refuse at admission, or claim it"
    ]
    assert [outcome.ending for outcome in done.outcomes] == [Ending.FINISHED, Ending.REJECTED]
    assert done.timeline.pools[0].total("preempted") == 0
    assert done.timeline.pools[0].total("rejected") == 1


def test_where_there_is_room_nobody_misses_preemption() -> None:
    done = replay(growing((4, 3), (4, 3)), NeverPreempted(EngineConfig(model_layout("tiny"), 4, 4)))
    assert said(done) == []


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(
    ("engine", "tokens", "broken"),
    [
        (Strict, 8, []),  # 2 blocks, 2 kept back, 4 there
        (Strict, 9, []),  # 3 blocks can never go in
        (Timid, 8, ["progress"]),  # 2 blocks and the 2 that it says it keeps back are 4
        (ReferenceEngine, 16, []),  # waives its watermark with nothing running
    ],
)
def test_what_a_watermark_keeps_out_for_ever_may_be_refused_for_good(
    engine: type[ReferenceEngine], tokens: int, broken: list[str], judged: bool
) -> None:
    opened = engine(EngineConfig(model_layout("tiny"), 4, 4, watermark_blocks=2))
    trace = growing((tokens, 0))
    done = judged_replay(trace, opened) if judged else replay(trace, opened)
    assert sorted({v.invariant for v in done.violations if v.invariant != "endings"}) == broken
    refused = engine is Timid or tokens == 9
    assert done.outcomes[0].ending is (Ending.REJECTED if refused else Ending.FINISHED)
    assert (RefusalReason.NEVER_FITS in done.refusals) == refused
