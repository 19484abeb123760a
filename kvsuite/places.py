"""Where kvsuite keeps what it can make again: environments of engines, compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the absolute path of the cache; it need not exist.

    ``$KVSUITE_CACHE``, else ``$XDG_CACHE_HOME/kvsuite``, else ``~/.cache/kvsuite``.
    """
    own, base = os.environ.get("KVSUITE_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    if base and Path(base).is_absolute():  # the XDG specification ignores a relative one
        return Path(base) / "kvsuite"
    return Path("~/.cache/kvsuite").expanduser().absolute()
