"""CSV columns by name, as text; every error names its line and column."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from kvsuite.errors import TraceError
from kvsuite.trace.readers.source import cut_off

if TYPE_CHECKING:
    from kvsuite.trace.readers.source import TraceFile


def column_names(line: bytes) -> tuple[str, ...]:
    """Return the cells of a header line, without blanks around them; none where it is no line of CSV."""
    text = line.decode("utf-8", errors="replace")
    try:
        return tuple(cell.strip() for cell in next(csv.reader([text]), []))
    except csv.Error:
        return ()


def read_columns(
    file: TraceFile, names: tuple[str, ...], *, ignored: tuple[str, ...] = ()
) -> tuple[list[int], dict[str, list[str]]]:
    """Return line numbers, and the cells of each column of ``names``, whatever their order in the file.

    **Raises:** `TraceError` for a missing, unknown or repeated column, or a row with another number of cells.
    """
    reader = csv.reader(io.StringIO(file.text(), newline=""), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if row and any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num} is not CSV ({error}); correct or remove the line") from None
    if not rows:
        raise TraceError(f"no columns: expected a header line with {', '.join(names)}")
    (header_line, header), *rest = rows
    found = [cell.strip() for cell in header]
    _check_header(header_line, found, names, ignored)
    for line, row in rest:
        if len(row) != len(found):
            if line == rest[-1][0] and not file.ends_with_newline:
                cut_off(line)
            raise TraceError(
                f"{len(row)} cells @ line {line}: expected {len(found)} ({', '.join(found)}); correct the row"
            )
    places = {name: found.index(name) for name in names}
    return [line for line, _ in rest], {
        name: [row[place] for _, row in rest] for name, place in places.items()
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
