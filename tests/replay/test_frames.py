"""What the engine's side of a replay hands over, and that it survives the way to another process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.hosted.wire import dumps, loads
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import EngineError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.replay.frame import Broken, Check, Closing, Forked, Frame, Leaving, Opening
from kvsuite.replay.host.packing import Packer, unpacked
from kvsuite.replay.recorder import Recorder
from kvsuite.replay.steps import Stepper
from kvsuite.replay.worker import ProbeWorker
from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kvsuite.engine.contract import Engine
    from kvsuite.replay.frame import Part
    from kvsuite.trace.model import Trace

    MakeTrace = Callable[..., Trace]
    MakeEngine = Callable[..., Engine]

REUSED = ("table_blocks", "free", "cached", "live", "ref_count_ids", "ref_counts")
CONFIG = SchedulerConfig(max_sequences=16, max_step_tokens=64)


def parts_of(trace: Trace, engine: Engine, *, read_all: bool = False) -> list[Part]:
    return list(Stepper(trace, engine, CONFIG, read_all=read_all).parts())


@pytest.fixture
def forked(make_trace: MakeTrace) -> Trace:
    """A prompt of 5 with two answers, and a child of the prompt with one of its own."""
    child = {"prompt_tokens": 5, "output_tokens": 1, "parent": 0, "fork_kind": ForkKind.SAMPLE, "fork_at": 5}
    return make_trace({"prompt_tokens": 5, "output_tokens": 2}, child)


def test_one_frame_a_step_between_opening_and_closing(forked: Trace, make_engine: MakeEngine) -> None:
    """Prompt at step 0, answers at 1 and 2; the full snapshot is due at step 0 only."""
    parts = parts_of(forked, make_engine())
    assert [type(part) for part in parts] == [Opening, Frame, Check, Frame, Frame, Closing]
    frames = [part for part in parts if isinstance(part, Frame)]
    assert [frame.step for frame in frames] == [0, 1, 2]
    assert [frame.request_ids for frame in frames] == [["r0"], ["r0", "r1"], ["r0"]]
    assert [frame.lengths for frame in frames] == [[5], [6, 6], [7]]
    assert [[(w.sequence.request_id, w.start, w.stop) for w in frame.writes] for frame in frames] == [
        [("r0", 0, 5)],
        [("r0", 5, 6), ("r1", 5, 6)],
        [("r0", 6, 7)],
    ]
    assert [frame.memory_due for frame in frames] == [True, False, False]


def test_what_ends_a_step_stands_at_the_head_of_the_next_part(forked: Trace, make_engine: MakeEngine) -> None:
    """The child comes after step 0 with 5 tokens and ends after step 1 with 6, the parent after 2 with 7."""
    parts = parts_of(forked, make_engine())
    since = [part.since for part in parts if isinstance(part, Frame | Closing)]
    told = [[_event(event) for event in events.events] for events in since]
    assert told == [[], [("fork", "r0", "r1", 5)], [("leave", "r1", 1, 6)], [("leave", "r0", 2, 7)]]
    assert [one.after and one.after.counts for one in since] == [
        None,
        {"forked": 1},
        {"finished": 1},
        {"finished": 1},
    ]
    assert [one.ended for one in since] == [0, 0, 1, 2]


def _event(event: Leaving | Forked) -> tuple[Any, ...]:
    if isinstance(event, Forked):
        return "fork", event.parent_id, event.child.request_id, event.tokens
    return "leave", event.sequence.request_id, event.step, event.final_tokens


def test_a_sequence_that_gives_way_has_no_final_length(
    make_trace: MakeTrace, make_engine: MakeEngine
) -> None:
    """Two prompts of 8 fill four blocks of 4; the first answer of the older one costs the younger its place.

    The older one has its four answers after steps 1 to 4, the younger comes back at 5 and answers at 6 to 9.
    """
    request = {"prompt_tokens": 8, "output_tokens": 4}
    parts = parts_of(make_trace(request, request), make_engine(num_blocks=4))
    events = [
        _event(event) for part in parts if isinstance(part, Frame | Closing) for event in part.since.events
    ]
    assert events == [("leave", "r1", 1, None), ("leave", "r0", 4, 12), ("leave", "r1", 9, 12)]


def test_every_snapshot_is_full_where_every_token_is_read(forked: Trace, make_engine: MakeEngine) -> None:
    parts = parts_of(forked, make_engine(), read_all=True)
    assert not any(isinstance(part, Check) for part in parts)
    frames = [part for part in parts if isinstance(part, Frame)]
    assert all(frame.snapshots[0].is_full and frame.memory_due for frame in frames)


def test_a_claim_of_memory_comes_after_its_frame(forked: Trace, make_engine: MakeEngine) -> None:
    parts = parts_of(forked, make_engine("reference-observed"), read_all=True)
    kinds = [type(part) for part in parts]
    assert kinds == [Opening, Frame, Check, Frame, Check, Frame, Check, Closing]
    assert all(part.full is None and part.claim is not None for part in parts if isinstance(part, Check))


@pytest.mark.parametrize("verb", ["done", "release", "take_ops", "snapshot"])
def test_a_failure_is_preceded_by_what_happened_until_then(forked: Trace, verb: str) -> None:
    calls = []

    def fail(self: ReferenceEngine, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError("no more")
        return getattr(ReferenceEngine, verb)(self, *arguments, **options)

    engine = type("Engine", (ReferenceEngine,), {verb: fail})(EngineConfig(model_layout("tiny"), 4, 16))
    parts: list[Part] = []
    with pytest.raises(EngineError, match=f"raised ValueError in {verb}"):
        parts.extend(Stepper(forked, engine, CONFIG, read_all=False).parts())  # keeps what came before
    last = parts[-1]
    assert isinstance(last, Broken)
    told = [_event(event) for event in last.since.events]
    expected = {
        "done": [],
        "release": [("leave", "r0", 2, 7)],
        "take_ops": [("fork", "r0", "r1", 5)],
        "snapshot": [],
    }
    assert told == expected[verb]


@pytest.mark.parametrize("read_all", [False, True])
@pytest.mark.parametrize("engine", ["reference", "reference-tiers", "reference-window", "reference-groups"])
def test_packed_parts_come_to_the_same_replay(
    engine: str, read_all: bool, short_life: Trace, make_engine: MakeEngine
) -> None:
    def travelled() -> Generator[Any]:
        packer = Packer()
        for part in Stepper(short_life, make_engine(engine), CONFIG, read_all=read_all).parts():
            yield loads(dumps(packer.pack(part)))

    spec = make_engine(engine).spec
    recorder = Recorder(spec, ProbeWorker(spec.pools), read_all=read_all)
    for part in unpacked(short_life, travelled()):
        recorder.take(part)
    there = recorder.result(CONFIG)
    here = replay(short_life, make_engine(engine), scheduler=CONFIG, read_all=read_all)
    assert there.outcomes == here.outcomes
    assert there.content == here.content
    assert there.violations == here.violations
    assert there.final_lengths.tolist() == here.final_lengths.tolist()
    for one, other in zip(there.timeline.pools, here.timeline.pools, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)


def test_names_are_told_once(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """Four steps of one sequence: its name travels with the first of them."""
    trace = make_trace({"prompt_tokens": 5, "output_tokens": 3})
    packer = Packer()
    packed = [packer.pack(part) for part in parts_of(trace, make_engine())]
    frames = [part for part in packed if part[0] == "Frame"]
    assert [b"r0" in dumps(part[5]) for part in frames] == [True, False, False, False]
    assert [part[6] for part in frames] == [["r0"], None, None, None]


def test_an_engine_may_use_its_arrays_again(short_life: Trace) -> None:
    """The arrays of a snapshot hold until the next one is asked for: parts are consumed one at a time."""

    class Reuses(ReferenceEngine):
        last: Any = None

        def snapshot(self, since: int | None = None) -> Any:
            if self.last is not None:
                for name in REUSED:
                    getattr(self.last, name)[:] = -1
            (shot,) = super().snapshot(since)
            self.last = replace(shot, **{name: getattr(shot, name).copy() for name in REUSED})
            return (self.last,)

    config = EngineConfig(model_layout("tiny"), 16, 16)
    done = replay(short_life, Reuses(config), scheduler=CONFIG)
    assert done.violations == ()
    plain = replay(short_life, ReferenceEngine(config), scheduler=CONFIG)
    np.testing.assert_array_equal(done.timeline.pools[0].rows, plain.timeline.pools[0].rows)
