"""Runs in the interpreter of an engine: opens engines, passes verbs on, and takes whole traces through them.

    question    (keys of engines to let go, verb, arguments...)
    answer      one byte, `OK` or `ERROR`, and a value, or the class and message of what is to be raised;
                a replay sends any number of `PART` before

Needs the standard library, NumPy and the engine. What an engine prints goes where the parent has pointed
standard output and error to, and never on the line.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvsuite.engine.hosted.engine import CAPABILITY_VERBS
from kvsuite.engine.hosted.wire import ERROR, OK, PART, Channel, dumps, loads
from kvsuite.engine.registry import is_request_driven, open_any_engine, open_with
from kvsuite.errors import EngineError, KvsuiteError
from kvsuite.replay.host.packing import Packer
from kvsuite.replay.steps import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine, RequestEngine
    from kvsuite.engine.registry import Factory
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.trace.model import Trace

_SET_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux."""
_TOLD_LINES = 8
"""Lines of an engine's own traceback that go back with its error."""


class Server:
    """Answers one question after the other until the line ends."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engines: dict[int, Engine | RequestEngine] = {}
        self._trace: Trace | None = None
        self._verbs: dict[str, Callable[..., Any]] = {
            "ping": lambda: sys.version,
            "trace": self._know,
            "open": self._open,
            "ask": self._ask,
            "replay": self._replay,
            "stop": lambda: None,  # what was to be stopped is over by the time this is read
        }

    def serve(self) -> None:
        """Answer until the parent is gone."""
        while True:
            try:
                message = self._channel.receive()
            except EOFError:
                return
            try:
                dropped, verb, *arguments = loads(message)
                self._let_go(dropped)
                answer = dumps(self._verbs[verb](*arguments))
            except (Exception, SystemExit) as error:
                self._channel.send(ERROR + dumps(_told(error)))
            else:
                self._channel.send(OK + answer)

    def _let_go(self, keys: list[int]) -> None:
        for key in keys:
            self._engines.pop(key, None)
        if keys:
            gc.collect()  # pools are large: the old ones go before new ones come

    def _know(self, trace: Trace) -> None:
        self._trace = trace

    def _open(self, key: int, factory: str, config: EngineConfig, with_trace: bool) -> Any:
        asked = replace(config, trace=self._trace) if with_trace else config
        make = _loaded(factory)
        engine = open_any_engine(factory, asked) if make is None else open_with(factory, make, asked)
        self._engines[key] = engine
        return engine.spec, [verb for verb in CAPABILITY_VERBS if hasattr(engine, verb)]

    def _ask(self, key: int, verb: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        engine = self._engine(key)
        try:
            return getattr(engine, verb)(*arguments, **options)
        except KvsuiteError:
            raise
        except (Exception, SystemExit) as error:
            of = f" of {arguments[0]}" if arguments and isinstance(arguments[0], str) else ""
            said = f": {error}" if str(error) else ""
            name = engine.spec.name
            raise EngineError(f"engine {name!r} raised {type(error).__name__} in {verb}{of}{said}") from error

    def _replay(self, key: int, scheduler: SchedulerConfig, read_all: bool) -> None:
        if self._trace is None:
            raise EngineError("no trace was handed over")
        engine = self._engine(key)
        if is_request_driven(engine):
            raise EngineError(f"engine {engine.spec.name!r} is driven by requests and replays none")
        packer = Packer()
        driven = cast("Engine", engine)
        for part in Stepper(self._trace, driven, scheduler, read_all=read_all).parts():
            self._channel.send(PART + dumps(packer.pack(part)))
            if self._channel.has_news():  # while parts go out, nothing but a stop comes in
                return

    def _engine(self, key: int) -> Engine | RequestEngine:
        if key not in self._engines:
            raise EngineError("no such engine is open here: open it again")
        return self._engines[key]


def main(reader: int, writer: int, parent: int) -> None:
    """Serve on two descriptors; ``parent`` is the process to die with, 0 for none."""
    for descriptor in (reader, writer):
        os.set_inheritable(descriptor, False)  # what the engine starts must not hold the line
    faulthandler.enable()
    if parent:
        _die_with(parent)
    with contextlib.suppress(BrokenPipeError):
        Server(Channel(reader, writer)).serve()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it went before this was asked for
        sys.exit(1)


def _loaded(factory: str) -> Factory | None:
    """Return what ``MODULE:CLASS`` or ``FILE.py:CLASS`` names; ``None`` for a name of the registry."""
    place, colon, attribute = factory.rpartition(":")
    if not colon or "." not in place:
        return None
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        make: Factory = getattr(module, attribute)
    except Exception as error:
        raise EngineError(f"engine {factory!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return make


def _told(error: BaseException) -> tuple[str, str]:
    """Return the class of kvsuite to raise over there, and the message with the engine's own traceback."""
    ours = isinstance(error, KvsuiteError)
    if not ours:
        lines = traceback.format_exception(error)
        return "EngineError", f"{type(error).__name__}: {error}{_tail(lines)}"
    cause = error.__cause__
    own = cause is not None and not isinstance(cause, KvsuiteError)
    tail = _tail(traceback.format_exception(cause)) if own else ""
    return type(error).__name__, f"{error}{tail}"


def _tail(lines: list[str]) -> str:
    last = "".join(lines).rstrip().splitlines()[-_TOLD_LINES:]
    return "\n" + "\n".join(f"  {line}" for line in last)
