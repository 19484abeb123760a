"""What a case is called: its path below the cases root, whatever folder or wheel it lies in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import kvsuite

if TYPE_CHECKING:
    import pytest

ROOT_NAME = "cases"
ENGINE = "engine_name"


def cases_root(path: Path) -> Path | None:
    """Return the folder ``cases`` that a file lies in; ``None`` for any other test."""
    shipped = Path(kvsuite.__file__).parent / ROOT_NAME
    if path.is_relative_to(shipped):
        return shipped
    return next((parent for parent in path.parents if parent.name == ROOT_NAME), None)


def case_id(item: pytest.Item) -> str:
    """Return the path below the cases root with parameters; never the node id, and never the engine.

    The engine stands beside the case in records and above it in the goldens' folders, so that two
    versions of one engine answer the same case. A test outside any cases root is named from the rootdir.
    """
    root = cases_root(item.path)
    if root is None:
        root = item.config.rootpath
    path = item.path.relative_to(root) if item.path.is_relative_to(root) else Path(item.path.name)
    inside = item.nodeid.partition("::")[2]
    return f"{path.as_posix()}::{_without_engine(inside, engine_of(item))}"


def engine_of(item: pytest.Item) -> str | None:
    """Return the engine a case runs on; ``None`` where it names none."""
    callspec = getattr(item, "callspec", None)
    name = None if callspec is None else callspec.params.get(ENGINE)
    return name if isinstance(name, str) else None  # pytest's own mark, where no engine is asked for


def _without_engine(name: str, engine: str | None) -> str:
    """Drop the engine, which `selection` puts first, from the parameters.

    >>> _without_engine("test_x[reference-chat-16]", "reference"), _without_engine("test_x[a@1]", "a@1")
    ('test_x[chat-16]', 'test_x')
    """
    if engine is None:
        return name
    function, bracket, parameters = name.partition("[")
    parameters = parameters.removesuffix("]")
    if parameters == engine:
        return function
    return f"{function}{bracket}{parameters.removeprefix(f'{engine}-')}]"
