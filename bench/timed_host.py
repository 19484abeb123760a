"""Runs beside an engine, in its interpreter: an adapter whose time is told apart from its engine's.

`vllm`, `transformers` and `sglang` are factories for `kvsuite.engine.hosted`. Every function of the engine's
own that an adapter calls is wrapped; of calls within calls the outermost counts. What wrapping costs falls
mostly on the engine's side for short calls, so shares come from here and walls from an unwrapped run.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import types
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.sglang.engine import SglangEngine
from kvsuite.engine.adapters.sglang.package import load as load_sglang
from kvsuite.engine.adapters.transformers.engine import TransformersEngine
from kvsuite.engine.adapters.vllm.engine import VllmEngine
from kvsuite.engine.adapters.vllm.loading import load_core
from kvsuite.replay.host import server
from kvsuite.replay.proxy import EngineProxy
from kvsuite.replay.steps import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.replay.frame import Part

RESULT_VARIABLE = "KVSUITE_BENCH_RESULT"
"""Names the file that the seconds are written to when a replay ends."""
SLOTS = ("read_slots", "write_slots")
_seconds: defaultdict[str, float] = defaultdict(float)
_inside: set[str] = set()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with its seconds added to ``name``, unless it runs inside another one of the name.

    What an engine does for a snapshot is the snapshot's.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if name in _inside or "snapshot" in _inside:
            return function(*arguments, **options)
        _inside.add(name)
        started_s = perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            _seconds[name] += perf_counter() - started_s
            _inside.discard(name)

    return call


def time_methods(*classes: Any) -> None:
    """Time the functions that engine classes define and inherit from their own package."""
    for made in {base for cls in classes for base in cls.__mro__ if base.__module__ != "builtins"}:
        for name, member in list(vars(made).items()):
            plain = isinstance(member, types.FunctionType)
            if plain and (name == "__init__" or not name.startswith("__")):
                setattr(made, name, timed("engine", member))


class TimedEngine(EngineProxy):
    """Passes every verb on and keeps the time of each."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        for verb in ("admit", "extend", "release", "take_ops", "launched", "done", "fork", *SLOTS):
            vars(self)[verb] = timed("verbs", getattr(engine, verb, None) or _absent)
        vars(self)["snapshot"] = timed("snapshot", engine.snapshot)


class TimedStepper(Stepper):
    """Writes the seconds of a replay down when it ends."""

    def parts(self) -> Iterator[Part]:  # type: ignore[override]  # walked only
        """Yield what happens."""
        _seconds.clear()
        started_s = perf_counter()
        yield from super().parts()
        _seconds["host"] = perf_counter() - started_s
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(_seconds))


def vllm(config: EngineConfig) -> Engine:
    """Open vLLM's block manager."""
    core = load_core()
    _once(core.manager.KVCacheManager, core.request.Request)
    return TimedEngine(VllmEngine(config))


def transformers(config: EngineConfig) -> Engine:
    """Open transformers' paged cache."""
    package = "transformers.generation.continuous_batching"
    importlib.import_module(package)
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    every = {member for module in modules for member in vars(module).values() if isinstance(member, type)}
    _once(*(member for member in every if member.__module__.startswith(package)))
    return TimedEngine(TransformersEngine(config))


def sglang(config: EngineConfig) -> Engine:
    """Open SGLang's allocator and radix tree."""
    members = load_sglang().members
    every = vars(members).items()
    _once(*(member for _, member in every if isinstance(member, type)))
    for name, member in list(every):
        if isinstance(member, types.FunctionType):
            setattr(members, name, timed("engine", member))
    return TimedEngine(SglangEngine(config))


def _once(*classes: Any) -> None:
    """Put timed functions in the place of the host's own, which mypy rightly calls no assignment."""
    if server.Stepper is not TimedStepper:  # type: ignore[attr-defined]
        time_methods(*classes)
        server.Stepper = TimedStepper  # type: ignore[attr-defined]
        server.Packer.pack = timed("packing", server.Packer.pack)  # type: ignore[method-assign,attr-defined]
        server.dumps = timed("packing", server.dumps)  # type: ignore[attr-defined]
        server.Channel.send = timed("sending", server.Channel.send)  # type: ignore[method-assign,attr-defined]


def _absent(*arguments: object, **options: object) -> None:
    raise AttributeError("the engine has no such verb")
