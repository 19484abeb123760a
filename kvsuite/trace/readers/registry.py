"""The formats that can be read. A further one is a module with a `Reader`, and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.readers import azure, canonical, mooncake, vidur

if TYPE_CHECKING:
    from kvsuite.trace.readers.source import Reader, TraceFile

READERS: tuple[Reader, ...] = (
    canonical.READER,
    mooncake.READER,
    azure.READER,
    vidur.READER,
)


def format_names() -> tuple[str, ...]:
    """Return the names that ``--format`` takes."""
    return tuple(reader.name for reader in READERS)


def reader_named(name: str) -> Reader:
    """Return the reader of a format.

    **Raises:** `TraceError` that lists the known ones.
    """
    for reader in READERS:
        if reader.name == name:
            return reader
    raise TraceError(f"unknown format {name}: expected one of {', '.join(format_names())}")


def detect(file: TraceFile) -> Reader:
    """Return the one reader that recognises the file by its content; its name does not count.

    **Raises:** `TraceError` when none does, `AmbiguousTrace` when several do.
    """
    found = [reader for reader in READERS if reader.recognises(file)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(reader.name for reader in found or READERS)
    if found:
        raise AmbiguousTrace(f"the file can be read as {names}: give --format")
    start = file.first_line[:80].decode("utf-8", errors="replace")
    raise TraceError(
        f"no known format starts with {start!r}: known are {names}; convert the file to one of them, "
        "or name it with --format to see what is wrong with it"
    )
