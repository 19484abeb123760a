"""One allocation refused: counted, asked of the engine itself, and told to the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Release
from kvsuite.errors import InvariantViolation
from kvsuite.replay.refusing import RefusingEngine
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Admission, Engine

A, B = RequestId("a"), RequestId("b")


def run(key: int, start: int, stop: int) -> TokenRun:
    return TokenRun(TokenContent((key,), ()), start, stop)


def admit(engine: Engine, request_id: RequestId, key: int, tokens: int) -> Admission:
    return engine.admit(request_id, run(key, 0, tokens), first_chunk_tokens=tokens)


def test_the_asked_for_call_is_refused_and_no_other(make_engine: Callable[..., Engine]) -> None:
    engine = RefusingEngine(make_engine(), refuse_at=1)
    assert admit(engine, A, 1, 5).accepted
    assert not admit(engine, B, 2, 5).accepted
    assert admit(engine, B, 2, 5).accepted
    assert engine.extend(A, run(1, 5, 6))
    assert (engine.calls, engine.refused, engine.violations) == (4, "admit b 5", [])


def test_growth_is_refused_too(make_engine: Callable[..., Engine]) -> None:
    engine = RefusingEngine(make_engine(), refuse_at=1)
    admit(engine, A, 1, 5)
    assert not engine.extend(A, run(1, 5, 6))
    assert engine.extend(A, run(1, 5, 6))
    assert engine.refused == "extend a by 1"


def test_nobody_is_kept_out_of_an_empty_engine(make_engine: Callable[..., Engine]) -> None:
    """No scheduler waits for room where nothing runs: the refusal is played inside, and then granted."""
    engine = RefusingEngine(make_engine("mutant:refusal-evicts", num_blocks=4), refuse_at=1)
    admit(engine, A, 1, 5)
    engine.done(0, {A: 5})
    engine.release(A, Release.FINISH)
    assert admit(engine, B, 2, 5).accepted
    (found,) = engine.violations
    assert found.invariant == "atomic"
    assert "call 1 (admit b 5) was refused 17 tokens and changed free_list, cached" in found.message


def test_an_engine_that_grants_what_cannot_be_is_stopped(make_engine: Callable[..., Engine]) -> None:
    engine = RefusingEngine(make_engine("mutant:growth-without-blocks"), refuse_at=1)
    admit(engine, A, 1, 5)
    with pytest.raises(
        InvariantViolation, match=r"promise .* call 1 \(extend a by 1\) was granted 65 tokens"
    ):
        engine.extend(A, run(1, 5, 6))


def test_a_contiguous_control_is_only_said_to_refuse(make_engine: Callable[..., Engine]) -> None:
    """It would raise on a growth past its reservation, so it is not asked."""
    engine = RefusingEngine(make_engine("contiguous-max", max_model_tokens=16), refuse_at=1)
    admit(engine, A, 1, 5)
    assert not engine.extend(A, run(1, 5, 6))
    assert engine.violations == []
