"""Whatever an engine does in its host, the case fails with its name, and the next engine opens."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import BlockError, ConfigError, EngineError
from kvsuite.replay.driver import replay
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.hosted.engine import HostedEngine

DEATHS = {
    "Exits": ("admit", "it ended with exit status 7"),
    "Segfaults": (
        "extend",
        r"it was killed by signal 11 \(SIGSEGV\)(?s:.*)about to touch address 0(?s:.*)_segfault",
    ),
    "IsKilled": ("done", r"it was killed by signal 9 \(SIGKILL\)"),
    "LeavesAChild": ("launched", "it ended with exit status 9"),
}


def _live(engine: HostedEngine, prompt_of: Callable[[int, int], Any]) -> None:
    """Take one request from its admission to its end."""
    engine.admit("a", prompt_of(1, 5), first_chunk_tokens=5)  # type: ignore[arg-type]
    run = prompt_of(1, 6)
    engine.extend("a", type(run)(run.content, 5, 6))  # type: ignore[arg-type]
    engine.take_ops()
    engine.launched(0)
    engine.done(0, {"a": 6})  # type: ignore[dict-item]


@pytest.mark.parametrize("name", DEATHS)
def test_a_death_is_told_by_verb_and_cause(
    name: str, hosted: Callable[..., HostedEngine], prompt_of: Callable[[int, int], Any]
) -> None:
    verb, says = DEATHS[name]
    engine = hosted(name)
    with pytest.raises(EngineError, match=f"ask engine 'reference' for {verb}: {says}"):
        _live(engine, prompt_of)
    with pytest.raises(
        EngineError, match=f"cannot ask engine 'reference' for snapshot: .*failed to .* {verb}"
    ):
        engine.snapshot()
    fresh = hosted("reference")
    _live(fresh, prompt_of)
    assert fresh.host.pid != engine.host.pid


@pytest.mark.parametrize("name", DEATHS)
def test_a_death_during_a_replay_is_told(
    name: str, hosted: Callable[..., HostedEngine], config_for: Callable[..., Any]
) -> None:
    trace = synthetic("boundary").head(4)
    engine = hosted(name, config_for(trace, block_size=16))
    with pytest.raises(EngineError, match=f"replay on engine 'reference': {DEATHS[name][1]}"):
        replay(trace, engine)
    assert not replay(trace, hosted("reference", config_for(trace, block_size=16))).violations


def test_an_engine_that_hangs_is_ended(
    hosted: Callable[..., HostedEngine],
    prompt_of: Callable[[int, int], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = hosted("Hangs")
    monkeypatch.setenv("KVSUITE_HOST_TIMEOUT_S", "0.5")
    says = r"for take_ops: gave no answer within 0.5 s \(KVSUITE_HOST_TIMEOUT_S(?s:.*)a lock that nobody"
    with pytest.raises(EngineError, match=says):
        _live(engine, prompt_of)
    monkeypatch.delenv("KVSUITE_HOST_TIMEOUT_S")
    _live(hosted("reference"), prompt_of)


def test_an_interrupted_question_leaves_no_answer_behind(
    hosted: Callable[..., HostedEngine], prompt_of: Callable[[int, int], Any]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    engine = hosted("Hangs")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            _live(engine, prompt_of)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(EngineError, match="its process is gone, a question to it was interrupted"):
        engine.snapshot()
    _live(hosted("reference"), prompt_of)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(
    text: str, hosted: Callable[..., HostedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = hosted("reference")
    monkeypatch.setenv("KVSUITE_HOST_TIMEOUT_S", text)
    with pytest.raises(ConfigError, match=f"KVSUITE_HOST_TIMEOUT_S is '{text}', expected seconds above 0"):
        engine.snapshot()
    monkeypatch.delenv("KVSUITE_HOST_TIMEOUT_S")
    assert len(engine.snapshot()[0].free) == 64


def test_megabytes_of_print_disturb_nobody(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any]
) -> None:
    trace = synthetic("boundary").head(3)
    done = replay(trace, hosted("Talks", config_for(trace, block_size=16)))
    assert done.violations == ()
    assert len(done.timeline.steps) > 3


ERRORS: dict[str, tuple[type[EngineError], str]] = {
    "RaisesValueError": (
        EngineError,
        r"engine 'reference' raised ValueError in extend of a: 3 blocks are not enough(?s:.*)engines.py"
        r"(?s:.*)in _no_room",
    ),
    "RaisesAssertion": (EngineError, "engine 'reference' raised AssertionError in done"),
    "RaisesSystemExit": (EngineError, "engine 'reference' raised SystemExit in launched: 3"),
    "AnswersWithALambda": (EngineError, "holds what cannot be sent"),
    "AnswersWithItsOwn": (
        EngineError,
        "holds what cannot be sent|engines.Foreign is no part of the contract",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_comes_back_by_name(
    name: str, hosted: Callable[..., HostedEngine], prompt_of: Callable[[int, int], Any]
) -> None:
    engine = hosted(name)
    kind, says = ERRORS[name]
    with pytest.raises(kind, match=says) as raised:
        _live(engine, prompt_of)
    assert type(raised.value) is kind
    assert engine.host.lives
    assert engine.spec.name == "reference"


def test_an_error_of_kvsuite_keeps_its_class(
    hosted: Callable[..., HostedEngine],
    prompt_of: Callable[[int, int], Any],
    config_for: Callable[..., EngineConfig],
) -> None:
    engine = hosted("RaisesBlockError")
    _live(engine, prompt_of)
    with pytest.raises(BlockError, match=r"^block 3 is freed twice$"):
        engine.release("a", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^block size 4 is none of 16 and 32$"):
        hosted("refuses")
    with pytest.raises(ConfigError, match="unknown option 'x'"):
        hosted("reference", replace(config_for(), options={"x": 1}))


def test_an_engine_that_cannot_be_opened_says_why(hosted: Callable[..., HostedEngine]) -> None:
    with pytest.raises(EngineError, match=r"raised KeyError when it was opened(?s:.*)in breaks"):
        hosted("breaks")
    with pytest.raises(EngineError, match=r"cannot be loaded: AttributeError: .*'Missing'"):
        hosted("Missing")


def test_the_same_failure_reads_the_same_on_both_sides(
    hosted: Callable[..., HostedEngine], config_for: Callable[..., Any]
) -> None:
    """The guard that names a crash by verb, request and step runs beside the engine."""
    trace = synthetic("boundary").head(4)
    with pytest.raises(
        EngineError, match=r"^engine 'reference' raised ValueError in extend of \S+ at step \d+: 3 blocks"
    ):
        replay(trace, hosted("RaisesValueError", config_for(trace, block_size=16)))
    with pytest.raises(
        EngineError, match=r"answered admit of \S+ at step 0 with None, expected an Admission"
    ):
        replay(trace, hosted("AnswersNone", config_for(trace, block_size=16)))


def test_an_interpreter_that_is_none_is_named(hosted: Callable[..., HostedEngine], tmp_path: Path) -> None:
    missing = tmp_path / "bin" / "python"
    with pytest.raises(EngineError, match=r"cannot start .*bin/python: No such file"):
        hosted("reference", python=missing)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho numpy is not here >&2\nexit 5\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match=r"failed to start: it ended with exit status 5(?s:.*)numpy is not"):
        hosted("reference", python=broken)
