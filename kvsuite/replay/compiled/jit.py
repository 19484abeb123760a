"""How functions here are compiled: without the GIL, and cached by the text of this package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numba
from numba import config

from kvsuite.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_HERE = Path(__file__).parent
_COMPILED_TOO = _HERE.parent / "step_costs.py"
"""A function that both forms of the replay use."""


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` into each place that calls it: for what is done once a token or once a block."""
    options: dict[str, Any] = {"inline": "always", "_nrt": False}
    made: Callable[P, R] = numba.njit(**options)(function)
    return made


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function``; under ``NUMBA_DISABLE_JIT=1`` it stays plain Python.

    numba looks for changes only in the file of the function itself, and not in those of what it calls or of
    the constants it uses. So the cache lies in a folder named after the text of every module here, and of
    `kvsuite.replay.step_costs`.

    ``_nrt=False``: nothing here allocates, and without numba's memory manager no call counts references to
    the arrays of the state, which takes 280 ns a call and 0.7 ns of work. ``forceinline``: to pass the arrays
    of the state on takes 100 ns a call.
    """
    settings: Any = config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(_cache_folder())
    try:
        options: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False, "forceinline": True}
        made: Callable[P, R] = numba.njit(**options)(function)
    finally:
        settings.CACHE_DIR = before
    return made


def _cache_folder() -> Path:
    sources = [*sorted(_HERE.glob("*.py")), _COMPILED_TOO]
    text = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    return cache_folder() / "numba" / text.hexdigest()[:16]
