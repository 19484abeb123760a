"""The text of a golden: what its lines mean, how they are written, and what is refused on reading.

A golden is JSON with one row a line. A row is ``[step, {column: value}]`` and lists only what is not
still: a level column by its change since the row before, an event column by its count. ``null`` means
that the value could not be seen; a number after a null is a change from 0. Longer replays have
*buckets* of consecutive rows instead, ``[last step, rows, digest, {column: value}]``: the levels'
change over the bucket, the events' sums, and a digest of the rows inside. ``totals`` (events) and
``peaks`` (levels) name every column and must agree with the rows; ``seal`` covers all lines above it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import GoldenError
from kvsuite.golden.key import Question, Scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FORMAT = "kvsuite.golden/1"
REMEDY = "restore the file from version control, or record it again with --update-goldens"
Changes = dict[str, int | None]
Facts = dict[str, Scalar]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One row: the step, and what changed."""

    step: int
    changes: Changes


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows as one: the last step, how many rows, a digest of them, and what changed."""

    step: int
    rows: int
    digest: str
    changes: Changes


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Footprint after a step: different blocks touched so far, digest of the order of block ids."""

    step: int
    distinct_touched: int | None
    id_order: int | None


class PoolGolden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger of one pool; either ``rows`` or ``buckets`` is given, never both."""

    facts: Facts
    absent: list[str]
    """Columns that could not be seen at any step."""
    totals: dict[str, int | None]
    peaks: dict[str, int | None]
    footprint: list[Checkpoint]
    rows: list[Entry] = []
    buckets: list[Bucket] = []

    @property
    def lines(self) -> Sequence[Entry | Bucket]:
        """Rows or buckets, whichever is given."""
        return self.rows or self.buckets


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what the suite itself contributes."""

    ledger_schema: int
    replay_semantics: int


class TraceName(msgspec.Struct, frozen=True, kw_only=True):
    """Which trace was replayed."""

    name: str
    content_hash: str


class Blessed(msgspec.Struct, frozen=True, kw_only=True):
    """How this ledger stood to the baseline when it was accepted."""

    baseline: str
    first_divergence: str
    lines_differ: int
    changed: list[str]


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One golden. ``blessed`` and ``provenance`` are never compared."""

    format: str = FORMAT
    suite: Suite
    case: str
    label: str
    trace: TraceName
    layout: str
    dtype: str
    recipe: dict[str, Scalar]
    effective: dict[str, Scalar]
    rows_per_line: int
    pools: list[PoolGolden]
    blessed: Blessed | None
    provenance: dict[str, str]
    seal: str = ""

    @property
    def question(self) -> Question:
        """What this golden answers."""
        return Question(
            case=self.case,
            trace_name=self.trace.name,
            trace_hash=self.trace.content_hash,
            layout=self.layout,
            dtype=self.dtype,
            recipe=self.recipe,
            label=self.label,
        )

    @property
    def steps(self) -> int:
        """Rows of each pool's ledger."""
        return max((len(p.rows) or sum(b.rows for b in p.buckets) for p in self.pools), default=0)


_HEAD = (
    "format",
    "suite",
    "case",
    "label",
    "trace",
    "layout",
    "dtype",
    "recipe",
    "effective",
    "rows_per_line",
)


def render(document: Document) -> str:
    """Return the text of a golden, sealed; ends with a newline."""
    lines = ["{"]
    lines += [f'"{name}": {_compact(getattr(document, name))},' for name in _HEAD]
    lines += [*_pool_lines(document.pools)]
    lines += [f'"blessed": {_compact(document.blessed)},', f'"provenance": {_compact(document.provenance)},']
    body = "\n".join(lines) + "\n"
    return f'{body}"seal": "{_digest(body)}"\n}}\n'


def render_pools(pools: list[PoolGolden]) -> str:
    """Return the lines of the ledgers alone: what counts against the limit of a file's size."""
    return "\n".join(_pool_lines(pools))


def entry_line(entry: Entry | Bucket) -> str:
    """Return a row as it stands in the file, without its comma."""
    return _compact(entry)


def parse(text: str, where: str) -> Document:
    """Return the golden that ``text`` holds; ``where`` names it in errors.

    **Raises:** `GoldenError` naming the line, where the text is cut, is not a golden, or was edited.
    """
    try:
        document = msgspec.json.decode(text, type=Document)
    except msgspec.DecodeError as error:
        raise _unreadable(text, where, error) from None
    if document.format != FORMAT:
        raise GoldenError(
            f"{where}: format is {document.format!r}, this kvsuite reads {FORMAT!r}: record it again "
            "with --update-goldens, or use the kvsuite that wrote it"
        )
    body, mark, _ = text.rpartition('"seal"')
    if not mark or document.seal != _digest(body):
        line = body.count("\n") + 1
        raise GoldenError(
            f"{where}, line {line}: the seal does not fit the lines above it, so they were edited: {REMEDY}"
        )
    return document


def line_of(text: str, name: str, pool: int) -> int:
    """Return the 1-based line of ``"name":`` in the ``pool``-th pool of a golden."""
    seen = -1
    for number, line in enumerate(text.splitlines(), 1):
        seen += line.startswith('{"facts":')
        if seen == pool and line.startswith(f'"{name}":'):
            return number
    return 1


def _pool_lines(pools: list[PoolGolden]) -> Iterator[str]:
    yield '"pools": ['
    for index, pool in enumerate(pools):
        yield f'{{"facts": {_compact(pool.facts)},'
        for name in ("absent", "totals", "peaks"):
            yield f'"{name}": {_compact(getattr(pool, name))},'
        yield from _list_lines("footprint", pool.footprint, end="],")
        if pool.buckets:
            yield from _list_lines("buckets", pool.buckets, end="]")
        else:
            yield from _list_lines("rows", pool.rows, end="]")
        yield "}," if index + 1 < len(pools) else "}"
    yield "],"


def _list_lines(
    name: str, items: list[Entry] | list[Bucket] | list[Checkpoint], *, end: str
) -> Iterator[str]:
    yield f'"{name}": ['
    for index, item in enumerate(items):
        yield _compact(item) + ("," if index + 1 < len(items) else "")
    yield end


def _compact(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value), separators=(", ", ": "), ensure_ascii=False)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _unreadable(text: str, where: str, error: msgspec.DecodeError) -> GoldenError:
    at = re.search(r"\(byte (\d+)\)", str(error))
    cut = "truncated" in str(error)
    line = (
        text.count("\n") + 1
        if cut
        else text.encode()[: int(at[1])].count(b"\n") + 1
        if at
        else _line_at(text, error)
    )
    if cut:
        return GoldenError(f"{where}, line {line}: the file ends in the middle of a golden: {REMEDY}")
    return GoldenError(f"{where}, line {line}: not a golden ({error}): {REMEDY}")


def _line_at(text: str, error: msgspec.DecodeError) -> int:
    """Return the line of the ``$.field`` that a validation error names, 1 where it names none."""
    path = re.search(r"\$\.(\w+)(?:\[(\d+)\])?(?:\.(\w+))?", str(error))
    if path is None:
        return 1
    if path[3]:
        return line_of(text, path[3], int(path[2] or 0))
    start = text.find(f'\n"{path[1]}":')
    return 1 if start < 0 else text.count("\n", 0, start + 1) + 1
