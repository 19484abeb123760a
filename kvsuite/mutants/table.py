"""The table of mutants: name, engine, fault in one line, and the check that must see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from kvsuite.engine.registry import MUTANT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine

    class Breakable(Protocol):
        """An engine class that carries its name."""

        name: str

        def __init__(self, config: EngineConfig) -> None: ...


EngineT = TypeVar("EngineT", bound="Breakable")
GOLDEN = "golden"
"""Stands in ``caught_by`` where every law holds and only the comparison with a golden shows a difference."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken engine."""

    factory: Callable[[EngineConfig], Engine]
    fault: str
    """What is wrong, in one line."""
    caught_by: str
    """The invariant that must see it, by name, or `GOLDEN`."""
    category: str | None
    """For misreports: the ledger category that is wrong."""
    shown_by: str
    """What a trace must hold for the fault to show."""
    killer: str | None = None
    """Id of the case that must fail on it, without parameters: ``conformance/test_leak.py::test_...``."""
    kind: str | None = None
    """Its kind in the catalogue of faults, such as ``LEAK``."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    name: str,
    *,
    caught_by: str,
    shown_by: str,
    category: str | None = None,
    killer: str | None = None,
    kind: str | None = None,
) -> Callable[[type[EngineT]], type[EngineT]]:
    """Enter the decorated engine into `MUTANTS`; its docstring is the fault."""

    def enter(engine: type[EngineT]) -> type[EngineT]:
        fault = (engine.__doc__ or "").strip()
        engine.name = f"{MUTANT_PREFIX}{name}"
        factory = cast("Callable[[EngineConfig], Engine]", engine)
        MUTANTS[name] = Mutant(factory, fault, caught_by, category, shown_by, killer, kind)
        return engine

    return enter
