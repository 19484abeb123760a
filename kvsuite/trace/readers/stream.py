"""The lines of a file, plain or gzip, one after the other: never the whole of it at once."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

from kvsuite.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from _typeshed import WriteableBuffer

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_BUFFER_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 28
"""Longest line: a row of tens of millions of prefix ids."""


class _Hashed(io.RawIOBase):
    """A file on disk, hashed as it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = path.open("rb")
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer``, unless the file ends, and return the bytes read."""
        try:
            count = self._opened.readinto(buffer)
        except OSError as error:
            raise unreadable(self._path, error) from error
        self.digest.update(memoryview(buffer)[:count])
        return count

    def close(self) -> None:
        """Close the file."""
        self._opened.close()
        super().close()


class LineStream:
    """Lines with their line ends, gzip taken off; it is recognised by its first bytes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file = _Hashed(path)
        raw = io.BufferedReader(self._file, _BUFFER_BYTES)
        self._text: io.BufferedReader[Any] = raw
        if raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
            packed: Any = gzip.GzipFile(fileobj=raw)
            self._text = io.BufferedReader(packed, _BUFFER_BYTES)
        self._raw = raw

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines that were not read yet.

        **Raises:** `TraceError` for a damaged gzip stream, more text than ``max_bytes`` or a line longer than
        `MAX_LINE_BYTES`.
        """
        found = 0
        while line := self._next():
            found += len(line)
            if found > self._max_bytes:
                raise TraceError(
                    f"the file holds more than {self._max_bytes} bytes of text; cut it into files of fewer "
                    "requests"
                )
            if len(line) > MAX_LINE_BYTES:
                raise TraceError(
                    f"a line is longer than {MAX_LINE_BYTES} bytes; give a file with one request a line"
                )
            yield line

    def _next(self) -> bytes:
        try:
            return self._text.readline(MAX_LINE_BYTES + 1)
        except EOFError:
            raise TraceError("the gzip stream is cut off; fetch or write the file again") from None
        except (OSError, zlib.error) as error:
            raise TraceError(f"the gzip stream is damaged ({error}); fetch or write the file again") from None

    def digest(self) -> str:
        """Return ``sha256:`` of the file as it lies on disk; what was not read of it is read now."""
        while self._raw.read(_BUFFER_BYTES):
            pass
        return "sha256:" + self._file.digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        self._raw.close()


def unreadable(path: Path, error: OSError) -> TraceError:
    """Return the error of a file that the system does not let us read."""
    return TraceError(f"cannot read {path}: {error.strerror or error}; give a trace file that can be read")


def in_batches(
    rows: Iterable[T], max_rows: int, max_weight: int = 0, weight: Callable[[T], int] | None = None
) -> Iterator[list[T]]:
    """Yield lists of up to ``max_rows`` rows that weigh ``max_weight`` or little more together.

    Rows before one that cannot be read come first, so that an earlier fault among them is the one found.
    """
    batch: list[T] = []
    weighed = 0
    try:
        for row in rows:
            batch.append(row)
            if weight is not None:
                weighed += weight(row)
            if len(batch) == max_rows or (weight is not None and weighed >= max_weight):
                yield batch
                batch, weighed = [], 0
    except TraceError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
