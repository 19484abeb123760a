"""When a step begins: steps of one length, or steps that last as long as what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.step_costs import StepCosts

    Float64Array = npt.NDArray[np.float64]


class StepClock:
    """Steps of one length: step ``k`` begins at ``k * step_us``."""

    def __init__(self, step_us: int) -> None:
        self.now_us: float = 0
        """When the step under way began."""
        self._step_us = step_us

    def next_step(self, step: int, arrival_us: int) -> int:
        """Return the first step from ``step`` on that sees an arrival; nobody is there until then."""
        return max(step, -(-arrival_us // self._step_us))

    def begin(self, step: int) -> None:
        """Begin a step."""
        self.now_us = step * self._step_us


class CostClock(StepClock):
    """Steps that last as long as `StepCosts` say, one after the other: idle time is no step.

    Time is a float64 of microseconds, added up step by step.
    """

    def __init__(self, costs: StepCosts) -> None:
        self.now_us: float = 0.0
        self._costs = costs

    def next_step(self, step: int, arrival_us: int) -> int:
        """Go on to an arrival, and return ``step``: nobody is there until then."""
        self.now_us = max(self.now_us, float(arrival_us))
        return step

    def begin(self, step: int) -> None:
        """Begin a step, when the one before has ended."""

    def end(self, features: Sequence[int]) -> None:
        """End the step that had ``features``."""
        self.now_us += self._costs.step_us(features)


def clock_of(config: SchedulerConfig) -> StepClock:
    """Return the clock that a scheduler goes by."""
    return StepClock(config.step_us) if config.costs is None else CostClock(config.costs)


@dataclass(frozen=True, slots=True)
class ClockLog:
    """When the steps of a clocked replay ended, and which of them wrote whose answers."""

    step_end_us: Float64Array
    """float64[steps]"""
    features: Int64Array
    """int64[steps, features]: see `kvsuite.replay.step_costs.StepCosts`."""
    running: Int64Array
    """int64[steps]: live sequences in the forward pass."""
    token_spans: Int64Array
    """int64[spans, 3]: a request, and the first and last of steps in a row in each of which it wrote a token
    of its answer for the first time; by request and step.

    What a child has from its parent is not its own, and no token of its answer. A token that was scheduled in
    the step in which its sequence gave way is written when that is computed again.
    """
