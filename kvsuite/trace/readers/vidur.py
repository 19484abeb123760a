"""vidur trace: arrivals in seconds and lengths, no prefixes.

Source: github.com/microsoft/vidur, data/processed_traces: seconds are floats written as decimal text.
"""

from __future__ import annotations

import re
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

NAME = "vidur"
LABELS = Labels("arrived_at", "num_prefill_tokens", "num_decode_tokens", prefix="column ")
_COLUMNS = (LABELS.time, LABELS.prompt, LABELS.output)
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?")


def recognises(file: TraceFile) -> bool:
    """Return whether the header has vidur's columns of lengths, in any order."""
    return {LABELS.prompt, LABELS.output} <= set(column_names(file.first_line))


def read(file: TraceFile, options: ReadOptions) -> Trace:
    """Read the file; rows without prompt tokens are dropped and counted.

    **Raises:** `TraceError` for a file of lengths only, a bad row, or an option that the format settles.
    """
    options.refuse(NAME, "arrived_at is in seconds", "time_unit")
    options.refuse(NAME, "it has no prefix hashes", "trace_block_size", "tail")
    if LABELS.time not in column_names(file.first_line):
        raise TraceError(
            f"a vidur file of lengths only: there is no column {LABELS.time}, so no request has an arrival; "
            "give a file with arrivals, or write arrivals into a canonical file"
        )
    rows = ParsedRows(LABELS)
    for batch in read_columns(file, _COLUMNS, _batch):
        rows.extend(batch)
    rules = BuildRules(time_unit="s", drop_zero_prompts=True, sort=options.sort)
    return build_trace(rows, file.source(NAME), rules)


def _batch(lines: list[int], cells: dict[str, list[str]]) -> Batch:
    return Batch(
        lines=lines,
        times=_seconds(cells[LABELS.time], lines),
        prompt_tokens=whole_numbers(cells[LABELS.prompt], lines, LABELS.prompt),
        output_tokens=whole_numbers(cells[LABELS.output], lines, LABELS.output),
    )


def _seconds(cells: list[str], lines: list[int]) -> list[Decimal]:
    for line, cell in zip(lines, cells, strict=True):
        if _NUMBER.fullmatch(cell.strip()) is None:
            raise TraceError(
                f"{cell!r} @ {LABELS.place(line, LABELS.time)}: expected seconds as a number; correct the row"
            )
    return [Decimal(cell.strip()) for cell in cells]


READER = Reader(NAME, "vidur CSV: arrivals in seconds and lengths", recognises, read)
