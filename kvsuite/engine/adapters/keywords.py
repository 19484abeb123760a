"""Keyword arguments for functions whose parameters come and go from one release of an engine to the next."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def known(function: Callable[..., Any], /, **arguments: Any) -> dict[str, Any]:
    """Return those of ``arguments`` that ``function`` takes by name.

    **Raises:** `EngineError` naming a required parameter that is not among them: this release asks for
    something that the adapter does not know, and a guess would be a wrong engine.
    """
    takes_any, names, required = _parameters(function)
    missing = [name for name in required if name not in arguments]
    if missing:
        raise EngineError(
            f"{_name_of(function)} asks for {', '.join(missing)}, which this adapter does not know "
            f"(it gives {', '.join(arguments) or 'nothing'}): use a version that the adapter supports, or "
            "teach it the parameter"
        )
    return arguments if takes_any else {name: arguments[name] for name in arguments if name in names}


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether ``function`` has a parameter of that name."""
    return name in _parameters(function)[1]


def _parameters(function: Callable[..., Any]) -> tuple[bool, frozenset[str], tuple[str, ...]]:
    """Return whether any keyword is taken, which ones are, and those without a default, in their order."""
    parameters = inspect.signature(function).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    return (
        any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
        frozenset(parameter.name for parameter in named),
        tuple(parameter.name for parameter in named if parameter.default is inspect.Parameter.empty),
    )


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '?')}.{name}"
