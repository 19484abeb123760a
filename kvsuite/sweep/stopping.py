"""How a thread that runs a cell learns that nobody waits for it any more."""

from __future__ import annotations

import threading

_HERE = threading.local()


class Stopped(Exception):
    """The sweep has ended before this cell did."""


def stop_by(event: threading.Event) -> None:
    """Let ``event`` stop what this thread runs."""
    _HERE.event = event


def raise_if_stopped(done: int, total: int) -> None:
    """Go on, or not: given to a replay as its progress.

    **Raises:** `Stopped` in a thread whose event is set.
    """
    del done, total
    event: threading.Event | None = getattr(_HERE, "event", None)
    if event is not None and event.is_set():
        raise Stopped
