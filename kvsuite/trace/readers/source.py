"""A trace file as bytes and lines, and what a reader of one format is."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from kvsuite.errors import TraceError
from kvsuite.trace.model import TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvsuite.trace.clock import TimeUnit
    from kvsuite.trace.model import Trace
    from kvsuite.trace.rows import Tail

_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
MAX_TRACE_BYTES = 2 << 30
"""Largest trace text; a small compressed file may hold a thousand times its size."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the caller settles; None leaves it to the file. Names on the command line are `OPTION_NAMES`."""

    trace_block_size: int | None = None
    time_unit: TimeUnit | None = None
    tail: Tail | None = None
    sort: bool = False

    def refuse(self, format_name: str, reason: str, *names: str) -> None:
        """Refuse options that a format settles by itself.

        **Raises:** `TraceError` when one of ``names`` was given.
        """
        for name in names:
            if getattr(self, name) is not None:
                raise TraceError(
                    f"{OPTION_NAMES[name]} does not apply to {format_name}: {reason}; leave it out"
                )


OPTION_NAMES = {"trace_block_size": "--trace-block-size", "time_unit": "--time-unit", "tail": "--tail"}


@dataclass(frozen=True)
class TraceFile:
    """The bytes of a trace file, decompressed, without a byte-order mark."""

    path: Path
    data: bytes
    digest: str
    """``sha256:`` of the file as it lies on disk."""

    @cached_property
    def first_line(self) -> bytes:
        """The first line that is not blank; empty for an empty file."""
        return next((line for _, line in self.lines()), b"")

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """The first line as a JSON object; empty where it is none."""
        try:
            found = msgspec.json.decode(self.first_line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def ends_with_newline(self) -> bool:
        """Whether the last line has its line end; one without may be cut off."""
        return self.data.endswith(b"\n")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield line numbers from 1 and lines that are not blank, without LF or CRLF."""
        for number, line in enumerate(self.data.split(b"\n"), 1):
            if text := line.strip():
                yield number, text

    def text(self) -> str:
        """Return the file as text.

        **Raises:** `TraceError` when it is not UTF-8.
        """
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TraceError(
                f"byte {error.start} is not UTF-8 ({error.reason}); write the file as UTF-8"
            ) from None

    def source(self, format_name: str) -> TraceSource:
        """Return what a trace read from this file says of its source."""
        name = self.path.name.encode("utf-8", "backslashreplace").decode()
        return TraceSource(format=format_name, name=name, digest=self.digest)


def open_trace_file(path: Path) -> TraceFile:
    """Read a file whole; gzip is recognised by its first bytes.

    **Raises:** `FileNotFoundError` when it is not there; `TraceError` when it cannot be read, is empty, or is
    a damaged gzip stream, or holds more than `MAX_TRACE_BYTES`.
    """
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_TRACE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TraceError(
            f"cannot read {path}: {error.strerror or error}; give a trace file that can be read"
        ) from error
    data = _decompressed(raw) if raw.startswith(_GZIP_MAGIC) else raw
    if len(data) > MAX_TRACE_BYTES:
        raise TraceError(
            f"the file holds more than {MAX_TRACE_BYTES} bytes of text; cut it into files of fewer requests"
        )
    if data.startswith(_WIDE_BOMS):
        raise TraceError("the file is UTF-16 or UTF-32 text; write it as UTF-8")
    file = TraceFile(path, data.removeprefix(_BOM), "sha256:" + hashlib.sha256(raw).hexdigest())
    if not file.first_line:
        raise TraceError("the file is empty; give a trace with requests")
    return file


def _decompressed(raw: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            return stream.read(MAX_TRACE_BYTES + 1)
    except EOFError:
        raise TraceError("the gzip stream is cut off; fetch or write the file again") from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"the gzip stream is damaged ({error}); fetch or write the file again") from None


@dataclass(frozen=True, slots=True)
class Reader:
    """A format: its name, a line about it, how it is recognised by content, and how it is read."""

    name: str
    description: str
    recognises: Callable[[TraceFile], bool]
    read: Callable[[TraceFile, ReadOptions], Trace]


def cut_off(line: int) -> NoReturn:
    """Raise the error of a file whose last line is not whole."""
    raise TraceError(
        f"the file is cut off @ line {line}: its last line is not whole and has no line end; "
        "fetch or write the file again"
    )
