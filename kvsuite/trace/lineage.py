"""Parents and scopes of the rows that become requests, found by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.trace.ragged import constant
from kvsuite.trace.request import ABSENT, ForkKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.parsed import ParsedRows
    from kvsuite.trace.request import RequestId
    from kvsuite.trace.tokens import Int64Array


def parents_of(rows: ParsedRows, file_rows: Int64Array | None, ids: Sequence[RequestId]) -> Int64Array:
    """Return the index of each request's parent, whose name its row gives.

    **Raises:** `TraceError` that names the line of the first request whose parent is not before it.
    """
    if not any(rows.parents.values()):
        return constant(len(ids), ABSENT)
    wanted = set(rows.parents.values())
    places: dict[str, int] = {name: place for place, name in enumerate(ids) if name in wanted}
    column = np.full(len(ids), ABSENT, np.int64)
    for child, row in _children(rows, file_rows):
        name = rows.parents[row]
        parent = places.get(name)
        if parent is None or parent >= child:
            state = "unknown" if parent is None else "not before its child"
            rows.fail(
                row, "parent", f"parent {name} is {state}", "a parent's line stands before its children's"
            )
        column[child] = parent
    return column


def scopes_of(rows: ParsedRows, file_rows: Int64Array | None, parent: Int64Array) -> tuple[str, ...]:
    """Return the scope of each request; one that is absent in a sample or beam is its parent's."""
    names = rows.scopes.names
    if not any(names):
        return ()
    codes = rows.scopes.codes.column(file_rows).copy()
    inherits = (codes == ABSENT) & (parent != ABSENT) & (rows.fork_kinds.column(file_rows) != ForkKind.SPAWN)
    for child in np.flatnonzero(inherits).tolist():
        codes[child] = codes[parent[child]]
    texts = (*names, "")
    return tuple(texts[code] for code in codes.tolist())


def _children(rows: ParsedRows, file_rows: Int64Array | None) -> list[tuple[int, int]]:
    """Return the requests with a parent, in order, and their rows."""
    if file_rows is None:
        return [(row, row) for row in rows.parents]
    return [(place, row) for place, row in enumerate(file_rows.tolist()) if row in rows.parents]
