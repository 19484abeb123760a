"""CSV columns by name, as text; every error names its line and column."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, TypeVar

from kvsuite.errors import TraceError
from kvsuite.trace.readers.source import cut_off
from kvsuite.trace.readers.stream import in_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.trace.readers.source import TraceFile

T = TypeVar("T")


def column_names(line: bytes) -> tuple[str, ...]:
    """Return the cells of a header line, without blanks around them; none where it is no line of CSV."""
    text = line.decode("utf-8", errors="replace")
    try:
        return tuple(cell.strip() for cell in next(csv.reader([text]), []))
    except csv.Error:
        return ()


def read_columns(
    file: TraceFile,
    names: tuple[str, ...],
    parse: Callable[[list[int], dict[str, list[str]]], T],
    *,
    ignored: tuple[str, ...] = (),
) -> Iterator[T]:
    """Yield what ``parse`` makes of line numbers and the cells of each column of ``names``, batch by batch.

    Columns may stand in any order. Of several faults in a batch the one that stands first is raised.

    **Raises:** `TraceError` for a missing, unknown or repeated column, or a row with another number of cells.
    """
    rows = _rows(file)
    header_line, header = next(rows, (0, []))
    if not header:
        raise TraceError(f"no columns: expected a header line with {', '.join(names)}")
    found = [cell.strip() for cell in header]
    _check_header(header_line, found, names, ignored)
    places = {name: found.index(name) for name in names}
    for batch in in_batches(_checked(rows, found, file), file.batch_rows):
        try:
            yield parse(*_columns(batch, places))
        except TraceError:
            for row in batch:
                parse(*_columns([row], places))
            raise


def _rows(file: TraceFile) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and cells of the rows that are not blank."""
    reader = csv.reader(file.text_lines(), strict=True)
    try:
        for row in reader:
            if "".join(row).strip():
                yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num} is not CSV ({error}); correct or remove the line") from None


def _checked(
    rows: Iterator[tuple[int, list[str]]], header: list[str], file: TraceFile
) -> Iterator[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != len(header):
            if line == file.unended_line:
                cut_off(line)
            raise TraceError(
                f"{len(row)} cells @ line {line}: expected {len(header)} ({', '.join(header)}); "
                "correct the row"
            )
        yield line, row


def _columns(
    batch: list[tuple[int, list[str]]], places: dict[str, int]
) -> tuple[list[int], dict[str, list[str]]]:
    return [line for line, _ in batch], {
        name: [row[place] for _, row in batch] for name, place in places.items()
    }


def _check_header(line: int, found: list[str], names: tuple[str, ...], ignored: tuple[str, ...]) -> None:
    missing = [name for name in names if name not in found]
    unknown = [name for name in found if name not in (*names, *ignored)]
    if missing or unknown or len(set(found)) != len(found):
        fault = "missing" if missing else "unknown" if unknown else "repeated"
        which = missing or unknown or sorted({name for name in found if found.count(name) > 1})
        raise TraceError(
            f"{fault} column {', '.join(which)} @ line {line}: found {', '.join(found)}; "
            f"expected {', '.join(names)}"
        )


def whole_numbers(cells: list[str], lines: list[int], name: str) -> list[int]:
    """Return the cells as whole numbers; a sign is kept, so that a negative one can be refused by name.

    **Raises:** `TraceError` for anything else, such as ``12.0``.
    """
    for line, cell in zip(lines, cells, strict=True):
        digits = cell.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
            raise TraceError(
                f"{cell!r} @ line {line} column {name}: expected a whole number; correct the row"
            )
    return [int(cell) for cell in cells]
