"""A trace file as lines, read once, and what a reader of one format is."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from kvsuite.errors import TraceError
from kvsuite.trace.model import TraceSource
from kvsuite.trace.readers.stream import LineStream, in_batches, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Self

    from kvsuite.trace.clock import TimeUnit
    from kvsuite.trace.model import Trace
    from kvsuite.trace.rows import Tail

_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
BATCH_ROWS = 4096
"""Rows that exist as Python objects at once."""
_BATCH_BYTES = 1 << 22
MAX_TRACE_BYTES = 16 << 30
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


class TraceFile:
    """A trace file, read once from its first line to its last, without a byte-order mark."""

    def __init__(self, path: Path, batch_rows: int) -> None:
        self.path = path
        self.batch_rows = batch_rows
        self.unended_line: int | None = None
        """Number of a line that was read and has no line end: the last, and it may be cut off."""
        self._stream = LineStream(path, MAX_TRACE_BYTES)
        self._rest = iter(self._stream)
        self._blank_lines = self._blank_bytes = 0
        start = next(self._rest, b"")
        if start.startswith(_WIDE_BOMS):
            raise TraceError("the file is UTF-16 or UTF-32 text; write it as UTF-8")
        start = start.removeprefix(_BOM)
        while start and not start.strip():
            self._blank_lines += 1
            self._blank_bytes += len(start)
            start = next(self._rest, b"")
        self._start = start
        if not start:
            raise TraceError("the file is empty; give a trace with requests")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    @property
    def first_line(self) -> bytes:
        """The first line that is not blank."""
        return self._start.strip()

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """The first line as a JSON object; empty where it is none."""
        try:
            found = msgspec.json.decode(self.first_line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield line numbers from 1 and lines that are not blank, without LF or CRLF."""
        for number, line in enumerate(chain([self._start], self._rest), self._blank_lines + 1):
            if not line.endswith(b"\n"):
                self.unended_line = number
            if text := line.strip():
                yield number, text

    def batches(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the lines in lists of up to ``batch_rows``, and fewer where lines are long."""
        return in_batches(lines, self.batch_rows, _BATCH_BYTES, lambda line: len(line[1]))

    def text_lines(self) -> Iterator[str]:
        """Yield lines with their ends, LF, CRLF or CR, all of them.

        **Raises:** `TraceError` when one is not UTF-8.
        """
        count, at = self._blank_lines, self._blank_bytes
        yield from repeat("\n", count)
        for line in chain([self._start], self._rest):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise TraceError(
                    f"byte {at + error.start} is not UTF-8 ({error.reason}); write the file as UTF-8"
                ) from None
            at += len(line)
            several = -1 < text.find("\r") < len(text) - 2 or text.endswith("\r")
            parts = io.StringIO(text, newline="").readlines() if several else [text]
            count += len(parts)
            if not text.endswith("\n"):
                self.unended_line = count
            yield from parts

    def source(self, format_name: str) -> TraceSource:
        """Return what a trace read from this file says of its source, once its lines were read."""
        name = self.path.name.encode("utf-8", "backslashreplace").decode()
        return TraceSource(format=format_name, name=name, digest=self._stream.digest())


def open_trace_file(path: Path, batch_rows: int = BATCH_ROWS) -> TraceFile:
    """Open a file, to be read in batches of up to ``batch_rows``; gzip is recognised by its first bytes.

    **Raises:** `FileNotFoundError` when it is not there; `TraceError` when it cannot be read, is empty, or is
    a damaged gzip stream; later, from its lines, when it holds more than `MAX_TRACE_BYTES`.
    """
    try:
        return TraceFile(path, batch_rows)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error


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
