"""A trace again and again: as long as one likes, and in every copy what it was."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.checks import ROW_COLUMNS
from kvsuite.trace.clock import MAX_US
from kvsuite.trace.model import ABSENT, Fill
from kvsuite.trace.ragged import constant, repeated
from kvsuite.trace.request_ids import TiledIds

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import Int64Array


def tiled(trace: Trace, copies: int) -> Trace:
    """Return the trace ``copies`` times, one after the other; 1 is the trace itself.

    A copy begins one mean gap between arrivals, at least 1 us, after the last arrival of the copy before. No
    two copies share a prefix or a session. Requests are called ``NAME~0`` in the first copy, ``NAME~1`` in
    the next, and so on.

    **Raises:** `TraceError` for fewer than one copy, and for so many that time runs out of range.
    """
    if copies < 1:
        raise TraceError(f"{copies} copies of a trace: expected 1 or more")
    if copies == 1:
        return trace
    period_us = _period_us(trace)
    last_us = max(int(trace.arrival_us[-1]), int(trace.cancel_at_us.max(initial=ABSENT)))
    if last_us + period_us * (copies - 1) > MAX_US:
        raise TraceError(
            f"{copies} copies of {period_us} us each reach beyond {MAX_US} us: give fewer copies"
        )
    columns: dict[str, Any] = {name: repeated(getattr(trace, name), copies) for name in ROW_COLUMNS}
    columns["arrival_us"] = _shifted(trace.arrival_us, copies, period_us)
    columns["cancel_at_us"] = _shifted_given(trace.cancel_at_us, copies, period_us)
    columns["parent"] = _shifted_given(trace.parent, copies, len(trace))
    columns["session"] = _shifted_given(trace.session, copies, int(trace.session.max(initial=ABSENT)) + 1)
    offsets = constant(len(trace) * copies + 1, 0)
    if len(trace.nodes):
        offsets = np.append(
            _shifted(trace.node_offsets[:-1], copies, len(trace.nodes)), len(trace.nodes) * copies
        )
    return replace(
        trace,
        request_ids=TiledIds(trace.request_ids, copies),
        node_offsets=offsets,
        nodes=_shifted(trace.nodes, copies, trace.num_nodes),
        scopes=trace.scopes * copies,
        filled=(*trace.filled, Fill("repeat", f"repeat:copies={copies}", 0)),
        rows_added=trace.rows_added + len(trace) * (copies - 1),
        **columns,
    )


def _period_us(trace: Trace) -> int:
    span_us = int(trace.arrival_us[-1] - trace.arrival_us[0])
    gap_us = round(Fraction(span_us, len(trace) - 1)) if len(trace) > 1 else 0
    return span_us + max(gap_us, 1)


def _shifted(values: Int64Array, copies: int, shift: int) -> Int64Array:
    """Return the values again and again, those of copy ``k`` larger by ``k * shift``."""
    return (values + shift * np.arange(copies, dtype=np.int64)[:, None]).reshape(-1)


def _shifted_given(values: Int64Array, copies: int, shift: int) -> Int64Array:
    """Return `_shifted`, absent values kept absent."""
    if not (values != ABSENT).any():
        return constant(len(values) * copies, ABSENT)
    shifted = _shifted(values, copies, shift)
    shifted[np.tile(values == ABSENT, copies)] = ABSENT
    return shifted
