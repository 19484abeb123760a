"""What a step costs, as a sum over what it does."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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


@dataclass(frozen=True)
class StepCosts:
    """Microseconds of a step, and of one of each feature; none is negative."""

    base_us: float = 0.0
    sequence_us: float = 0.0
    context_token_us: float = 0.0
    prefill_token_us: float = 0.0
    prefill_pair_us: float = 0.0
    table_entry_us: float = 0.0
    block_us: float = 0.0

    def step_us(self, features: Sequence[float]) -> float:
        """Return the microseconds of a step with these `FEATURES`."""
        return sum(float(cost) * count for cost, count in zip(astuple(self), features, strict=True))
