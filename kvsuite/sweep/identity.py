"""Which code a cell's result depends on, as far as that can be told before an engine is opened."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import kvsuite
from kvsuite.engine.environments import NEWEST
from kvsuite.engine.registry import ADAPTERS, home_of, module_of, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEPENDED_ON = ("cache", "device", "engine", "ledger", "mutants", "record", "replay", "sweep", "trace")
"""Folders of this package that a result depends on."""


def is_moving(engine: str) -> bool:
    """Return whether ``engine`` is ``NAME@newest``: another version on another day."""
    return engine.partition("@")[2] == NEWEST


@cache
def suite_identity() -> str:
    """Return kvsuite's version, and a hash over the source text that results depend on."""
    root = Path(kvsuite.__file__).parent
    files = (path for folder in _DEPENDED_ON for path in (root / folder).rglob("*.py"))
    return f"{kvsuite.__version__} {_text_hash(root, files)}"


@cache
def engine_identity(engine: str) -> str:
    """Return where an engine comes from: its version, and a hash over its Python text where it runs in here.

    Compiled code that an engine brings is not looked at.
    """
    if "@" in engine:
        return engine
    if engine in ADAPTERS:
        return _installed(home_of(engine)[0])
    module = module_of(engine)
    return f"{origin_of(engine)} {_package_hash(module)}" if module else origin_of(engine)


def _installed(distribution: str) -> str:
    try:
        return f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution}, not installed"


def _package_hash(module: str) -> str:
    found = importlib.util.find_spec(module.partition(".")[0])
    if found is None or found.origin is None:
        return ""
    origin = Path(found.origin)
    files = origin.parent.rglob("*.py") if origin.name == "__init__.py" else [origin]
    return _text_hash(origin.parent, files)


def _text_hash(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
