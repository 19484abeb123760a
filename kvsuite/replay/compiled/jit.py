"""How functions here are compiled: without the GIL, and cached by the text of this package."""

from __future__ import annotations

import hashlib
import warnings
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
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
    before, folder = settings.CACHE_DIR, _cache_folder()
    settings.CACHE_DIR = str(folder or before)
    try:
        options: dict[str, Any] = {
            "cache": folder is not None,
            "nogil": True,
            "_nrt": False,
            "forceinline": True,
        }
        made: Callable[P, R] = numba.njit(**options)(function)
    finally:
        settings.CACHE_DIR = before
    return made


@cache
def _cache_folder() -> Path | None:
    """Return where compiled code is kept; None where nothing can be written.

    numba would then take a folder beside the source, and find code of another text there.
    """
    sources = [*sorted(_HERE.glob("*.py")), _COMPILED_TOO]
    text = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    folder = cache_folder() / "numba" / text.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            return folder
    except OSError as error:
        warnings.warn(
            f"{folder}: {error.strerror or error}; compiled code is not kept, and every process compiles "
            "anew for half a minute: set KVSUITE_CACHE to a folder that can be written",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
