"""A process that holds engines, in an interpreter of their own, and everything that can go wrong with it.

Each process of the suite has one for each interpreter, started when it is first needed and used again from
case to case. Whatever an engine prints goes to a file whose end is quoted when the process fails.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any, NoReturn

from kvsuite import errors
from kvsuite.engine.hosted.start import started
from kvsuite.engine.hosted.wire import ERROR, PART, Channel, dumps, loads
from kvsuite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from kvsuite.trace.model import Trace

TIMEOUT_VARIABLE = "KVSUITE_HOST_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 120.0
_SHOWN_LINES = 24
_SHOWN_BYTES = 4096
_GRACE_S = 2.0


class HostProcess:
    """One process in another interpreter, from its start to its end.

    **Raises:** `EngineError` in every method, once the process has failed to answer.
    """

    def __init__(self, python: Path) -> None:
        self.python = python
        self.owner = os.getpid()
        self._dropped: list[int] = []
        self._next_key = 0
        self._trace: Trace | None = None
        self._streams = False
        self._ending: str | None = None
        self._last_words = ""
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (open as long as the process)
        there_reads, here_writes = os.pipe()
        here_reads, there_writes = os.pipe()
        try:
            self._process = started(python, there_reads, there_writes, self._output)
        except OSError as error:
            os.close(here_reads)
            os.close(here_writes)
            self._output.close()
            raise EngineError(
                f"cannot start {python}: {error.strerror}; expected the interpreter of an environment"
            ) from error
        finally:
            os.close(there_reads)
            os.close(there_writes)
        self._channel = Channel(here_reads, here_writes)
        self.ask("start", "ping")

    @property
    def lives(self) -> bool:
        """Whether it can still be asked."""
        return self._ending is None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, said: str, verb: str, *arguments: Any) -> Any:
        """Return the answer to one question; ``said`` names it in errors."""
        self._send(said, verb, *arguments)
        return self._value(said, self._receive(said))

    def stream(self, said: str, verb: str, *arguments: Any) -> Generator[Any]:
        """Yield the answers to one question; closing it before the last one tells the process to stop."""
        self._send(said, verb, *arguments)
        self._streams = True
        try:
            while (answer := self._receive(said)).startswith(PART):
                yield self._value(said, answer)
            self._streams = False
        finally:
            if self._streams:
                self._stop(said)
        self._value(said, answer)

    def new_key(self) -> int:
        """Return a number for an engine that is to be opened; what was printed before is forgotten."""
        self._next_key += 1
        if self.lives:
            self._output.truncate(0)
        return self._next_key

    def drop(self, key: int) -> None:
        """Let an engine go, with the next question that is asked."""
        self._dropped.append(key)

    def know(self, trace: Trace) -> None:
        """Send a trace, unless it is the one sent last."""
        if self._trace is not trace:
            self.ask("hand over a trace", "trace", trace)
            self._trace = trace

    def end(self) -> None:
        """End the process, by itself if it will."""
        if self._ending is None:
            self._finish("it was ended", grace_s=_GRACE_S)

    def _send(self, said: str, verb: str, *arguments: Any) -> None:
        if self._ending is not None:
            raise EngineError(f"cannot {said}: its process is gone, {self._ending}; open the engine again")
        if self.owner != os.getpid():
            raise EngineError(f"cannot {said}: its process belongs to another one; open the engine here")
        if self._streams:
            raise EngineError(f"cannot {said}: a replay in the same process is under way; finish it first")
        deadline_s = self._deadline_s()
        dropped, self._dropped = self._dropped, []
        try:
            message = dumps((dropped, verb, *arguments))
        except TypeError as error:
            raise EngineError(f"cannot {said} in another process: {error}") from error
        try:
            self._channel.send(message, deadline_s)
        except TimeoutError:
            self._fail(said, "took no question")
        except OSError:
            self._fail(said, None)
        except BaseException:
            self._interrupted()
            raise

    def _receive(self, said: str) -> bytes:
        try:
            return self._channel.receive(self._deadline_s(), lambda: self._process.poll() is None)
        except TimeoutError:
            self._fail(said, "gave no answer")
        except EOFError:
            self._fail(said, None)
        except BaseException:
            self._interrupted()
            raise

    @staticmethod
    def _value(said: str, answer: bytes) -> Any:
        try:
            value = loads(answer[1:])
        except TypeError as error:
            raise EngineError(f"failed to {said}: the answer holds {error}") from error
        if answer.startswith(ERROR):
            name, message = value
            raise getattr(errors, name, EngineError)(message)
        return value

    def _stop(self, said: str) -> None:
        """Let a stream that nobody reads come to its end."""
        self._streams = False
        if self._ending is not None:
            return
        with contextlib.suppress(EngineError):  # it is gone, which is as good
            self._send(said, "stop")
            while self._receive(said).startswith(PART):
                pass
            self._receive(said)  # the answer to the stop itself

    def _interrupted(self) -> None:
        """End the process: an answer that nobody waits for would be taken for the next one."""
        self._finish("a question to it was interrupted", grace_s=0.0)

    def _fail(self, said: str, silence: str | None) -> NoReturn:
        if silence is not None:
            silence += f" within {_timeout_s():g} s ({TIMEOUT_VARIABLE} sets another limit)"
        code = self._finish(None, grace_s=0.0 if silence else _GRACE_S)
        how = silence or _exit_text(code)
        self._ending = f"it failed to {said}: {how}"
        raise EngineError(f"process {self.pid} of {self.python} failed to {said}: {how}{self._last_words}")

    def _finish(self, ending: str | None, *, grace_s: float) -> int:
        """End the process and what it has started, and return its exit status."""
        self._ending = ending or "it failed"
        self._channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._last_words = self._read_last_words()
        self._output.close()
        return code

    def _read_last_words(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _SHOWN_BYTES))
        lines = self._output.read().decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
        return "\n".join(["; it last said:", *(f"  {line}" for line in lines)]) if lines else ""

    @staticmethod
    def _deadline_s() -> float:
        return time.monotonic() + _timeout_s()


_HOSTS: dict[Path, HostProcess] = {}
_FOREIGN: list[HostProcess] = []
"""Hosts of the process that this one was forked from: not ours to end."""


def host_of(python: Path) -> HostProcess:
    """Return this process's host in an interpreter, started where it is not running."""
    host = _HOSTS.get(python)
    if host is not None and host.owner != os.getpid():
        _FOREIGN.append(_HOSTS.pop(python))
        host = None
    if host is not None and not host.lives:
        host.end()
        host = None
    if host is None:
        host = _HOSTS[python] = HostProcess(python)
    return host


@atexit.register
def end_hosts() -> None:
    """End every host of this process."""
    for python in [python for python, host in _HOSTS.items() if host.owner == os.getpid()]:
        _HOSTS.pop(python).end()


def _timeout_s() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"{TIMEOUT_VARIABLE} is {text!r}, expected seconds above 0")
    return seconds


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"it ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "an unknown signal"
    return f"it was killed by signal {-code} ({name})"
