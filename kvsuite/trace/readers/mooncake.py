"""Mooncake JSON lines: arrivals, lengths and prefix ids, without a header.

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces: whole milliseconds from 0, one id a
512 tokens, the last for a partial block. Other producers write seconds, epoch times, 16-token blocks or
no id for a partial block under the same keys, so nothing of this is taken on trust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.columns import BuildRules, ParsedRows, build_trace
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
    lines, found = decode_rows(file.lines(), file, MooncakeRow, times=("timestamp",))
    _check_ids(lines, found)
    unit = _time_unit(found, options)
    block_size, tail = _blocks(lines, found, options)
    rows = ParsedRows(
        labels=LABELS,
        lines=lines,
        times=[row.timestamp for row in found],
        time_unit=unit,
        prompt_tokens=[row.input_length for row in found],
        output_tokens=[row.output_length for row in found],
        request_ids=[_name(row) for row in found],
        hash_ids=[row.hash_ids for row in found],
        hashed_tokens=[_covered(row.input_length, block_size, tail) for row in found],
        sessions=[None if row.session_id is None else str(row.session_id) for row in found],
        priorities=[row.priority or 0 for row in found],
    )
    rules = BuildRules(block_size=block_size, drop_zero_prompts=True, sort=options.sort)
    return build_trace(rows, file.source(NAME), rules)


def _name(row: MooncakeRow) -> str | None:
    given = row.id if row.request_id is None else row.request_id
    return None if given is None else str(given)


def _covered(tokens: int, block_size: int, tail: Tail) -> int:
    return tokens if tail == "ceil" or block_size == 0 else tokens // block_size * block_size


def _check_ids(lines: list[int], rows: list[MooncakeRow]) -> None:
    for line, row in zip(lines, rows, strict=True):
        if row.hash_ids and any(type(raw) is int and raw > _MAX_ID for raw in row.hash_ids):
            raise TraceError(
                f"id @ line {line} $.hash_ids: expected at most {_MAX_ID}; write larger ids as strings"
            )


def _time_unit(rows: list[MooncakeRow], options: ReadOptions) -> TimeUnit:
    if options.time_unit is not None:
        return options.time_unit
    if any(row.block_size is not None for row in rows):
        raise AmbiguousTrace(
            "rows carry block_size, which only other producers write, some with times in s and some in ms: "
            "give --time-unit s, ms, us or ns"
        )
    check_milliseconds([row.timestamp for row in rows])
    return "ms"


def _blocks(lines: list[int], rows: list[MooncakeRow], options: ReadOptions) -> tuple[int, Tail]:
    """Return block size and tail rule; size 0 where no row has ids."""
    counts = IdCounts.of(LABELS, lines, [row.input_length for row in rows], [row.hash_ids for row in rows])
    stated = _stated_block_size(lines, rows, options)
    if len(counts.ids) == 0:
        return 0, "ceil"
    if stated is not None:
        return stated, settle_tail(counts, stated, options.tail)
    return settle_blocks(counts, BLOCK_SIZE, options.tail)


def _stated_block_size(lines: list[int], rows: list[MooncakeRow], options: ReadOptions) -> int | None:
    stated = options.trace_block_size
    origin = "--trace-block-size says"
    for line, row in zip(lines, rows, strict=True):
        if row.block_size is None:
            continue
        if stated is None:
            stated, origin = row.block_size, f"line {line} says"
        if row.block_size != stated:
            raise TraceError(
                f"block_size {row.block_size} @ line {line} $.block_size: expected {stated}, as {origin}; "
                "a trace has one block size"
            )
    return stated


READER = Reader(NAME, "Mooncake JSON lines: arrivals, lengths, prefix ids", recognises, read)
