"""The paging scheduler of LMDeploy's PyTorch engine, imported without its model runner."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvsuite.engine.adapters.sandbox import Rules, Sandbox
from kvsuite.errors import EngineError

NAME = "lmdeploy"
_PARTS = {
    "config": ("CacheConfig", "SchedulerConfig"),
    "messages": ("SamplingParam", "SequenceMeta", "UpdateTokenMode"),
    "paging.scheduler": ("Scheduler",),
    "strategies.ar.sequence": ("ARSequenceStrategy",),
}
RULES = Rules(
    package=NAME,
    real=(NAME,),
    shells={"lmdeploy.pytorch.strategies.ar": None},
    left_out=("lmdeploy.pytorch.engine", "lmdeploy.pytorch.model_inputs"),
    optional=("zmq",),
)


@dataclass(frozen=True, slots=True)
class Package:
    """LMDeploy as it is installed here. Members are named as LMDeploy names them."""

    version: str
    members: SimpleNamespace


_loaded: Package | None = None


def load() -> Package:
    """Return LMDeploy, imported once a process.

    **Raises:** `EngineError` when it is not installed or lacks a part that the adapter drives.
    """
    global _loaded
    if _loaded is None:
        _loaded = _import()
    return _loaded


def _import() -> Package:
    members: dict[str, Any] = {}
    try:
        version = importlib.metadata.version(NAME)
        importlib.import_module("torch")
        with Sandbox(RULES).importing():
            for module, names in _PARTS.items():
                found = importlib.import_module(f"lmdeploy.pytorch.{module}")
                members |= {name: getattr(found, name) for name in names}
    except (ImportError, AttributeError, importlib.metadata.PackageNotFoundError) as error:
        raise EngineError(
            f"engine 'lmdeploy' needs the packages lmdeploy and torch, with {', '.join(_PARTS)}, here "
            f"({error}): install lmdeploy 0.18.0, or ask for lmdeploy@0.18.0, which has an environment of "
            "its own"
        ) from error
    return Package(version, SimpleNamespace(**members))
