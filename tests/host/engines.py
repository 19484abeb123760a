"""Engines that go wrong in their host, opened there as ``FILE.py:NAME``; none is imported by a test."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import BlockError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig


def _failing(verb: str, fail: Callable[[], Any]) -> type[ReferenceEngine]:
    return type("Failing", (ReferenceEngine,), {verb: lambda self, *arguments, **options: fail()})


def _raise(error: BaseException) -> Any:
    raise error


def _segfault() -> None:
    print("about to touch address 0", file=sys.stderr)
    ctypes.string_at(0)


def _hang() -> None:
    print("waiting for a lock that nobody gives back")
    while True:
        time.sleep(0.01)


def _no_room() -> None:
    free_blocks = 3
    raise ValueError(f"{free_blocks} blocks are not enough")


Exits = _failing("admit", lambda: os._exit(7))
Segfaults = _failing("extend", _segfault)
IsKilled = _failing("done", lambda: os.kill(os.getpid(), signal.SIGKILL))
Hangs = _failing("take_ops", _hang)
RaisesValueError = _failing("extend", _no_room)
RaisesAssertion = _failing("done", lambda: _raise(AssertionError()))
RaisesSystemExit = _failing("launched", lambda: _raise(SystemExit(3)))
RaisesBlockError = _failing("release", lambda: _raise(BlockError("block 3 is freed twice")))
AnswersNone = _failing("admit", lambda: None)
AnswersWithALambda = _failing("take_ops", lambda: lambda: None)


class Foreign:
    """An object of the engine's own."""


AnswersWithItsOwn = _failing("admit", Foreign)


def refuses(config: EngineConfig) -> ReferenceEngine:
    """Raise what an engine raises that cannot be what is asked for."""
    raise ConfigError(f"block size {config.block_size} is none of 16 and 32")


def breaks(config: EngineConfig) -> ReferenceEngine:
    """Fail as a package with a fault does."""
    raise KeyError("kv_cache_dtype")


class Talks(ReferenceEngine):
    """Prints a megabyte to each of its outputs in each step."""

    def launched(self, step: int) -> None:
        """Print."""
        for stream in (sys.stdout, sys.stderr):
            print(f"step {step} " + "x" * 2**20, file=stream)
        super().launched(step)


class LeavesAChild(ReferenceEngine):
    """Starts a process that holds whatever it inherits, and dies."""

    def launched(self, step: int) -> None:
        """Die."""
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
        os._exit(9)


class ShowsItsPlace(ReferenceEngine):
    """Says in its provenance where it runs."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        place = {
            "pid": str(os.getpid()),
            "path": os.pathsep.join(sys.path),
            "variables": " ".join(sorted(name for name in os.environ if name.startswith("PYTHON"))),
        }
        self._spec = replace(self._spec, provenance=place)


class AnswersInNumPy(ReferenceEngine):
    """Answers with truth values of NumPy, which the contract allows."""

    def extend(self, *arguments: Any, **options: Any) -> Any:
        """Pass on."""
        return np.bool_(super().extend(*arguments, **options))


class ForksWithoutTable(ReferenceEngine):
    """Grants forks that it does not make, so that the child has no table when it grows."""

    def fork(self, parent_id: Any, child_id: Any) -> bool:
        """Do nothing."""
        return True

    def extend(self, request_id: Any, *arguments: Any, **options: Any) -> bool:
        """Pass on what is known."""
        return request_id not in self.cache.tables or super().extend(request_id, *arguments, **options)
