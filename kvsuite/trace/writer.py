"""Writes a trace: the canonical form without loss, and plain Mooncake with its losses named."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import TraceError
from kvsuite.trace.atomic import write_whole
from kvsuite.trace.identity import content_hash
from kvsuite.trace.model import ABSENT, ForkKind
from kvsuite.trace.rows import SCHEMA, SCHEMA_VERSION, FillFields, Header, SourceFields, rows_of, tail_rule

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.trace.model import Trace
    from kvsuite.trace.rows import Row

MOONCAKE_BLOCK_SIZE = 512
FORMATS = ("canonical", "mooncake")
"""Formats that can be written."""
_ENCODER = msgspec.json.Encoder(decimal_format="number")


def write_trace(trace: Trace, path: Path) -> None:
    """Write the canonical file, gzipped where ``path`` ends in ``.gz``; it appears whole or not at all.

    Reading it gives the same columns, times counted from the earliest arrival, and the same content hash.

    **Raises:** `TraceError` when the file cannot be written, or the prefix nodes follow no one tail rule.
    """
    write_whole(path, _packed(canonical_lines(trace), path))


def canonical_lines(trace: Trace) -> bytes:
    """Return the canonical file: the header line, then one line a request, in UTF-8 with LF."""
    source = trace.source
    header = Header(
        schema=SCHEMA,
        version=SCHEMA_VERSION,
        block_size=trace.block_size or None,
        hash_id_scope="local" if trace.hash_scope == "local" else "global",
        tail=tail_rule(trace) if trace.block_size else None,
        requests=len(trace),
        source=SourceFields(
            format=source.format, name=source.name, digest=source.digest, license=source.license
        ),
        filled=[FillFields(name=fill.name, rule=fill.rule, seed=fill.seed) for fill in trace.filled],
        dropped=dict(trace.dropped),
        added=trace.rows_added,
        content_hash=content_hash(trace),
    )
    return b"".join(_ENCODER.encode(line) + b"\n" for line in [header, *rows_of(trace)])


def mooncake_losses(trace: Trace) -> tuple[str, ...]:
    """Return what a plain Mooncake file of this trace would lose, one sentence a kind; empty: nothing."""
    forks = int((trace.parent != ABSENT).sum())
    cancels = int(((trace.cancel_after != ABSENT) | (trace.cancel_at_us != ABSENT)).sum())
    finished = int((trace.hashed_tokens > trace.prompt_tokens).sum())
    unknown = int((trace.hashed_tokens == ABSENT).sum()) - forks
    floor = trace.block_size > 0 and tail_rule(trace) == "floor"
    other_size = trace.block_size not in (0, MOONCAKE_BLOCK_SIZE)
    found = (
        (forks, f"{forks} forks become requests of their own"),
        (cancels, f"{cancels} cancellations"),
        (int((trace.max_output_tokens != ABSENT).sum()), "caps on the output"),
        (int((trace.session != ABSENT).sum()), "sessions and turns"),
        (int((trace.priority != 0).sum()), "priorities"),
        (sum(map(bool, trace.scopes)), "scopes: equal tokens would be shared across them"),
        (finished, f"prefix ids of {finished} answers"),
        (max(unknown, 0), f"{unknown} requests of unknown sharing become requests that share nothing"),
        (int((trace.arrival_us % 1000 != 0).sum()), "times finer than a millisecond are rounded"),
        (other_size, f"the block size {trace.block_size}: readers take {MOONCAKE_BLOCK_SIZE}"),
        (floor, "the tail rule floor: readers take ceil"),
    )
    return tuple(text for lost, text in found if lost)


def export_mooncake(trace: Trace, path: Path, *, accept_losses: bool = False) -> tuple[str, ...]:
    """Write plain Mooncake lines, without a header, and return what was lost.

    **Raises:** `TraceError` that lists the losses, unless ``accept_losses``; nothing is written then.
    """
    losses = mooncake_losses(trace)
    if losses and not accept_losses:
        raise TraceError(
            f"plain Mooncake cannot carry this trace; lost would be: {'; '.join(losses)}. "
            "Accept the losses with --accept-losses, or write the canonical form"
        )
    rows = rows_of(trace)
    write_whole(path, _packed(b"".join(_mooncake_line(trace, rows, k) for k in range(len(rows))), path))
    return losses


def _mooncake_line(trace: Trace, rows: list[Row], index: int) -> bytes:
    row, owner = rows[index], index
    while trace.parent[owner] != ABSENT and trace.fork_kind[owner] != ForkKind.SPAWN:
        owner = int(trace.parent[owner])
    size = max(trace.block_size, 1)
    blocks = -(-row.input_length // size)
    ids = rows[owner].hash_ids or rows[owner].output_hash_ids or []
    return (
        _ENCODER.encode(
            {
                "timestamp": (int(trace.arrival_us[index]) + 500) // 1000,
                "input_length": row.input_length,
                "output_length": row.output_length,
                "hash_ids": ids[:blocks],
            }
        )
        + b"\n"
    )


def _packed(data: bytes, path: Path) -> bytes:
    """Compress for a ``.gz`` name, without the time of writing, so that equal traces give equal files."""
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
