"""Files of a goldens folder: read with a remedy in the error, written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import GoldenError, TraceError
from kvsuite.golden.document import REMEDY
from kvsuite.golden.key import SHOWN, preimage_hash
from kvsuite.trace.atomic import write_whole

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "MANIFEST.json"
BASELINE = "BASELINE"


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists.

    **Raises:** `GoldenError` where that may not be seen.
    """
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(path, error) from None


def check_root(root: Path) -> None:
    """Check that goldens lie, or may come to lie, below ``root``.

    **Raises:** `GoldenError`.
    """
    if is_there(root) and not root.is_dir():
        raise GoldenError(f"{root} is no folder: give --goldens the folder of the goldens")


def folders(home: Path) -> tuple[Path, ...]:
    """Return the folders in ``home``, by name; none where it is no folder.

    **Raises:** `GoldenError`.
    """
    return tuple(path for path in _listed(home) if path.is_dir())


def goldens_in(folder: Path) -> tuple[Path, ...]:
    """Return the golden files in an engine hash's folder, by name.

    **Raises:** `GoldenError`.
    """
    found = (path for path in _listed(folder) if path.suffix == ".json" and path.name[0] != ".")
    return tuple(path for path in found if path.name != MANIFEST)


def read_text(path: Path) -> str:
    """Return a file's text.

    **Raises:** `GoldenError`.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def read_manifest(path: Path) -> dict[str, object]:
    """Return the preimage of an engine hash, checked against the name of its folder.

    **Raises:** `GoldenError`.
    """
    try:
        preimage = msgspec.json.decode(read_text(path), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise GoldenError(f"{path}: not a manifest ({error}): {REMEDY}") from None
    if preimage_hash(preimage)[:SHOWN] != path.parent.name:
        raise GoldenError(f"{path}: does not hash to {path.parent.name}, so it was edited: {REMEDY}")
    return preimage


def write(path: Path, text: str) -> None:
    """Write a file, and the folders above it, whole or not at all.

    **Raises:** `GoldenError`; an older file stays as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except TraceError as error:
        raise GoldenError(str(error)) from error
    except OSError as error:
        raise GoldenError(
            f"cannot make {path.parent}: {error.strerror}; nothing was changed, give --goldens a folder "
            "that can be written"
        ) from error


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> GoldenError:
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    return GoldenError(f"cannot read {path}: {why}: {REMEDY}")
