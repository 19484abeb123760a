"""Azure LLM inference trace, 2023: wall-clock arrivals and lengths, no prefixes.

Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_{code,conv}.csv: CRLF, no last line end,
stamps with 7 decimal places.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING

from kvsuite.errors import TraceError
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.parsed import Batch, Labels, ParsedRows
from kvsuite.trace.readers.source import Reader
from kvsuite.trace.readers.table import column_names, read_columns, whole_numbers

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.readers.source import ReadOptions, TraceFile

NAME = "azure"
LABELS = Labels("TIMESTAMP", "ContextTokens", "GeneratedTokens", prefix="column ")
_COLUMNS = (LABELS.time, LABELS.prompt, LABELS.output)
_IMAGES = "NumImages"
"""Images of the 2025 multimodal trace; their tokens are counted in ContextTokens."""
_STAMP = re.compile(
    r"(?P<minute>\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(?P<second>[0-5]\d(?:\.\d{1,12})?)(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def recognises(file: TraceFile) -> bool:
    """Return whether the header has the three columns, in any order."""
    return set(_COLUMNS) <= set(column_names(file.first_line))


def read(file: TraceFile, options: ReadOptions) -> Trace:
    """Read the file; rows without prompt tokens are dropped and counted.

    **Raises:** `TraceError` for a bad row, or an option that the format settles.
    """
    options.refuse(NAME, "its stamps are wall-clock times", "time_unit")
    options.refuse(NAME, "it has no prefix hashes", "trace_block_size", "tail")
    clock = _WallClock()

    def parse(lines: list[int], cells: dict[str, list[str]]) -> Batch:
        return Batch(
            lines=lines,
            times=clock.seconds(cells[LABELS.time], lines),
            prompt_tokens=whole_numbers(cells[LABELS.prompt], lines, LABELS.prompt),
            output_tokens=whole_numbers(cells[LABELS.output], lines, LABELS.output),
        )

    rows = ParsedRows(LABELS)
    for batch in read_columns(file, _COLUMNS, parse, ignored=(_IMAGES,)):
        rows.extend(batch)
    rules = BuildRules(time_unit="s", drop_zero_prompts=True, sort=options.sort)
    return build_trace(rows, file.source(NAME), rules)


class _WallClock:
    """Reads stamps, all of which have a time zone or none."""

    def __init__(self) -> None:
        self._zoned: bool | None = None

    def seconds(self, cells: list[str], lines: list[int]) -> list[Decimal]:
        """Return exact seconds since 1970 of stamps such as ``2023-11-16 18:15:46.6805900``, zone or none.

        **Raises:** `TraceError` for anything else, or where some stamps have a zone and some have none.
        """
        minutes: dict[str, int] = {}
        found: list[Decimal] = []
        for line, cell in zip(lines, cells, strict=True):
            match = _STAMP.fullmatch(cell.strip())
            if match is None:
                raise TraceError(
                    f"{cell!r} @ {LABELS.place(line, LABELS.time)}: expected a stamp such as "
                    "2023-11-16 18:15:46.6805900; correct the row"
                )
            minute, second, zone = match["minute"], match["second"], match["zone"]
            if self._zoned is not None and self._zoned != (zone is not None):
                raise TraceError(
                    f"{cell!r} @ {LABELS.place(line, LABELS.time)}: stamps with and without a time zone "
                    "are mixed; give every stamp the same"
                )
            self._zoned = zone is not None
            start = minutes.get(minute + (zone or ""))
            if start is None:
                start = minutes[minute + (zone or "")] = _minute_seconds(
                    minute, zone, LABELS.place(line, LABELS.time)
                )
            found.append(start + Decimal(second))
        return found


def _minute_seconds(minute: str, zone: str | None, place: str) -> int:
    try:
        local = datetime.strptime(minute.replace("T", " "), "%Y-%m-%d %H:%M").replace(tzinfo=_zone(zone))
    except ValueError:
        raise TraceError(f"{minute!r} @ {place}: no such date or time; correct the row") from None
    return int((local - _EPOCH).total_seconds())


def _zone(zone: str | None) -> timezone:
    if zone is None or zone == "Z":
        return UTC
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    return timezone(offset if zone[0] == "+" else -offset)


READER = Reader(NAME, "Azure LLM inference 2023 CSV: arrivals and lengths", recognises, read)
