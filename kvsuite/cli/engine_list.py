"""Engines as they show themselves: each is opened once, on a tiny pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.cli.options import EMBEDDED_TRACE
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import describe_engines, open_engine
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
        spec = open_engine(name, config).spec
    except KvsuiteError as error:
        return ListedEngine(name, "", origin, (), str(error))
    claims = tuple(sorted(capability.name for capability in spec.capabilities))
    return ListedEngine(name, spec.version, origin, claims, description.summary)
