"""Content at the engine's own indices: what is written and read where it claims SLOTS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.errors import EngineError
from kvsuite.replay.driver import Replay, replay
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId

    Slots = tuple[Int64Array, ...]


def play(engine_type: type[GroupsEngine], *, read_all: bool = True, windowed: bool = True) -> Replay:
    """Two prompts, 7 and 18 tokens, with 24 answers each; blocks of 4 and, with a window of 16, of 8."""
    shape: dict[str, Any] = {"timestamp": 0, "output_length": 24}
    rows = [Row(request_id=f"r{tokens}", input_length=tokens, **shape) for tokens in (7, 18)]
    trace = trace_of(rows, TraceSource("by hand", "indices"), block_size=4)
    layout = model_layout("tiny")
    config = EngineConfig(layout if windowed else layout.with_(num_layers=1), 4, 64)
    return replay(trace, engine_type(config), read_all=read_all)


def reading(change: Callable[[Int64Array], Int64Array], group: int) -> type[GroupsEngine]:
    class Changed(GroupsEngine):
        def read_slots(self, request_id: RequestId) -> Slots:
            slots = super().read_slots(request_id)
            return tuple(change(s) if at == group else s for at, s in enumerate(slots))

    return Changed


def writing(change: Callable[[Int64Array], Int64Array], group: int) -> type[GroupsEngine]:
    class Changed(GroupsEngine):
        def write_slots(self, request_id: RequestId) -> Slots:
            slots = super().write_slots(request_id)
            return tuple(change(s) if at == group else s for at, s in enumerate(slots))

    return Changed


def said(done: Replay) -> list[str]:
    return [str(violation) for violation in done.violations]


@pytest.mark.parametrize("read_all", [False, True])
def test_the_engine_s_own_indices_hold_what_was_written(read_all: bool) -> None:
    done = play(GroupsEngine, read_all=read_all)
    assert done.spec.claims(Capability.SLOTS)
    assert said(done) == []
    assert done.content.tokens_written == 25 + 2 * 24


@pytest.mark.parametrize("read_all", [False, True])
def test_a_window_that_reads_past_its_newest_token_reads_another_s(read_all: bool) -> None:
    """Every index list is one token old: as many slots as the window needs, each its neighbour's."""
    done = play(reading(lambda slots: slots[:-1], group=1), read_all=read_all)
    assert {violation.invariant for violation in done.violations} == {"content"}
    assert any("does not hold what was written" in line and "device/g1" in line for line in said(done))


@pytest.mark.parametrize("read_all", [False, True])
def test_full_attention_that_misses_its_newest_token_is_one_slot_short(read_all: bool) -> None:
    first = said(play(reading(lambda slots: slots[:-1], group=0), read_all=read_all))[0]
    assert first == (
        "content at step 0 in pool device/g0/r0: read_slots of r7 of 7 tokens gives 6 slots, expected 7 to 7"
    )


def test_a_slot_outside_of_its_pool_is_named() -> None:
    first = said(play(reading(lambda slots: slots + 64 * 4, group=0)))[0]
    assert "read_slots of r7 of 7 tokens gives slot 256, the pool has 0..255" in first


@pytest.mark.parametrize("read_all", [False, True])
def test_tokens_written_to_one_slot_are_lost(read_all: bool) -> None:
    done = play(writing(lambda slots: np.repeat(slots[:1], len(slots)), group=0), read_all=read_all)
    assert {violation.invariant for violation in done.violations} == {"content"}


def test_too_few_indices_to_write_are_named() -> None:
    first = said(play(writing(lambda slots: slots[1:], group=0)))[0]
    assert "write_slots of r7, 7 tokens longer, gives 6 slots, expected 7 to 7" in first


@pytest.mark.parametrize("verb", ["read_slots", "write_slots"])
def test_indices_of_another_form_are_no_answer(verb: str) -> None:
    def say(self: GroupsEngine, request_id: RequestId) -> object:
        return getattr(GroupsEngine, verb)(self, request_id)[0].tolist()

    with pytest.raises(EngineError, match=rf"answered {verb} of r\d+ at step 0 with .* 2 arrays int64\[n\]"):
        play(type("Odd", (GroupsEngine,), {verb: say}))
