"""Samples grafted onto a trace: requests that fork at given lengths, and go one token further."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.trace.checks import ROW_COLUMNS
from kvsuite.trace.model import ABSENT, Fill, ForkKind, RequestId
from kvsuite.trace.ragged import offsets_of, taken

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import Int64Array

RULE = "diverge"


def with_samples(trace: Trace, parents: Int64Array, fork_at: Int64Array) -> Trace:
    """Return the trace with a sample for each entry: of ``parents[k]``, sharing ``fork_at[k]`` tokens.

    Each has one token of its own, so that it diverges at once and is gone with it. Samples stand after their
    parents. ``fork_at`` is less than the parent's final length.

    **Raises:** `TraceError` for a fork point outside the answer of its parent.
    """
    rows = np.concatenate([np.arange(len(trace), dtype=np.int64), parents])
    order = np.argsort(rows, kind="stable")
    rows, fresh = rows[order], order >= len(trace)
    old = np.flatnonzero(~fresh)
    points = fork_at[order[fresh] - len(trace)]
    columns: dict[str, Any] = {name: np.array(taken(getattr(trace, name), rows)) for name in ROW_COLUMNS}
    inherited = columns["parent"]
    columns["parent"] = np.where(inherited == ABSENT, ABSENT, old[inherited.clip(min=0)])
    changed = {
        "parent": old[rows[fresh]],
        "fork_kind": int(ForkKind.SAMPLE),
        "fork_at": points,
        "output_tokens": points + 1 - trace.prompt_tokens[rows[fresh]],
        "hashed_tokens": ABSENT,
        "cancel_after": ABSENT,
        "cancel_at_us": ABSENT,
    }
    for name, values in changed.items():
        columns[name][fresh] = values
    lengths = np.where(fresh, 0, np.diff(trace.node_offsets)[rows])
    return replace(
        trace,
        request_ids=_names(trace, rows, fresh),
        node_offsets=offsets_of(lengths),
        scopes=tuple(trace.scopes[row] for row in rows.tolist()) if trace.scopes else (),
        filled=(*trace.filled, Fill(RULE, f"{RULE}:samples={len(parents)}", 0)),
        rows_added=trace.rows_added + len(parents),
        **columns,
    )


def _names(
    trace: Trace, rows: Int64Array, fresh: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[RequestId, ...]:
    return tuple(
        RequestId(f"{trace.request_ids[row]}/{RULE}{place}") if is_fresh else trace.request_ids[row]
        for place, (row, is_fresh) in enumerate(zip(rows.tolist(), fresh.tolist(), strict=True))
    )
