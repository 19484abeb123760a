"""The table of mutants: name, engine, fault in one line, and the check that must see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.registry import MUTANT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig

EngineT = TypeVar("EngineT", bound=ReferenceEngine)
GOLDEN = "golden"
"""Stands in ``caught_by`` where every law holds and only the comparison with a golden shows a difference."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken engine."""

    factory: Callable[[EngineConfig], ReferenceEngine]
    fault: str
    """What is wrong, in one line."""
    caught_by: str
    """The invariant that must see it, by name, or `GOLDEN`."""
    category: str | None
    """For misreports: the ledger category that is wrong."""
    shown_by: str
    """What a trace must hold for the fault to show."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str, *, caught_by: str, shown_by: str, category: str | None = None
) -> Callable[[type[EngineT]], type[EngineT]]:
    """Enter the decorated engine into `MUTANTS`; its docstring is the fault."""

    def enter(engine: type[EngineT]) -> type[EngineT]:
        fault = (engine.__doc__ or "").strip()
        engine.name = f"{MUTANT_PREFIX}{name}"
        MUTANTS[name] = Mutant(engine, fault, caught_by, category, shown_by)
        return engine

    return enter
