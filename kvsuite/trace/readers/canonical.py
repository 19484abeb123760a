"""The canonical form: JSON lines under a header that states version, block size and tail rule.

docs/traces.md defines every key. Nothing is guessed: what the header says, every row must obey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.identity import content_hash
from kvsuite.trace.model import Fill, TraceSource
from kvsuite.trace.parsed import ParsedRows
from kvsuite.trace.readers.blocks import IdCounts, check_counts, settle_tail
from kvsuite.trace.readers.jsonl import decode_object, decode_rows
from kvsuite.trace.readers.source import Reader
from kvsuite.trace.rows import LABELS, SCHEMA, SCHEMA_VERSION, Header, Row, batch_of

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.readers.source import ReadOptions, TraceFile
    from kvsuite.trace.rows import Tail

NAME = "canonical"
T = TypeVar("T")


def recognises(file: TraceFile) -> bool:
    """Return whether the first line is a header of this schema, of any version."""
    return file.first_object.get("schema") == SCHEMA


def read(file: TraceFile, options: ReadOptions) -> Trace:
    """Read the file and check it against its header, content hash included where it is given.

    **Raises:** `TraceError` for another version, a bad row, or a row or hash that denies the header;
    `AmbiguousTrace` where the header leaves the block size open and no option settles it.
    """
    options.refuse(NAME, "its times are in ms", "time_unit")
    lines = file.lines()
    header_line, first = next(lines)
    header = _header(file, first, header_line)
    block_size = _settled(header.block_size, options.trace_block_size, "block_size", "--trace-block-size")
    stated_tail: Tail | None = _settled(header.tail, options.tail, "tail", "--tail")
    rows = ParsedRows(LABELS, local_ids=header.hash_id_scope == "local")
    faults = _Faults(block_size or 1)
    decoded = decode_rows(lines, file, Row, times=("timestamp",), optional_times=("cancel_at",))
    for numbers, batch in decoded:
        rows.extend(batch_of(batch, numbers))
        faults.look_into(numbers, batch)
    if header.requests is not None and header.requests != len(rows):
        raise TraceError(
            f"{len(rows)} requests @ line {header_line} $.requests: the header says {header.requests}; "
            "the file was cut or edited: fetch it again, or correct the header"
        )
    tail = _tail(rows, block_size, stated_tail)
    faults.refuse(rows)
    rules = BuildRules(
        time_unit="ms",
        block_size=block_size or 0,
        tail=tail,
        sort=options.sort,
        hash_scope=header.hash_id_scope,
        dropped=header.dropped,
        filled=tuple(Fill(fill.name, fill.rule, fill.seed) for fill in header.filled),
        rows_added=header.added,
    )
    trace = build_trace(rows, _source(header, file), rules)
    if header.content_hash is not None and header.content_hash != (found := content_hash(trace)):
        raise TraceError(
            f"content_hash {header.content_hash} @ line {header_line} $.content_hash: the rows hash to "
            f"{found}; the file was edited after it was written: fetch it again, or take the key out of the "
            "header"
        )
    return trace


def _header(file: TraceFile, line: bytes, number: int) -> Header:
    found = file.first_object
    if found.get("schema") != SCHEMA:
        raise TraceError(
            f"no header @ line {number} $.schema: expected the first line to have schema {SCHEMA}"
        )
    version = found.get("version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise TraceError(
            f"version {version} @ line {number} $.version: this kvsuite reads version {SCHEMA_VERSION}; "
            "install a kvsuite that reads it, or convert the file with the one that wrote it"
        )
    return decode_object(line, Header, number)


def _source(header: Header, file: TraceFile) -> TraceSource:
    if header.source is None:
        return file.source(NAME)
    given = header.source
    return TraceSource(given.format or NAME, given.name or file.path.name, given.digest, given.license)


def _tail(rows: ParsedRows, block_size: int | None, stated: Tail | None) -> Tail:
    """Return the tail rule, every row checked against it and the block size."""
    prompt_tokens = rows.prompts.column()
    prompts = IdCounts.of(LABELS, rows.lines, prompt_tokens, rows.prompt_ids.column())
    finished = IdCounts.of(
        LABELS,
        rows.lines,
        prompt_tokens + rows.outputs.column(),
        rows.finished_ids.column(),
        "output_hash_ids",
    )
    if block_size is None:
        if len(prompts.ids) or len(finished.ids):
            raise AmbiguousTrace(
                "rows have prefix ids and the header has no block_size: add it to the header, or give "
                "--trace-block-size"
            )
        return "ceil"
    tail = settle_tail(prompts if len(prompts.ids) else finished, block_size, stated)
    check_counts(finished, block_size, tail)
    return tail


def _settled(stated: T | None, given: T | None, key: str, option: str) -> T | None:
    if stated is not None and given is not None and stated != given:
        raise TraceError(f"{option} {given} contradicts {key} {stated} of the header; leave the option out")
    return given if stated is None else stated


class _Faults:
    """What may be wrong with the ids of rows, told only when every row has the right number of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._disagreement: tuple[int, int] | None = None
        """Line of the first row whose two lists of ids disagree, and the full blocks of its prompt."""
        self._unscoped_line: int | None = None
        """Line of the first row with ids and without a session."""

    def look_into(self, lines: list[int], rows: list[Row]) -> None:
        """Note the first row of each kind."""
        for line, row in zip(lines, rows, strict=True):
            ids, finished = row.hash_ids, row.output_hash_ids
            if row.session_id is None and self._unscoped_line is None and (ids or finished):
                self._unscoped_line = line
            if ids is None or finished is None or self._disagreement is not None:
                continue
            full = row.input_length // self._block_size
            if ids[:full] != finished[:full]:
                self._disagreement = line, full

    def refuse(self, rows: ParsedRows) -> None:
        """Raise the `TraceError` of a fault that counts in this file."""
        if self._disagreement is not None:
            line, full = self._disagreement
            raise TraceError(
                f"output_hash_ids @ line {line} $.output_hash_ids: they cover prompt and answer and must "
                f"start with the prompt's {full} full blocks as hash_ids gives them; correct the row"
            )
        if rows.local_ids and self._unscoped_line is not None:
            raise TraceError(
                f"ids without session_id @ line {self._unscoped_line} $.session_id: hash_id_scope is local, "
                "so ids mean something within a session only; give the row its session"
            )


READER = Reader(NAME, "kvsuite's own JSON lines with a header: the whole lifecycle", recognises, read)
