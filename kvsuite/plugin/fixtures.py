"""What cases use: an engine, a trace, a replay that is judged, and a golden to hold it against.

Nothing here is to be overridden: an engine author registers an engine and runs the cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.plugin.golden_check import GoldenCheck
from kvsuite.plugin.notes import CALL_PASSED, notes_of
from kvsuite.plugin.options import SETTINGS
from kvsuite.plugin.replays import EngineOpener, Replayer
from kvsuite.plugin.selection import COLLECTED, Collected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.golden.store import GoldenStore
    from kvsuite.plugin.request_replays import RequestReplayer
    from kvsuite.replay.scene import Scene
    from kvsuite.trace.model import Trace


@pytest.fixture
def engine_name() -> str:
    """Name of the engine under test: one test an ``--engine``."""
    raise pytest.UsageError("engine_name is set by the plugin for tests that take it")


@pytest.fixture
def trace_name() -> str:
    """Name or path of the trace: one test a ``--kv-trace``."""
    raise pytest.UsageError("trace_name is set by the plugin for tests that take it")


@pytest.fixture
def trace(trace_name: str) -> Trace:
    """The trace called ``trace_name``."""
    from kvsuite.trace.load import load_trace

    return load_trace(trace_name)


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """``cpu`` or ``cuda:N``: where full slots live and kernels run."""
    return pytestconfig.stash[SETTINGS].device


@pytest.fixture
def open_engine(engine_name: str) -> EngineOpener:
    """Open the engine under test afresh: ``open_engine(block_size=16, num_blocks=64)``."""
    return EngineOpener(engine_name)


@pytest.fixture
def kv_replay(request: pytest.FixtureRequest, open_engine: EngineOpener, device: str) -> Iterator[Replayer]:
    """Replay a trace on a fresh engine and judge it: ``kv_replay(trace, block_size=16, num_blocks=64)``.

    **Raises:** `InvariantViolation` naming invariant, step and pool.
    """
    replayer = Replayer(request.node, open_engine, device)
    yield replayer
    replayer.close()


@pytest.fixture
def kv_requests(request: pytest.FixtureRequest, open_engine: EngineOpener) -> RequestReplayer:
    """Take a trace through a fresh request-driven engine and judge it: ``kv_requests(trace, num_blocks=64)``.

    **Raises:** `InvariantViolation` naming invariant, step and pool.
    """
    from kvsuite.plugin.request_replays import RequestReplayer

    notes = Replayer(request.node, open_engine, "cpu")
    return RequestReplayer(request.node, open_engine.engine_name, notes)


@pytest.fixture
def kv_scene(request: pytest.FixtureRequest, open_engine: EngineOpener) -> Iterator[Callable[..., Scene]]:
    """Play a scene on a fresh engine: ``scene = kv_scene(block_size=4, num_blocks=16)``.

    A case ends with ``scene.judge()``; one that passes and forgets to is an error.
    """
    scenes: list[Scene] = []

    def play(**config: Any) -> Scene:
        from kvsuite.replay.scene import Scene

        scenes.append(Scene(open_engine(**config)))
        return scenes[-1]

    yield play
    forgotten = sum(not scene.judged for scene in scenes)
    if forgotten and request.node.stash.get(CALL_PASSED, False):
        raise pytest.UsageError(f"{forgotten} of {len(scenes)} scenes were never judged: call scene.judge()")


@pytest.fixture
def golden(request: pytest.FixtureRequest, kv_replay: Replayer) -> Iterator[GoldenCheck]:
    """Hold the ledger of a replay against its golden: ``golden.check(replay, trace)``.

    **Raises:** `GoldenMismatch` where the engine differs, `GoldenError` where nothing can judge it.
    """
    check = GoldenCheck(request.node, kv_replay)
    yield check
    if request.node.stash.get(CALL_PASSED, False):
        check.refuse_superseded()


@pytest.fixture
def summary_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say a line in the last words of the run, if the case passes: ``summary_line("PASS: ...")``."""
    return notes_of(request.node).summary.append


@pytest.fixture(scope="session")
def collected(pytestconfig: pytest.Config) -> Collected:
    """What this session collected, for the case that asks whether the suite is complete."""
    return pytestconfig.stash[COLLECTED]


@pytest.fixture(scope="session")
def golden_store(pytestconfig: pytest.Config) -> GoldenStore:
    """The goldens of this session, to be read."""
    from kvsuite.golden.store import GoldenStore

    return GoldenStore(Path(pytestconfig.stash[SETTINGS].goldens))


@pytest.fixture(scope="session")
def engines_under_test(pytestconfig: pytest.Config) -> tuple[str, ...]:
    """Names that the engines under test give themselves: what their goldens' folders are called."""
    from kvsuite.plugin.subjects import subjects_of

    settings = pytestconfig.stash[SETTINGS]
    return tuple(spec.name for spec in subjects_of(pytestconfig).specs(settings.available))
