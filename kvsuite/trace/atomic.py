"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from kvsuite.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` to a partial file beside ``path``, then move it into place.

    A link stays a link: what it points to is replaced. A pipe or a device is written to as it is.

    **Raises:** `TraceError` when the folder cannot be written or is full; an older ``path`` is untouched and
    no partial file stays.
    """
    if not path.name or path.is_dir():
        raise TraceError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not path.is_file():
        _write_through(path, data)
        return
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise TraceError(
            f"cannot write {path}: {error.strerror or error}; nothing was changed, "
            "choose a folder that can be written and has room"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _write_through(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as stream:
            stream.write(data)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error
