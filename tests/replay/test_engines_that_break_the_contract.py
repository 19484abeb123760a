"""Engines that answer with nonsense: each ends in a violation or an `EngineError` that names its fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.engine.contract import Admission, BlockCopy, Ops, Refusal, RefusalReason
from kvsuite.engine.reference import POOL, ReferenceEngine
from kvsuite.engine.snapshot import PoolKey
from kvsuite.errors import EngineError
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.driver import Replay

    Drive = Callable[..., Replay]

VERBS = ("admit", "extend", "fork", "release", "take_ops", "launched", "done", "snapshot")
R0 = RequestId("r0")


def answering(verb: str, answer: Any) -> type[ReferenceEngine]:
    """Return an engine that does the work of a verb and then answers what ``answer`` makes of the truth."""

    def say(self: ReferenceEngine, *arguments: Any, **options: Any) -> Any:
        true = getattr(ReferenceEngine, verb)(self, *arguments, **options)
        return answer(true) if callable(answer) else answer

    return type("Engine", (ReferenceEngine,), {verb: say})


@pytest.mark.parametrize("read_all", [False, True])
def test_the_reference_breaks_nothing_in_its_short_life(drive: Drive, read_all: bool) -> None:
    done = drive(ReferenceEngine, read_all=read_all)
    assert done.violations == ()
    assert len(done.fork_families) == 1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "crash", [KeyError("r1"), AssertionError(), SystemExit(0)], ids=["key", "assert", "exit"]
)
def test_a_crash_is_named_by_its_verb(verb: str, crash: BaseException, drive: Drive) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise crash

    expected = rf"engine 'reference' raised {type(crash).__name__} in {verb}"
    with pytest.raises(EngineError, match=expected) as raised:
        drive(type("Engine", (ReferenceEngine,), {verb: fail}))
    assert raised.value.__cause__ is crash


def test_a_crash_says_when_and_for_whom(drive: Drive) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ValueError("no more")

    with pytest.raises(EngineError, match=r"raised ValueError in extend of r0 at step 1: no more$"):
        drive(type("Engine", (ReferenceEngine,), {"extend": fail}))


def test_what_was_broken_before_a_crash_is_told_with_it(drive: Drive) -> None:
    """A fork that is granted and not made: the child is then extended, which no table can be."""
    said = r"broken before that: lengths at step 1 .*: r2 is shown with no tokens, expected 41"
    with pytest.raises(EngineError, match=said):
        drive(
            type("Engine", (ReferenceEngine,), {"fork": lambda *_: True, "extend": _extends_what_it_knows}),
            read_all=True,
        )


def _extends_what_it_knows(self: ReferenceEngine, request_id: RequestId, *arguments: Any, **o: Any) -> bool:
    known = request_id in self.cache.tables
    return ReferenceEngine.extend(self, request_id, *arguments, **o) if known else True


NO_ANSWERS: dict[str, tuple[str, Any, str]] = {
    "none": ("admit", None, "with None, expected an Admission"),
    "past the prompt": (
        "admit",
        lambda a: replace(a, scheduled_tokens=a.scheduled_tokens + 7),
        "hit_tokens <= scheduled_tokens <= 40, its prompt",
    ),
    "far past": ("admit", lambda a: replace(a, scheduled_tokens=10**12), "<= 40, its prompt"),
    "nothing": ("admit", lambda a: replace(a, scheduled_tokens=0), "1 scheduled or more"),
    "no number": ("admit", lambda a: replace(a, scheduled_tokens=None), "1 scheduled or more"),
    "float": ("admit", lambda a: replace(a, scheduled_tokens=40.0), "1 scheduled or more"),
    "fewer than no hits": ("admit", lambda a: replace(a, hit_tokens=-4), "0 <= hit_tokens"),
    "hits past all": ("admit", lambda a: replace(a, hit_tokens=10**9), "hit_tokens <= scheduled_tokens"),
    "text": ("admit", lambda a: replace(a, refusal="no"), "expected a Refusal"),
    "unknown pool": (
        "admit",
        Admission(refusal=Refusal(1, 0, 0, PoolKey(4), RefusalReason.NO_BLOCKS)),
        "expected a Refusal in blocks",
    ),
    "extend none": ("extend", None, r"extend of r0 at step 1 with None, expected True or False"),
    "extend five": ("extend", 5, "with 5, expected True or False"),
    "fork none": ("fork", None, "fork of r0 at step 0 with None, expected True or False"),
    "ops none": ("take_ops", None, "with None, expected an Ops"),
    "ops list": ("take_ops", lambda ops: replace(ops, copies=[]), "expected an Ops of three tuples"),
    "copy past the pool": ("take_ops", Ops((BlockCopy(POOL, 0, 16, 1, R0),)), "a BlockCopy within"),
    "copy before it": ("take_ops", Ops((BlockCopy(POOL, -1, 0, 1, R0),)), "a BlockCopy within"),
    "copy past a block": ("take_ops", Ops((BlockCopy(POOL, 0, 1, 17, R0),)), "a BlockCopy within"),
    "copy elsewhere": ("take_ops", Ops((BlockCopy(PoolKey(2), 0, 1, 1, R0),)), "a BlockCopy within"),
    "zero past the pool": ("take_ops", Ops(zeroed=((POOL, 16),)), "a block to zero"),
    "zero a number": ("take_ops", lambda ops: replace(ops, zeroed=(7,)), "a block to zero"),
    "snapshot none": ("snapshot", None, "with None, expected a tuple of PoolSnapshot"),
    "snapshot list": ("snapshot", list, "expected a tuple of PoolSnapshot"),
    "snapshot empty": ("snapshot", (), r"pools \[\], expected every pool of the spec"),
    "snapshot twice": ("snapshot", lambda shots: shots * 2, "every pool of the spec, in its order"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_an_answer_that_is_none_is_named(name: str, drive: Drive) -> None:
    verb, answer, says = NO_ANSWERS[name]
    with pytest.raises(EngineError, match=says):
        drive(answering(verb, answer))


def test_a_bool_of_numpy_is_an_answer(drive: Drive) -> None:
    assert drive(answering("extend", np.bool_)).violations == ()


@pytest.mark.parametrize("reason", [RefusalReason.NO_BLOCKS, RefusalReason.NEVER_FITS])
def test_an_engine_that_refuses_what_fits_makes_no_progress(reason: RefusalReason, drive: Drive) -> None:
    def admit(*arguments: Any, **options: Any) -> Admission:
        return Admission(refusal=Refusal(3, 16, 0, POOL, reason))

    done = drive(type("Engine", (ReferenceEngine,), {"admit": admit}))
    assert {violation.invariant for violation in done.violations} == {"progress"}


def test_an_engine_that_takes_what_it_refuses_is_seen(drive: Drive) -> None:
    refusal = Refusal(3, 16, 0, POOL, RefusalReason.NO_BLOCKS)
    done = drive(answering("admit", Admission(refusal=refusal)))
    assert {"lengths", "drain"} <= {violation.invariant for violation in done.violations}


def test_more_tokens_scheduled_than_asked_for_break_a_law(drive: Drive) -> None:
    """The first chunk asked for is at most 40 tokens; the engine takes the whole prompt whatever is asked."""

    def admit(self: ReferenceEngine, request_id: RequestId, prompt: Any, **options: Any) -> Admission:
        return ReferenceEngine.admit(
            self, request_id, prompt, **{**options, "first_chunk_tokens": len(prompt)}
        )

    done = drive(type("Engine", (ReferenceEngine,), {"admit": admit}), max_step_tokens=48)
    assert {violation.invariant for violation in done.violations} == {"hits"}
