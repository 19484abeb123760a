"""tokasaurus' block allocator, imported without its server: plain Python, no torch."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.sandbox import Rules, Sandbox
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "tokasaurus"
_MODULE = "tokasaurus.manager.allocator"


def _untimed(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """Stand for a decorator that times calls."""
    del arguments, options
    return lambda function: function


RULES = Rules(
    package=NAME,
    real=(NAME,),
    shells={},
    left_out=("tokasaurus.manager.monitoring",),
    answers={"tokasaurus.manager.monitoring": {"track_time_decorator": _untimed}},
)


@dataclass(frozen=True, slots=True)
class Package:
    """tokasaurus as it is installed here."""

    version: str
    allocator: Any
    """The class ``BlockAllocator``."""
    no_space: type[Exception]


_loaded: Package | None = None


def load() -> Package:
    """Return tokasaurus, imported once a process.

    **Raises:** `EngineError` when it is not installed or lacks its allocator.
    """
    global _loaded
    if _loaded is None:
        _loaded = _import()
    return _loaded


def _import() -> Package:
    try:
        version = importlib.metadata.version(NAME)
        with Sandbox(RULES).importing():
            module: Any = importlib.import_module(_MODULE)
        return Package(version, module.BlockAllocator, module.NoSpaceException)
    except (ImportError, AttributeError, importlib.metadata.PackageNotFoundError) as error:
        raise EngineError(
            f"engine 'tokasaurus' needs the package tokasaurus, with {_MODULE}, here ({error}): install "
            "tokasaurus 0.0.4, or ask for tokasaurus@0.0.4, which has an environment of its own"
        ) from error
