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
from typing import TYPE_CHECKING, Any

from kvsuite.engine.contract import Capability, Engine
from kvsuite.engine.spec_checks import spec_of
from kvsuite.errors import EngineError, KvsuiteError, UnknownEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig

ENTRY_POINT_GROUP = "kvsuite.engines"
MUTANT_PREFIX = "mutant:"
_MUTANTS_MODULE = "kvsuite.mutants"
"""Imported by name: the floors above the engines are out of sight here."""

_BUILT_IN = {
    "reference": "kvsuite.engine.reference:ReferenceEngine",
    "contiguous-max": "kvsuite.engine.contiguous.controls:ContiguousMax",
    "contiguous-pow2": "kvsuite.engine.contiguous.controls:ContiguousPow2",
    "contiguous-exact": "kvsuite.engine.contiguous.controls:ContiguousExact",
    "reference-eager": "kvsuite.engine.extensions.eager_fork:EagerForkEngine",
    "reference-lookahead": "kvsuite.engine.extensions.lookahead:LookaheadEngine",
    "reference-window": "kvsuite.engine.extensions.window:WindowEngine",
    "reference-groups": "kvsuite.engine.extensions.groups:GroupsEngine",
    "reference-state": "kvsuite.engine.extensions.state:StateEngine",
    "reference-async": "kvsuite.engine.extensions.async_steps:AsyncEngine",
    "reference-tiers": "kvsuite.engine.extensions.tiers:TiersEngine",
    "reference-observed": "kvsuite.engine.extensions.observed:ObservedEngine",
    "reference-tensors": "kvsuite.engine.extensions.own_tensors:OwnTensorsEngine",
}
_METHODS = ("admit", "extend", "release", "take_ops", "launched", "done", "snapshot")
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
    """Return a fresh engine of that name.

    **Raises:** `UnknownEngine` for a name nobody registered; `EngineError` when its package cannot be loaded,
    fails, or returns no `Engine`; `ConfigError` for a configuration the engine refuses.
    """
    factory = _factory(name)
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


def describe_engines() -> tuple[EngineDescription, ...]:
    """Return every engine with its origin; one that cannot be loaded is listed with its error."""
    return tuple(_describe(name) for name in engine_names())


def _factory(name: str) -> Callable[[EngineConfig], Engine]:
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
    base, at, version = name.partition("@")
    if at:
        raise EngineError(
            f"engine {name!r}: versions in environments of their own are not available yet; "
            f"install {base} {version} here and ask for {base!r}"
        )
    raise UnknownEngine(f"unknown engine {name!r}: expected one of {', '.join(engine_names())}")


def _mutant_factory(fault: str) -> Callable[[EngineConfig], Engine]:
    table: dict[str, Any] = importlib.import_module(_MUTANTS_MODULE).MUTANTS
    if fault not in table:
        raise UnknownEngine(f"unknown mutant {fault!r}: expected one of {', '.join(table)}")
    factory: Callable[[EngineConfig], Engine] = table[fault].factory
    return factory


def _entry_points() -> dict[str, list[importlib.metadata.EntryPoint]]:
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _load(point: importlib.metadata.EntryPoint) -> Callable[[EngineConfig], Engine]:
    try:
        loaded: Callable[[EngineConfig], Engine] = point.load()
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


def _check_contract(name: str, engine: Engine) -> None:
    missing = [part for part in ("spec", *_METHODS) if not _has(engine, part)]
    if not missing:
        spec = spec_of(engine)
        verbs = [(verb, c) for c, verb in _CAPABILITY_METHODS.items() if spec.claims(c)]
        missing = [f"{verb} (claims {c.name})" for verb, c in verbs if not hasattr(engine, verb)]
    if missing:
        kind = type(engine).__name__
        raise EngineError(f"engine {name!r} ({kind}) lacks {', '.join(missing)} of the engine contract")


def _has(engine: Engine, part: str) -> bool:
    try:
        return hasattr(engine, part)
    except Exception:  # it is there and fails: `spec_of` says how
        return True


def _origin(point: importlib.metadata.EntryPoint) -> str:
    if point.dist is None:
        return "built-in"
    return f"{point.dist.name} {point.dist.version}"


def _describe(name: str) -> EngineDescription:
    points = _entry_points().get(name, [])
    origin = "built-in" if name in _BUILT_IN or not points else _origin(points[0])
    try:
        text = (_factory(name).__doc__ or "").strip()
    except KvsuiteError as error:
        return EngineDescription(name, origin, "", str(error))
    return EngineDescription(name, origin, text.split("\n", 1)[0])
