"""A trace as a cell names it: what another process needs to open it, and what it must then contain.

Within a process a trace is opened once and shared by every cell and thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.errors import TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.options import TraceOptions, open_trace
from kvsuite.trace.synthetic import workload_names

if TYPE_CHECKING:
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.trace.model import Trace

KEPT_TRACES = 2
"""Traces a process keeps open. Cells come trace by trace, so that one is in use, or two at the border."""


@dataclass(frozen=True)
class TraceRef:
    """A trace by place, reading options and content.

    One that was opened already may ride along for the threads of this process. It is left behind on the
    way to another process, unless there is no place to read it from.
    """

    name: str
    content_hash: str
    place: str | None = None
    """An absolute path, or the name of a built-in workload; ``None`` for a trace in memory or from a pipe."""
    options: TraceOptions = field(default_factory=TraceOptions)
    opened: Trace | None = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, text: str, options: TraceOptions, *, name: str | None = None) -> TraceRef:
        """Open the trace called ``text``; ``name`` is what records call it.

        **Raises:** `TraceError` from the readers.
        """
        trace = open_trace(text, options)
        path = Path(text)
        place = text if text in workload_names() else str(path.absolute()) if path.is_file() else None
        return cls(name or text, content_hash(trace), place, options, trace)

    @classmethod
    def of(cls, trace: Trace, name: str = "trace") -> TraceRef:
        """Return the reference of a trace that lies in memory alone: it travels whole."""
        return cls(name, content_hash(trace), opened=trace)

    def open(self) -> Trace:
        """Return the trace, opened once in this process.

        **Raises:** `TraceError` when it cannot be read, or has another content than when it was named.
        """
        return _OPENED.trace(self)

    def requests(self, step_us: int) -> Requests:
        """Return its requests as the compiled core wants them, converted once in this process."""
        return _OPENED.requests(self, step_us)

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        if self.place is not None:
            state["opened"] = None
        return state


class _Opened:
    """The traces of this process, by content."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._requests: dict[tuple[str, int], Requests] = {}

    def trace(self, ref: TraceRef) -> Trace:
        with self._lock:
            return self._trace(ref)

    def requests(self, ref: TraceRef, step_us: int) -> Requests:
        from kvsuite.replay.compiled.requests import requests_of

        with self._lock:
            key = ref.content_hash, step_us
            if key not in self._requests:
                self._requests[key] = requests_of(self._trace(ref), step_us)
            return self._requests[key]

    def _trace(self, ref: TraceRef) -> Trace:
        if ref.content_hash not in self._traces:
            self._traces[ref.content_hash] = _open(ref)
            if len(self._traces) > KEPT_TRACES:
                gone, _ = self._traces.popitem(last=False)
                self._requests = {key: kept for key, kept in self._requests.items() if key[0] != gone}
        self._traces.move_to_end(ref.content_hash)
        return self._traces[ref.content_hash]


_OPENED = _Opened()


def _open(ref: TraceRef) -> Trace:
    if ref.opened is not None:
        return ref.opened
    place = ref.place or ref.name
    trace = open_trace(place, ref.options)
    found = content_hash(trace)
    if found != ref.content_hash:
        raise TraceError(
            f"{place} has the content {found}, and the sweep began with {ref.content_hash}: the file is "
            "another one here, or has changed; start the sweep anew"
        )
    return trace
