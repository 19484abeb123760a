"""Results that are kept: one file a cell, whole or not at all, found again by the cell's key.

Only cells that ran are kept. A refusal costs nothing to be had again, and may rest on what is installed.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import RecordError, TraceError
from kvsuite.sweep.identity import is_moving
from kvsuite.sweep.results import CellResult
from kvsuite.trace.atomic import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.sweep.cells import Cell


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file."""

    key: str
    cell: str
    """What it was called, for readers."""
    sha256: str
    """Of ``result`` as it is written here."""
    result: msgspec.Raw


class CellStore:
    """The results below one folder, which is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """Return where the result of a cell is kept."""
        return self.folder / f"{cell.key}.json"

    def read(self, cell: Cell) -> CellResult | None:
        """Return the result of a cell; ``None`` where it is not there, or its engine may be another today.

        **Raises:** `RecordError` for a file that is damaged.
        """
        if is_moving(cell.engine):
            return None
        path = self.path(cell)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror or error}") from error
        try:
            kept = msgspec.json.decode(data, type=_Kept)
            if kept.key != cell.key or kept.sha256 != _sha256(kept.result):
                raise RecordError(f"{path}: damaged, its content is not what was written there")
            return msgspec.json.decode(kept.result, type=CellResult)
        except msgspec.MsgspecError as error:
            raise RecordError(f"{path}: damaged, {error}") from error

    def write(self, cell: Cell, result: CellResult) -> None:
        """Keep the result of a cell, unless its engine refused it or may be another tomorrow.

        **Raises:** `RecordError` when the folder cannot be written.
        """
        if result.row.refused is not None or is_moving(cell.engine):
            return
        text = msgspec.Raw(msgspec.json.encode(result))
        kept = _Kept(key=cell.key, cell=cell.name, sha256=_sha256(text), result=text)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.path(cell), msgspec.json.encode(kept))
        except (OSError, TraceError) as error:
            raise RecordError(f"{self.folder}: {error}") from error

    def check(self) -> None:
        """Find out before long work whether results can be kept here.

        **Raises:** `RecordError` when the folder cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise RecordError(
                f"{self.folder}: {error.strerror or error}; choose another folder with --out"
            ) from error

    def clear(self) -> None:
        """Forget every result.

        **Raises:** `RecordError` when a file cannot be removed.
        """
        for path in self.folder.glob("*.json"):
            try:
                path.unlink()
            except OSError as error:
                raise RecordError(f"{path}: {error.strerror or error}") from error
        with suppress(OSError):
            self.folder.rmdir()


def _sha256(text: msgspec.Raw) -> str:
    return hashlib.sha256(bytes(text)).hexdigest()
