"""The form of a snapshot: what breaks it leaves nothing to count, and is the engine's fault by name.

The cheap checks run on every snapshot; whoever looks into every table does so on full ones alone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import EngineError
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.ledger.holdings import Holdings
    from kvsuite.trace.model import RequestId

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_DTYPES: dict[str, np.dtype[np.signedinteger]] = {
    "lengths": _INT64,
    "table_rows": _INT32,
    "table_offsets": _INT64,
    "table_blocks": _INT32,
    "free": _INT32,
    "cached": _INT32,
    "quarantined": _INT32,
    "live": _INT32,
    "never_allocatable": _INT32,
    "null_ids": _INT32,
    "pinned": _INT32,
    "ref_count_ids": _INT32,
    "ref_counts": _INT32,
    "first_live": _INT64,
}
_OPTIONAL = {"ref_count_ids", "ref_counts", "first_live"}
_arrays = attrgetter(*_DTYPES)
MAX_LENGTH_TOKENS = 2**31 - 1


def check_snapshot(
    snapshot: PoolSnapshot, spec: PoolSpec, step: int, *, known: tuple[RequestId, ...], revision: int | None
) -> None:
    """Check types, shapes and ranges; ``known`` and ``revision`` are those of the snapshot before.

    **Raises:** `EngineError` that names the field, what it holds and what the contract asks for.
    """
    for fault in _faults(snapshot, spec, known, revision):
        raise EngineError(f"pool {spec.key}, snapshot at step {step}: {fault}")


def table_laws(snapshot: PoolSnapshot, spec: PoolSpec, step: int) -> Iterator[Violation]:
    """Yield a table of a full snapshot that lists a block twice, or is broken where it has to be one run."""
    blocks = snapshot.table_blocks
    owners = np.repeat(np.arange(len(snapshot.request_ids)), np.diff(snapshot.table_offsets))
    if spec.contiguous:
        breaks = np.flatnonzero((np.diff(blocks) != 1) & (np.diff(owners) == 0))
        if len(breaks):
            at = int(breaks[0])
            message = (
                f"the table of {snapshot.request_ids[int(owners[at])]} goes from slot {blocks[at]} to "
                f"{blocks[at + 1]}: in a contiguous pool it is one unbroken run"
            )
            yield Violation("tables", step, str(spec.key), message)
    if len(snapshot.null_ids):
        owned = ~np.isin(blocks, snapshot.null_ids)
        blocks, owners = blocks[owned], owners[owned]
    entries = np.sort(owners * spec.num_blocks + blocks)
    again = np.flatnonzero(entries[1:] == entries[:-1])
    if len(again):
        owner, block = divmod(int(entries[again[0]]), spec.num_blocks)
        message = (
            f"the table of {snapshot.request_ids[owner]} lists block {block} more than once, so that two "
            f"tokens share a slot ({len(again)} entries are wrong)"
        )
        yield Violation("tables", step, str(spec.key), message)


def table_differences(
    full: PoolSnapshot, holdings: Holdings, spec: PoolSpec, step: int
) -> Iterator[Violation]:
    """Yield tables of a full snapshot that are not what the changes of the same moment came to."""
    gone = [request_id for request_id in holdings.tables if request_id not in full.request_ids]
    if gone:
        message = f"{gone[0]} is live by the changes reported so far, and not in the full snapshot"
        yield Violation("changes", step, str(spec.key), message)
    for row, request_id in enumerate(full.request_ids):
        held = holdings.tables.get(request_id)
        if held is None or not np.array_equal(held.blocks, full.table(row)):
            seen = "no table" if held is None else f"{held.blocks[-3:].tolist()} at its end"
            message = (
                f"table of {request_id} ends in {full.table(row)[-3:].tolist()} in the full snapshot, "
                f"{seen} by the changes reported so far"
            )
            yield Violation("changes", step, str(spec.key), message)


def _faults(
    snapshot: PoolSnapshot, spec: PoolSpec, known: tuple[RequestId, ...], revision: int | None
) -> Iterator[str]:
    for array, (name, dtype) in zip(_arrays(snapshot), _DTYPES.items(), strict=True):
        if not _is_column(array, dtype) and (array is not None or name not in _OPTIONAL):
            yield f"{name} is {_kind(array)}, expected {dtype}[n]{' or None' if name in _OPTIONAL else ''}"
    yield from _scalar_faults(snapshot, spec, revision)
    yield from _sequence_faults(snapshot, known)
    yield from _table_faults(snapshot, spec)
    yield from _ref_count_faults(snapshot, spec)


def _scalar_faults(snapshot: PoolSnapshot, spec: PoolSpec, before: int | None) -> Iterator[str]:
    revision, since, run = snapshot.revision, snapshot.since, snapshot.largest_free_run
    if type(revision) is not int:
        yield f"revision is {_kind(revision)}, expected an int"
    if since is not None and (type(since) is not int or revision <= since):
        yield f"revision {revision} builds on {since!r}, expected a later one than that, both int"
    if since is None and len(snapshot.live):
        yield f"live has {len(snapshot.live)} blocks in a full snapshot, expected it in changed ones alone"
    if before is not None and revision < before:
        yield f"revision went back to {revision} from {before}: a revision never does"
    if type(snapshot.lookahead_tokens) is not int or snapshot.lookahead_tokens < 0:
        yield f"lookahead_tokens is {snapshot.lookahead_tokens!r}, expected an int of 0 or more"
    if run is not None and (type(run) is not int or not 0 <= run <= spec.num_blocks):
        yield f"largest_free_run is {run!r}, expected an int of 0 to {spec.num_blocks} blocks, or None"


def _sequence_faults(snapshot: PoolSnapshot, known: tuple[RequestId, ...]) -> Iterator[str]:
    ids, lengths = snapshot.request_ids, snapshot.lengths
    if type(ids) is not tuple:
        yield f"request_ids is {_kind(ids)}, expected a tuple"
    if len(lengths) != len(ids):
        yield f"{len(lengths)} lengths for {len(ids)} request_ids, expected one each"
    if ids != known:
        if not all(isinstance(request_id, str) for request_id in ids):
            yield "request_ids holds something else than request ids"
        if len(set(ids)) != len(ids):
            twice = next(request_id for request_id in ids if ids.count(request_id) > 1)
            yield f"request_ids has {twice} twice, expected each live sequence once"
    # Seen as unsigned, a length below 0 is a large one.
    if len(lengths) and lengths.view(np.uint64).max() > MAX_LENGTH_TOKENS:
        row = int(np.argmax(lengths.view(np.uint64)))
        yield f"{ids[row]} has length {int(lengths[row])}, expected 0 to {MAX_LENGTH_TOKENS} tokens"
    first = snapshot.first_live
    if first is not None and len(first) != len(ids):
        yield f"{len(first)} entries in first_live for {len(ids)} request_ids, expected one each"


def _table_faults(snapshot: PoolSnapshot, spec: PoolSpec) -> Iterator[str]:
    rows, offsets, blocks = snapshot.table_rows, snapshot.table_offsets, snapshot.table_blocks
    sequences = len(snapshot.request_ids)
    if len(offsets) != len(rows) + 1:
        yield f"{len(offsets)} table_offsets for {len(rows)} table_rows, expected {len(rows) + 1}"
    ends = offsets.tolist()
    if ends[0] != 0 or ends[-1] != len(blocks) or ends != sorted(ends):
        yield f"table_offsets {_ends(ends)} do not rise from 0 to {len(blocks)}, the number of table_blocks"
    owners = rows.tolist()
    if snapshot.is_full and owners != list(range(sequences)):
        yield f"table_rows {_ends(owners)} of a full snapshot, expected 0..{sequences - 1}"
    if owners and (min(owners) < 0 or max(owners) >= sequences or len(set(owners)) != len(owners)):
        yield f"table_rows {_ends(owners)}, expected distinct rows below {sequences}"
    if len(blocks) and blocks.view(np.uint32).max() >= spec.num_blocks:
        outside = (blocks < 0) | (blocks >= spec.num_blocks)
        strays = np.flatnonzero(outside & ~np.isin(blocks, snapshot.null_ids))
        if len(strays):
            table = int(np.searchsorted(offsets, strays[0], side="right")) - 1
            yield (
                f"block {int(blocks[strays[0]])} in the table of {snapshot.request_ids[owners[table]]}, "
                f"the pool has ids 0..{spec.num_blocks - 1}"
            )


def _ref_count_faults(snapshot: PoolSnapshot, spec: PoolSpec) -> Iterator[str]:
    ids, counts = snapshot.ref_count_ids, snapshot.ref_counts
    if ids is None and counts is None:
        return
    if ids is None or counts is None or len(ids) != len(counts):
        found = ["None" if array is None else str(len(array)) for array in (ids, counts)]
        yield f"{found[0]} ref_count_ids and {found[1]} ref_counts, expected as many of both"
    elif len(ids) and ids.view(np.uint32).max() >= spec.num_blocks:
        block = int(ids[np.argmax(ids.view(np.uint32))])
        yield f"ref_count_ids has block {block}, the pool has ids 0..{spec.num_blocks - 1}"


def _is_column(array: object, dtype: np.dtype[np.generic]) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == dtype


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return f"{value!r}"[:80]


def _ends(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{values[0]}, ..., {values[-1]}]"
