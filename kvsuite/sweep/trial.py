"""What an option must bear before it ships: the lifecycle of its fullest stretch, and the declared burst.

Where more samples are declared to diverge at once than it bears with shared prefixes, it may ship without
them, if it then still qualifies tokens; else it does not ship. Nor does it where sharing is what options
differ in: without sharing it is the other option.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.errors import EngineError
from kvsuite.sweep.burst import largest_burst
from kvsuite.sweep.charge import charged
from kvsuite.sweep.fullest import fullest_stretch
from kvsuite.sweep.lifecycle import cut_short, lived_through
from kvsuite.sweep.measure import phase

if TYPE_CHECKING:
    from kvsuite.record.decision_rows import BurstRow, LifecycleRow
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.costs import CostSource
    from kvsuite.sweep.fullest import Stretch
    from kvsuite.sweep.measure import Clock, Measured, Measurement
    from kvsuite.sweep.slo import Slo
    from kvsuite.trace.model import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How an option bore it."""

    lifecycle: LifecycleRow
    """As it would ship."""
    burst: BurstRow | None
    """With sharing; ``None`` for an option that shares nothing, and for an engine that does not fork."""
    sharing: bool
    """Whether it would ship with shared prefixes."""
    unshared_tokens: tuple[int, ...] = ()
    """Qualified tokens of the steady phase without them, one a repeat; where sharing had to go."""
    unfit: str | None
    """Why it must not ship."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Tries options of one measurement, on the trace, costs and clock they were measured with."""

    trace: Trace
    source: CostSource
    slo: Slo
    clock: Clock
    measurement: Measurement
    declared_burst: int = 0
    """Samples that may fork and diverge at once; 0 where none is declared."""

    def __call__(self, measured: Measured) -> Trial:
        """Try one option that ran; one whose engine leaves nothing to judge is unfit."""
        stretch = self._stretch(measured.cell)
        try:
            return self._tried(measured.cell, stretch)
        except EngineError as error:
            lifecycle = cut_short(stretch, error)
            return Trial(
                lifecycle=lifecycle,
                burst=None,
                sharing=measured.cell.prefix_cache,
                unfit=_not_survived(lifecycle),
            )

    def _tried(self, cell: Cell, stretch: Stretch) -> Trial:
        burst = largest_burst(stretch) if cell.prefix_cache else None
        if burst is None or self.declared_burst <= burst.largest:
            lifecycle = lived_through(stretch)
            return Trial(
                lifecycle=lifecycle, burst=burst, sharing=cell.prefix_cache, unfit=_not_survived(lifecycle)
            )
        unshared = replace(cell, prefix_cache=False)
        short = f"bears a divergence burst of {burst.largest} and {self.declared_burst} are declared"
        if (rival := self._measured_as(unshared)) is not None:
            return Trial(
                lifecycle=lived_through(stretch),
                burst=burst,
                sharing=True,
                unfit=f"{short}; with sharing off it is {rival.name}",
            )
        tokens = self._qualified(unshared)
        lifecycle = lived_through(self._stretch(unshared))
        unfit = _not_survived(lifecycle)
        if not sum(tokens):
            unfit = f"{short}, and with sharing off it qualifies no token"
        return Trial(lifecycle=lifecycle, burst=burst, sharing=False, unshared_tokens=tokens, unfit=unfit)

    def _measured_as(self, cell: Cell) -> Measured | None:
        return next((other for other in self.measurement.options if other.cell == cell), None)

    def _stretch(self, cell: Cell) -> Stretch:
        costs = self.source.draw(cell.block_size, 0)
        paid, _ = charged(cell, self.trace)
        return fullest_stretch(cell, self.trace, costs, self.clock(paid, self.trace, costs))

    def _qualified(self, cell: Cell) -> tuple[int, ...]:
        paid, _ = charged(cell, self.trace)
        steady_us = (self.measurement.cold_until_us, float("inf"))
        draws = (self.source.draw(cell.block_size, repeat) for repeat in range(self.measurement.repeats))
        return tuple(
            phase(self.clock(paid, self.trace, costs), self.trace, self.slo, steady_us).qualified_tokens
            for costs in draws
        )


def _not_survived(lifecycle: LifecycleRow) -> str | None:
    return None if lifecycle.broken is None else f"does not survive its lifecycle: {lifecycle.broken}"
