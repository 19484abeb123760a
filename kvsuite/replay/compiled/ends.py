"""What a compiled replay on a clock of costs is collected into, from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.ledger.row import COLUMN_NAMES
from kvsuite.replay.compiled.fields import C
from kvsuite.replay.step_clock import ClockLog

if TYPE_CHECKING:
    from kvsuite.replay.compiled.state import Float64Array, Int64Array, State


_RUNNING = COLUMN_NAMES.index("running")


class ClockBook:
    """Ends of steps and spans of tokens, taken out of ``state`` as they fill its lists."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ends_us: list[Float64Array] = []
        self._features: list[Int64Array] = []
        self._running: list[Int64Array] = []
        self._spans: list[Int64Array] = []

    def collect(self, rows: Int64Array) -> None:
        """Take out what there is; ``rows``, int64[steps, columns], are of the same steps."""
        s = self._state
        if not s.c[C.CLOCKED]:
            return
        self._running.append(rows[:, _RUNNING].copy())
        ends, spans = int(s.c[C.ENDS]), int(s.c[C.SPANS])
        self._ends_us.append(s.ends_us[:ends].copy())
        self._features.append(s.measured[:ends].copy())
        self._spans.append(s.spans[:spans].astype(np.int64))
        s.c[C.ENDS] = s.c[C.SPANS] = 0

    def log(self) -> ClockLog | None:
        """Return all of it; ``None`` where steps are of one length."""
        if not self._state.c[C.CLOCKED]:
            return None
        return ClockLog(
            step_end_us=np.concatenate(self._ends_us),
            features=np.concatenate(self._features),
            running=np.concatenate(self._running),
            token_spans=_token_spans(np.concatenate(self._spans)),
        )


def _token_spans(noted: Int64Array) -> Int64Array:
    """Return spans by request and step from those that were noted as they ended.

    A token that lapsed at the end of one span is written by the last chunk of the computing again, in the
    step before the next span begins.
    """
    noted = noted[np.argsort(noted[:, 0], kind="stable")]
    request, first, last, lapsed = noted.T
    again = np.zeros(len(noted), np.int64)
    again[1:] = np.where(request[1:] == request[:-1], lapsed[:-1], 0)
    first = first - again
    return np.stack([request, first, last], axis=1)[first <= last]
