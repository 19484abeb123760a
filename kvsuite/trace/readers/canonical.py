"""The canonical form: JSON lines under a header that states version, block size and tail rule.

docs/traces.md defines every key. Nothing is guessed: what the header says, every row must obey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.identity import content_hash
from kvsuite.trace.model import Fill, TraceSource
from kvsuite.trace.readers.blocks import IdCounts, check_counts, settle_tail
from kvsuite.trace.readers.jsonl import decode_object, decode_rows
from kvsuite.trace.readers.source import Reader
from kvsuite.trace.rows import LABELS, SCHEMA, SCHEMA_VERSION, Header, Row, parsed_rows

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
    (header_line, first), *rest = file.lines()
    header = _header(file, first, header_line)
    lines, rows = decode_rows(rest, file, Row, times=("timestamp",), optional_times=("cancel_at",))
    if header.requests is not None and header.requests != len(rows):
        raise TraceError(
            f"{len(rows)} requests @ line {header_line} $.requests: the header says {header.requests}; "
            "the file was cut or edited: fetch it again, or correct the header"
        )
    block_size, tail = _blocks(header, lines, rows, options)
    parsed = parsed_rows(rows, lines, block_size, tail, _scopes(header, lines, rows))
    rules = BuildRules(
        block_size=block_size,
        sort=options.sort,
        hash_scope=header.hash_id_scope,
        dropped=header.dropped,
        filled=tuple(Fill(fill.name, fill.rule, fill.seed) for fill in header.filled),
        rows_added=header.added,
    )
    trace = build_trace(parsed, _source(header, file), rules)
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


def _blocks(header: Header, lines: list[int], rows: list[Row], options: ReadOptions) -> tuple[int, Tail]:
    """Return block size and tail rule, every row checked against them."""
    block_size = _settled(header.block_size, options.trace_block_size, "block_size", "--trace-block-size")
    stated_tail: Tail | None = _settled(header.tail, options.tail, "tail", "--tail")
    prompts = IdCounts.of(LABELS, lines, [row.input_length for row in rows], [row.hash_ids for row in rows])
    finished = IdCounts.of(
        LABELS,
        lines,
        [row.input_length + row.output_length for row in rows],
        [row.output_hash_ids for row in rows],
        "output_hash_ids",
    )
    if block_size is None:
        if len(prompts.ids) or len(finished.ids):
            raise AmbiguousTrace(
                "rows have prefix ids and the header has no block_size: add it to the header, or give "
                "--trace-block-size"
            )
        return 0, "ceil"
    tail = settle_tail(prompts if len(prompts.ids) else finished, block_size, stated_tail)
    check_counts(finished, block_size, tail)
    _check_agreement(lines, rows, block_size)
    return block_size, tail


def _settled(stated: T | None, given: T | None, key: str, option: str) -> T | None:
    if stated is not None and given is not None and stated != given:
        raise TraceError(f"{option} {given} contradicts {key} {stated} of the header; leave the option out")
    return given if stated is None else stated


def _check_agreement(lines: list[int], rows: list[Row], block_size: int) -> None:
    for line, row in zip(lines, rows, strict=True):
        if row.hash_ids is None or row.output_hash_ids is None:
            continue
        full = row.input_length // block_size
        if row.hash_ids[:full] != row.output_hash_ids[:full]:
            raise TraceError(
                f"output_hash_ids @ line {line} $.output_hash_ids: they cover prompt and answer and must "
                f"start with the prompt's {full} full blocks as hash_ids gives them; correct the row"
            )


def _scopes(header: Header, lines: list[int], rows: list[Row]) -> list[int]:
    """Return the namespace of each row's ids: one for all, or one a session."""
    if header.hash_id_scope == "global":
        return []
    numbers: dict[str, int] = {}
    scopes: list[int] = []
    for line, row in zip(lines, rows, strict=True):
        if row.session_id is None:
            if row.hash_ids or row.output_hash_ids:
                _refuse_scope(line)
            scopes.append(0)
            continue
        scopes.append(numbers.setdefault(row.session_id, len(numbers)))
    return scopes


def _refuse_scope(line: int) -> NoReturn:
    raise TraceError(
        f"ids without session_id @ line {line} $.session_id: hash_id_scope is local, so ids mean something "
        "within a session only; give the row its session"
    )


READER = Reader(NAME, "kvsuite's own JSON lines with a header: the whole lifecycle", recognises, read)
