"""How functions here are compiled: without the GIL, and cached by the text of this package."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_HERE = Path(__file__).parent


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function``; under ``NUMBA_DISABLE_JIT=1`` it stays plain Python.

    numba looks for changes only in the file of the function itself, and not in those of what it calls or of
    the constants it uses. So the cache lies in a folder named after the text of every module here.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_cache_folder())
    try:
        made: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = before
    return made


def _cache_folder() -> Path:
    text = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py"))))
    root = os.environ.get("KVSUITE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    home = Path(root) if root else Path.home() / ".cache"
    folder = home if os.environ.get("KVSUITE_CACHE") else home / "kvsuite"
    return folder / "numba" / text.hexdigest()[:16]
