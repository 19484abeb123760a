"""Engines as they show themselves: each is opened once, on a tiny pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.cli.options import EMBEDDED_TRACE
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import ADAPTERS, describe_engines, open_any_engine
from kvsuite.errors import KvsuiteError
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from kvsuite.engine.registry import EngineDescription


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """One line of `kvsuite engines`; ``summary`` says why an engine cannot be opened."""

    name: str
    version: str
    origin: str
    capabilities: tuple[str, ...]
    summary: str


def versions_line() -> str:
    """Return how a version of an engine that is not installed here is had."""
    return (
        f"NAME@VERSION and NAME@newest run {', '.join(ADAPTERS)} in an environment of their own: "
        "`kvsuite env create NAME@VERSION` builds it"
    )


def listed() -> tuple[ListedEngine, ...]:
    """Return every registered engine; one that cannot be opened has no version and no capabilities."""
    return tuple(_listed(description) for description in describe_engines())


def _listed(description: EngineDescription) -> ListedEngine:
    name, origin = description.name, description.origin
    if description.error is not None:
        return ListedEngine(name, "", origin, (), description.error)
    config = EngineConfig(
        layout=model_layout("tiny"),
        block_size=16,
        num_blocks=64,
        max_model_tokens=512,
        trace=load_trace(EMBEDDED_TRACE),
    )
    try:
        spec = open_any_engine(name, config).spec
    except KvsuiteError as error:
        why = str(error)
        if name in ADAPTERS:  # most are not installed here, and are listed for what they are
            why = f"{description.summary} ({why.splitlines()[0]})"
        return ListedEngine(name, "", origin, (), why)
    claims = tuple(sorted(capability.name for capability in spec.capabilities))
    return ListedEngine(name, spec.version, origin, claims, description.summary)
