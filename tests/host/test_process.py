"""One process for each interpreter, used again, seen by nobody else, and gone with its parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvsuite
from kvsuite.engine.contract import SupportsFork, SupportsMemory, SupportsTransfers
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.hosted.engine import HostedEngine

PATIENCE_S = 20.0
PARENT = """
import os, sys, time
from pathlib import Path
from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.hosted.engine import open_hosted
factory, verb = sys.argv[1:]
engine = open_hosted(Path(sys.executable), factory, EngineConfig(model_layout("tiny"), 4, 16))
print(engine.host.pid, flush=True)
{then}
"""


def _parent(then: str, factory: str = "reference", verb: str = "") -> subprocess.Popen[str]:
    """Start a process that opens an engine, says the pid of its host, and goes on with ``then``."""
    folder = str(Path(kvsuite.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then), factory, verb],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folder},
    )


def _runs(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _ends(pid: int) -> bool:
    until_s = time.monotonic() + PATIENCE_S
    while _runs(pid) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not _runs(pid)


def test_a_process_is_used_again(hosted: Callable[..., HostedEngine]) -> None:
    first = hosted("ShowsItsPlace")
    second = hosted("ShowsItsPlace")
    assert first.spec.provenance["pid"] == second.spec.provenance["pid"] == str(first.host.pid)
    assert first.host.pid != os.getpid()


def test_several_engines_are_open_at_once(
    hosted: Callable[..., HostedEngine], prompt_of: Callable[[int, int], Any]
) -> None:
    """Nine tokens in blocks of four take three of 64 blocks, of the engine that was asked only."""
    one, other = hosted("reference"), hosted("reference")
    one.admit("a", prompt_of(1, 9), first_chunk_tokens=9)  # type: ignore[arg-type]
    assert [len(engine.snapshot()[0].free) for engine in (one, other)] == [61, 64]


def test_an_engine_ends_with_its_object(hosted: Callable[..., HostedEngine]) -> None:
    engine = hosted("reference")
    host, key = engine.host, engine._line.key
    gc.disable()
    try:
        del engine
        other = hosted("reference")
    finally:
        gc.enable()
    assert other.host is host
    with pytest.raises(EngineError, match="no such engine is open here"):
        host.ask("look", "ask", key, "snapshot", (), {})


def test_verbs_of_capabilities_are_those_of_the_engine(hosted: Callable[..., HostedEngine]) -> None:
    reference, tiers = hosted("reference"), hosted("reference-tiers")
    assert isinstance(reference, SupportsFork)
    assert not isinstance(reference, SupportsTransfers)
    assert not isinstance(reference, SupportsMemory)
    assert isinstance(tiers, SupportsTransfers)


def test_what_the_parent_imports_from_is_out_of_sight(
    hosted: Callable[..., HostedEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME_OF_NOBODY", "x")
    hosted("reference").host.end()
    place = hosted("ShowsItsPlace").spec.provenance
    assert str(tmp_path) not in place["path"].split(os.pathsep)
    assert "" not in place["path"].split(os.pathsep)
    kept = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    own = {"PYTHONHASHSEED", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"}
    assert own <= set(place["variables"].split()) <= own | kept


def test_an_ended_process_is_replaced(hosted: Callable[..., HostedEngine]) -> None:
    engine = hosted("reference")
    engine.host.end()
    with pytest.raises(EngineError, match="its process is gone, it was ended; open the engine again"):
        engine.snapshot()
    assert hosted("reference").host.pid != engine.host.pid


def test_a_process_killed_while_idle_is_replaced(hosted: Callable[..., HostedEngine]) -> None:
    engine = hosted("reference")
    os.kill(engine.host.pid, signal.SIGKILL)
    assert _ends(engine.host.pid)
    assert hosted("reference").host.pid != engine.host.pid


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a verb"])
def test_a_host_goes_with_a_parent_that_is_killed(busy: bool) -> None:
    hangs = f"{Path(__file__).with_name('engines.py')}:Hangs"
    then = "engine.take_ops()" if busy else "time.sleep(600)"
    with _parent(then, hangs if busy else "reference") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if busy:
            time.sleep(0.2)
        assert _runs(pid)
        parent.kill()
        assert _ends(pid)


def test_a_host_goes_with_a_parent_that_ends() -> None:
    with _parent("pass") as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.wait(PATIENCE_S) == 0
        assert _ends(pid)


def test_a_fork_of_the_parent_leaves_the_host_alone() -> None:
    """The fork is told to open its own, gets one, ends, and the host of the parent still answers."""
    then = """
from kvsuite.errors import EngineError
child = os.fork()
if child == 0:
    try:
        engine.snapshot()
    except EngineError as error:
        print("belongs to another one" in str(error), flush=True)
    own = open_hosted(Path(sys.executable), factory, EngineConfig(model_layout("tiny"), 4, 16))
    print(own.host.pid != engine.host.pid, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(len(engine.snapshot()[0].free), flush=True)
"""
    with _parent(then) as parent:
        said, _ = parent.communicate(timeout=PATIENCE_S)
    assert said.split()[1:] == ["True", "True", "16"]
    assert parent.returncode == 0
