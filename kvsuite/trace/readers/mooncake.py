"""Mooncake JSON lines: arrivals, lengths and prefix ids, without a header.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces: whole milliseconds from 0, one id a
512 tokens, the last for a partial block. Other producers write seconds, epoch times, 16-token blocks or
no id for a partial block under the same keys, so nothing of this is taken on trust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.parsed import Batch, ParsedRows
from kvsuite.trace.readers.blocks import IdCounts, settle_blocks, settle_tail
from kvsuite.trace.readers.jsonl import decode_rows
from kvsuite.trace.readers.source import Reader
from kvsuite.trace.readers.units import check_milliseconds
from kvsuite.trace.rows import LABELS, Whole

if TYPE_CHECKING:
    from kvsuite.trace.clock import TimeUnit
    from kvsuite.trace.model import Trace
    from kvsuite.trace.readers.source import ReadOptions, TraceFile
    from kvsuite.trace.rows import Tail

NAME = "mooncake"
BLOCK_SIZE = 512
_REQUIRED = {"timestamp", "input_length", "output_length"}
_OTHER_FORMATS = {"schema", "chat_id", "parent_chat_id"}
_MAX_ID = 2**64 - 1


class MooncakeRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row; keys after ``hash_ids`` come from other producers and say what they say in a canonical file."""

    timestamp: Any
    input_length: Whole
    output_length: Whole
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)] | str] | None = None
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    request_id: str | None = None
    id: str | int | None = None
    session_id: str | int | None = None
    priority: Whole | None = None


def recognises(file: TraceFile) -> bool:
    """Return whether the first line has the keys of a Mooncake row and none that marks another format."""
    keys = set(file.first_object)
    return keys >= _REQUIRED and not keys & _OTHER_FORMATS


def read(file: TraceFile, options: ReadOptions) -> Trace:
    """Read the file; rows without prompt tokens are dropped and counted.

    **Raises:** `AmbiguousTrace` where unit, block size or tail rule are in doubt; `TraceError` for a bad row.
    """
    rows = ParsedRows(LABELS)
    stated = _StatedBlockSize(options.trace_block_size)
    for lines, found in decode_rows(file.lines(), file, MooncakeRow, times=("timestamp",)):
        _check_ids(lines, found)
        stated.look_into(lines, found)
        rows.extend(_batch(lines, found))
    unit = _time_unit(rows, stated, options)
    block_size, tail = _blocks(rows, stated, options)
    rules = BuildRules(
        time_unit=unit, block_size=block_size, tail=tail, drop_zero_prompts=True, sort=options.sort
    )
    return build_trace(rows, file.source(NAME), rules)


def _batch(lines: list[int], rows: list[MooncakeRow]) -> Batch:
    return Batch(
        lines=lines,
        times=[row.timestamp for row in rows],
        prompt_tokens=[row.input_length for row in rows],
        output_tokens=[row.output_length for row in rows],
        request_ids=[_name(row) for row in rows],
        hash_ids=[row.hash_ids for row in rows],
        sessions=[None if row.session_id is None else str(row.session_id) for row in rows],
        priorities=[row.priority or 0 for row in rows],
    )


def _name(row: MooncakeRow) -> str | None:
    given = row.id if row.request_id is None else row.request_id
    return None if given is None else str(given)


def _check_ids(lines: list[int], rows: list[MooncakeRow]) -> None:
    for line, row in zip(lines, rows, strict=True):
        if row.hash_ids and any(type(raw) is int and raw > _MAX_ID for raw in row.hash_ids):
            raise TraceError(
                f"id @ line {line} $.hash_ids: expected at most {_MAX_ID}; write larger ids as strings"
            )


class _StatedBlockSize:
    """The block size that rows state, or an option."""

    def __init__(self, given: int | None) -> None:
        self.tokens = given
        self.in_rows = False
        self._origin = "--trace-block-size says"
        self._other: tuple[int, int] | None = None
        """Line of the first row that states another size, and that size."""

    def look_into(self, lines: list[int], rows: list[MooncakeRow]) -> None:
        """Note what the rows state."""
        for line, row in zip(lines, rows, strict=True):
            if row.block_size is None:
                continue
            self.in_rows = True
            if self.tokens is None:
                self.tokens, self._origin = row.block_size, f"line {line} says"
            if row.block_size != self.tokens and self._other is None:
                self._other = line, row.block_size

    def check(self) -> None:
        """Raise the `TraceError` of rows that contradict each other or the option."""
        if self._other is not None:
            line, tokens = self._other
            raise TraceError(
                f"block_size {tokens} @ line {line} $.block_size: expected {self.tokens}, as {self._origin}; "
                "a trace has one block size"
            )


def _time_unit(rows: ParsedRows, stated: _StatedBlockSize, options: ReadOptions) -> TimeUnit:
    if options.time_unit is not None:
        return options.time_unit
    if stated.in_rows:
        raise AmbiguousTrace(
            "rows carry block_size, which only other producers write, some with times in s and some in ms: "
            "give --time-unit s, ms, us or ns"
        )
    check_milliseconds(rows.times)
    return "ms"


def _blocks(rows: ParsedRows, stated: _StatedBlockSize, options: ReadOptions) -> tuple[int, Tail]:
    """Return block size and tail rule; size 0 where no row has ids."""
    counts = IdCounts.of(LABELS, rows.lines, rows.prompts.column(), rows.prompt_ids.column())
    stated.check()
    if len(counts.ids) == 0:
        return 0, "ceil"
    if stated.tokens is not None:
        return stated.tokens, settle_tail(counts, stated.tokens, options.tail)
    return settle_blocks(counts, BLOCK_SIZE, options.tail)


READER = Reader(NAME, "Mooncake JSON lines: arrivals, lengths, prefix ids", recognises, read)
