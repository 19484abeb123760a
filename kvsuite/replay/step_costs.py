"""How long a step lasts: what it does, each thing at its cost."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    Costs = Sequence[float] | npt.NDArray[np.float64]
    Features = Sequence[int] | npt.NDArray[np.int64]

FEATURES = (
    "steps",
    "sequences",
    "context_tokens",
    "prefill_tokens",
    "prefill_pairs",
    "table_entries",
    "blocks",
)
"""What is counted of a step, in the order of the fields of `StepCosts`; see there."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Microseconds by which a step lasts longer for each thing that it does.

    **Raises:** `ConfigError` for a cost that is negative or no number.
    """

    base_us: float = 0.0
    """A step, whatever it does: the feature is 1."""
    sequence_us: float = 0.0
    """A sequence that decodes and writes its token."""
    context_token_us: float = 0.0
    """A token that such a sequence reads: its length, the token written included."""
    prefill_token_us: float = 0.0
    """A token that a chunk of a prompt writes; after a preemption the answer belongs to the prompt."""
    prefill_pair_us: float = 0.0
    """A token of a chunk times a token that it reads: those before it and itself. A chunk of the positions
    ``start..stop`` has ``(stop * (stop + 1) - start * (start + 1)) / 2`` of these pairs."""
    table_entry_us: float = 0.0
    """An entry of the tables of live sequences, in the forward pass: ``table_entries`` of the ledger."""
    block_us: float = 0.0
    """A block taken or given back since the row before: ``allocated`` and ``freed`` of the ledger."""

    def __post_init__(self) -> None:
        for field in fields(self):
            cost = getattr(self, field.name)
            if not (math.isfinite(cost) and cost >= 0):
                raise ConfigError(f"step costs: {field.name} is {cost}, expected 0 or more")

    @property
    def in_order(self) -> tuple[float, ...]:
        """The costs in the order of `FEATURES`."""
        return tuple(map(float, astuple(self)))

    def step_us(self, features: Features) -> float:
        """Return how long a step with ``features``, in the order of `FEATURES`, lasts."""
        return step_us(self.in_order, features)

    def __str__(self) -> str:
        shown = [f"{field.name} {getattr(self, field.name)!r}" for field in fields(self)]
        return ", ".join(shown)


def step_us(costs: Costs, features: Features) -> float:
    """Return the sum of ``costs`` times ``features``, added up from the first to the last.

    The order is part of the definition: `kvsuite.replay.compiled` compiles this very function, and both come
    to the same bits.
    """
    total = 0.0
    for k in range(len(costs)):
        total += costs[k] * features[k]
    return total
