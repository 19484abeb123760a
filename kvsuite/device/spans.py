"""How long parts of a step take: thread CPU time on a CPU, events on a card."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Spans(Protocol):
    """A context manager entered around each part that is timed."""

    def __enter__(self) -> object:
        """Begin a part."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        ...

    def take_us(self) -> float:
        """Return the microseconds of all parts since the last call, and begin anew."""
        ...


class CpuSpans:
    """Adds up what a clock of seconds says of each part; by default the CPU time of this thread.

    >>> ticks = iter([1.0, 1.5, 2.0, 2.25])
    >>> spans = CpuSpans(lambda: next(ticks))
    >>> for _ in range(2):
    ...     with spans:
    ...         pass
    >>> spans.take_us(), spans.take_us()
    (750000.0, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._seconds = self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._seconds += self._clock() - self._began

    def take_us(self) -> float:
        """Return the microseconds of all parts since the last call, and begin anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds * 1e6


class CudaSpans:
    """Marks each part with two events on the current stream of a card; `take_us` waits for the last one."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def __enter__(self) -> None:
        self._mark()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mark()

    def take_us(self) -> float:
        """Return the microseconds of all parts since the last call, and begin anew."""
        torch.cuda.synchronize(self._device)
        events, self._events = self._events, []
        pairs = zip(events[::2], events[1::2], strict=True)
        return sum(1e3 * float(begin.elapsed_time(end)) for begin, end in pairs)

    def _mark(self) -> None:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)


def spans_on(device: str) -> Spans:
    """Return the spans for ``cpu`` or ``cuda:N``."""
    return CpuSpans() if device == "cpu" else CudaSpans(device)


def timed(call: Callable[[], object], spans: Spans) -> float:
    """Return the microseconds of a call that comes after an untimed one."""
    call()
    return timed_now(call, spans)


def timed_now(call: Callable[[], object], spans: Spans) -> float:
    """Return the microseconds of one call."""
    spans.take_us()
    with spans:
        call()
    return spans.take_us()
