"""What a step costs, and when each request of a clocked replay got its tokens."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.compiled.replay import CompiledReplay
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

Float64Array = npt.NDArray[np.float64]

FEATURES = (
    "steps",
    "sequences",
    "context_tokens",
    "prefill_tokens",
    "prefill_pairs",
    "table_entries",
    "blocks",
)
"""What is counted of a step, in the order of the fields of `StepCosts`."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Microseconds by which a step lasts longer for each thing that it does; see `FEATURES`.

    **Raises:** `ConfigError` for a cost that is negative or no number.
    """

    base_us: float = 0.0
    sequence_us: float = 0.0
    context_token_us: float = 0.0
    prefill_token_us: float = 0.0
    prefill_pair_us: float = 0.0
    table_entry_us: float = 0.0
    block_us: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            cost = getattr(self, field.name)
            if not (math.isfinite(cost) and cost >= 0):
                raise ConfigError(f"step costs: {field.name} is {cost}, expected 0 or more")

    def step_us(self, features: Sequence[int] | Int64Array) -> float:
        """Return how long a step with these features lasts."""
        return float(sum(cost * count for cost, count in zip(astuple(self), features, strict=True)))


@dataclass(frozen=True)
class RequestTimes:
    """One entry a request, in the order of the trace."""

    arrival_us: Float64Array
    ttft_us: Float64Array
    """nan where no answer token was written."""
    itl_p99_us: Float64Array
    """nan where there are fewer than two."""
    output_tokens: Int64Array
    ending: Int64Array
    """Member numbers of `kvsuite.replay.batch.Ending`; -1 where it did not end."""
    prompt_tokens: Int64Array


@dataclass(frozen=True)
class ClockedReplay:
    """A replay with the time at which each step ended."""

    replay: CompiledReplay | Replay
    times: RequestTimes
    step_end_us: Float64Array
    running: Int64Array
    features: Int64Array


def clocked_replay(
    trace: Trace,
    config: EngineConfig,
    scheduler: SchedulerConfig,
    costs: StepCosts,
    *,
    max_buckets: int = 1024,
    requests: Requests | None = None,
) -> ClockedReplay:
    """Replay ``trace`` with steps that last what they cost."""
    raise NotImplementedError
