"""Engines by name: the built-in ones, the mutants, and whatever is installed under ``kvsuite.engines``.

An entry point of that group names a callable ``(EngineConfig) -> Engine``::

    [project.entry-points."kvsuite.engines"]
    acme = "acme.kv_adapter:AcmeEngine"

Nothing of a third party is imported before its engine is asked for, so that one broken package hides no
other engine.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from kvsuite.engine.contract import Capability, Engine, RequestEngine
from kvsuite.engine.hosted.engine import open_hosted
from kvsuite.engine.spec_checks import spec_of
from kvsuite.errors import EngineError, KvsuiteError, UnknownEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig

    Factory = Callable[[EngineConfig], Engine | RequestEngine]

ENTRY_POINT_GROUP = "kvsuite.engines"
MUTANT_PREFIX = "mutant:"
_MUTANTS_MODULE = "kvsuite.mutants"
"""Imported by name: the floors above the engines are out of sight here."""

ADAPTERS = {
    "vllm": "kvsuite.engine.adapters.vllm:VllmEngine",
    "transformers": "kvsuite.engine.adapters.transformers:TransformersEngine",
    "sglang": "kvsuite.engine.adapters.sglang:SglangEngine",
    "lmdeploy": "kvsuite.engine.adapters.lmdeploy:LmdeployEngine",
    "tokasaurus": "kvsuite.engine.adapters.tokasaurus:TokasaurusEngine",
    "openvino": "kvsuite.engine.adapters.openvino:OpenvinoEngine",
    "vllm-lookahead": "kvsuite.engine.adapters.vllm:VllmLookaheadEngine",
    "vllm-window": "kvsuite.engine.adapters.vllm:VllmWindowEngine",
    "vllm-scheduler": "kvsuite.engine.adapters.vllm:VllmSchedulerEngine",
}
"""Real engines: whatever version is installed here, or ``NAME@VERSION`` in an environment of its own."""
_HOMES: dict[str, tuple[str, str | None]] = {
    "vllm-lookahead": ("vllm", None),
    "vllm-window": ("vllm", None),
    "vllm-scheduler": ("vllm", "full"),
}
"""Recipe and loader of an engine that lives in the environment of another name."""
_BUILT_IN = {
    "reference": "kvsuite.engine.reference:ReferenceEngine",
    "contiguous-max": "kvsuite.engine.contiguous.controls:ContiguousMax",
    "contiguous-pow2": "kvsuite.engine.contiguous.controls:ContiguousPow2",
    "contiguous-exact": "kvsuite.engine.contiguous.controls:ContiguousExact",
    "contiguous-one-block": "kvsuite.engine.contiguous.one_block:OneBlock",
    "reference-eager": "kvsuite.engine.extensions.eager_fork:EagerForkEngine",
    "reference-lookahead": "kvsuite.engine.extensions.lookahead:LookaheadEngine",
    "reference-window": "kvsuite.engine.extensions.window:WindowEngine",
    "reference-groups": "kvsuite.engine.extensions.groups:GroupsEngine",
    "reference-state": "kvsuite.engine.extensions.state:StateEngine",
    "reference-async": "kvsuite.engine.extensions.async_steps:AsyncEngine",
    "reference-tiers": "kvsuite.engine.extensions.tiers:TiersEngine",
    "reference-observed": "kvsuite.engine.extensions.observed:ObservedEngine",
    "reference-requests": "kvsuite.engine.extensions.requests:RequestsEngine",
    **ADAPTERS,
    "reference-tensors": "kvsuite.engine.extensions.own_tensors:OwnTensorsEngine",
}
_METHODS = ("admit", "extend", "release", "take_ops", "launched", "done", "snapshot")
_REQUEST_METHODS = ("submit", "cancel", "step", "observe")
_CAPABILITY_METHODS = {
    Capability.FORK: "fork",
    Capability.MEMORY: "memory",
    Capability.RESET_CACHE: "reset_cache",
    Capability.GAUGES: "gauges",
    Capability.BUDGET: "budget",
    Capability.HOST_TIER: "transfer_done",
    Capability.SLOTS: "read_slots",
    Capability.COPIES_ITSELF: "read_storage",
}


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """One engine as ``kvsuite engines`` lists it."""

    name: str
    origin: str
    """``built-in``, or the distribution that brings it, with its version."""
    summary: str
    """First line of its docstring; empty where it has none or cannot be loaded."""
    error: str | None = None
    """Why it cannot be loaded."""


def engine_names() -> tuple[str, ...]:
    """Return the engines that can be asked for, built-in ones first; mutants apart."""
    return (*_BUILT_IN, *sorted(set(_entry_points()) - set(_BUILT_IN)))


def open_engine(name: str, config: EngineConfig) -> Engine:
    """Return a fresh engine of that name, one that is driven token by token.

    **Raises:** as `open_any_engine`, and `EngineError` for one that is driven by requests.
    """
    engine = open_any_engine(name, config)
    if is_request_driven(engine):
        raise EngineError(
            f"engine {name!r} schedules and samples by itself, and one that is driven token by token is "
            "asked for: `kvsuite replay` and the cases of conformance/test_requests.py drive it by requests"
        )
    return cast("Engine", engine)


def open_request_engine(name: str, config: EngineConfig) -> RequestEngine:
    """Return a fresh engine of that name, one that schedules and samples by itself.

    **Raises:** as `open_any_engine`, and `EngineError` for one that is driven token by token.
    """
    engine = open_any_engine(name, config)
    if is_request_driven(engine):
        return engine
    raise EngineError(
        f"engine {name!r} is driven token by token, and one that schedules and samples by itself is asked "
        "for: expected one that claims REQUEST_DRIVEN"
    )


def open_any_engine(name: str, config: EngineConfig) -> Engine | RequestEngine:
    """Return a fresh engine of that name, however it is driven.

    **Raises:** `UnknownEngine` for a name nobody registered; `EngineError` when its package cannot be loaded,
    fails, or returns no engine; `ConfigError` for a configuration the engine refuses.
    """
    return open_with(name, _factory(name), config)


def open_with(name: str, factory: Factory, config: EngineConfig) -> Engine | RequestEngine:
    """Return a fresh engine of a factory that may stand in no list; ``name`` is what errors call it.

    **Raises:** as `open_any_engine`.
    """
    try:
        engine = factory(config)
    except (KvsuiteError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise EngineError(
            f"engine {name!r} raised {type(error).__name__} when it was opened with {config.num_blocks} "
            f"blocks of {config.block_size} tokens: {error}"
        ) from error
    _check_contract(name, engine)
    return engine


def is_request_driven(engine: Engine | RequestEngine) -> TypeGuard[RequestEngine]:
    """Return whether an engine schedules and samples by itself, by its own claim."""
    return engine.spec.claims(Capability.REQUEST_DRIVEN)


def describe_engines() -> tuple[EngineDescription, ...]:
    """Return every engine with its origin; one that cannot be loaded is listed with its error."""
    return tuple(_describe(name) for name in engine_names())


def origin_of(name: str) -> str:
    """Return ``built-in``, or the distributions that bring an engine, with their versions."""
    points = [] if name in _BUILT_IN else _entry_points().get(name, [])
    return " and ".join(sorted(_origin(point) for point in points)) or "built-in"


def module_of(name: str) -> str | None:
    """Return the module of an engine that another distribution brings; it is not imported."""
    points = [] if name in _BUILT_IN else _entry_points().get(name, [])
    return points[0].module if points else None


def check_known(name: str) -> None:
    """**Raises:** `UnknownEngine` for a name nobody registered; no package of an engine is imported."""
    if not (name in engine_names() or name.startswith(MUTANT_PREFIX) or name.partition("@")[0] in ADAPTERS):
        _factory(name)


def _factory(name: str) -> Factory:
    if name.startswith(MUTANT_PREFIX):
        return _mutant_factory(name.removeprefix(MUTANT_PREFIX))
    if name in _BUILT_IN:
        return _load(importlib.metadata.EntryPoint(name, _BUILT_IN[name], ENTRY_POINT_GROUP))
    found = _entry_points().get(name, [])
    if len(found) > 1:
        origins = " and ".join(sorted(_origin(point) for point in found))
        raise EngineError(f"engine {name!r} is registered by {origins}: uninstall all but one")
    if found:
        return _load(found[0])
    if "@" in name:
        return _version_factory(name)
    raise UnknownEngine(f"unknown engine {name!r}: expected one of {', '.join(engine_names())}")


def _version_factory(name: str) -> Factory:
    base, _, version = name.partition("@")
    if base not in ADAPTERS or not version:
        raise UnknownEngine(
            f"unknown engine {name!r}: expected NAME@VERSION or NAME@newest, where NAME is one of "
            f"{', '.join(ADAPTERS)}"
        )
    environments = importlib.import_module("kvsuite.engine.environments")
    home, loader = home_of(base)
    environment = environments.ensure(home, version, loader=loader)
    prepare(base, environment.version)
    return partial(open_hosted, environment.python, base)


def home_of(name: str) -> tuple[str, str | None]:
    """Return the environment in which a real engine lives: its name, and its loader where it needs one."""
    return _HOMES.get(name, (name, None))


def prepare(name: str, version: str) -> None:
    """Make what a real engine needs beside its environment, before its process would wait minutes for it.

    **Raises:** `EnvironmentUnavailable` when it cannot be made.
    """
    if name in ADAPTERS:
        adapter = importlib.import_module(ADAPTERS[name].partition(":")[0])
        getattr(adapter, "prepare", lambda version: None)(version)


def _mutant_factory(fault: str) -> Factory:
    table: dict[str, Any] = importlib.import_module(_MUTANTS_MODULE).MUTANTS
    if fault not in table:
        raise UnknownEngine(f"unknown mutant {fault!r}: expected one of {', '.join(table)}")
    factory: Factory = table[fault].factory
    return factory


def _entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _load(point: importlib.metadata.EntryPoint) -> Factory:
    try:
        loaded: Factory = point.load()
    except (Exception, SystemExit) as error:
        raise EngineError(
            f"engine {point.name!r} ({point.value}, from {_origin(point)}) cannot be loaded: "
            f"{type(error).__name__}: {error}; repair or uninstall that package"
        ) from error
    if not callable(loaded):
        raise EngineError(
            f"engine {point.name!r}: {point.value} from {_origin(point)} is a {type(loaded).__name__}, "
            "expected a callable that takes an EngineConfig"
        )
    return loaded


def _check_contract(name: str, engine: Engine | RequestEngine) -> None:
    requests = all(_has(engine, part) for part in _REQUEST_METHODS)
    parts = ("spec", *(_REQUEST_METHODS if requests else _METHODS))
    missing = [part for part in parts if not _has(engine, part)]
    if not missing:
        spec = spec_of(engine)
        if spec.claims(Capability.REQUEST_DRIVEN) is not requests:
            missing = ["the claim REQUEST_DRIVEN"] if requests else [*_REQUEST_METHODS]
        else:
            verbs = [(verb, c) for c, verb in _CAPABILITY_METHODS.items() if spec.claims(c)]
            missing = [f"{verb} (claims {c.name})" for verb, c in verbs if not hasattr(engine, verb)]
    if missing:
        kind = type(engine).__name__
        raise EngineError(f"engine {name!r} ({kind}) lacks {', '.join(missing)} of the engine contract")


def _has(engine: Engine | RequestEngine, part: str) -> bool:
    try:
        return hasattr(engine, part)
    except Exception:  # it is there and fails: `spec_of` says how
        return True


def _origin(point: importlib.metadata.EntryPoint) -> str:
    if point.dist is None:
        return "built-in"
    return f"{point.dist.name} {point.dist.version}"


def _describe(name: str) -> EngineDescription:
    origin = origin_of(name)
    try:
        text = (_factory(name).__doc__ or "").strip()
    except KvsuiteError as error:
        return EngineDescription(name, origin, "", str(error))
    return EngineDescription(name, origin, text.split("\n", 1)[0])
