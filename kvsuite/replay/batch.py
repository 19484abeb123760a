"""The data of a batch: its limits, a request under way, and what one step does."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.ledger.tracker import StepFacts
    from kvsuite.replay.step_costs import StepCosts
    from kvsuite.trace.model import Request, RequestId
    from kvsuite.trace.tokens import TokenContent

SEMANTICS_VERSION = 1
"""Raised whenever a replay of the same trace on the same engine may come to other rows."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of the batch and the length of a step.

    ``max_step_tokens`` is the budget of one step: decode first, prompt chunks from the rest.
    ``lookahead_tokens`` are asked for beyond each decoded token where the engine claims look-ahead; every
    draft is rejected. With ``costs`` a step lasts as long as what it does, and ``step_us`` says nothing:
    see `kvsuite.replay.step_clock.CostClock`.
    """

    max_sequences: int = 256
    max_step_tokens: int = 8192
    step_us: int = 50_000
    lookahead_tokens: int = 0
    costs: StepCosts | None = None

    def __post_init__(self) -> None:
        for name in ("max_sequences", "max_step_tokens", "step_us"):
            if getattr(self, name) < 1:
                raise ConfigError(f"scheduler: {name} is {getattr(self, name)}, expected 1 or more")
        if self.lookahead_tokens < 0:
            raise ConfigError(f"scheduler: lookahead_tokens is {self.lookahead_tokens}, expected 0 or more")
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"scheduler: a budget of {self.max_step_tokens} tokens a step cannot give each of "
                f"{self.max_sequences} sequences a token: raise it or lower max_sequences"
            )


def scheduler_recipe(config: SchedulerConfig) -> dict[str, int | str]:
    """Return what tells one scheduler from another; costs, which most have none of, are a single text."""
    recipe: dict[str, int | str] = asdict(config)
    if recipe.pop("costs", None) is not None:
        recipe["costs"] = str(config.costs)
    return recipe


class Ending(enum.Enum):
    """How a request ended."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    """Refused for good: larger than the empty pool."""
    FORK_DENIED = "fork_denied"
    """A child that found no seat or no room."""
    ORPHANED = "orphaned"
    """A child whose parent ended before the fork point."""


@dataclass(slots=True)
class Sequence:
    """A request under way. ``target`` tokens are to be computed before it decodes (again)."""

    request: Request
    content: TokenContent
    target: int
    generated: int = 0
    computed: int = 0
    runs: bool = False
    hit_tokens: int = 0
    preemptions: int = 0
    arrived_step: int | None = None
    admitted_step: int | None = None
    first_token_step: int | None = None
    ended_step: int | None = None
    ending: Ending | None = None
    stuck_at: int | None = None
    """Tokens it had computed when it last gave way with nothing else running."""
    loading_steps: int = 0
    """Steps in a row that its blocks were on their way from another tier, with nothing running."""
    written_before: int = 0
    """Tokens it had computed when it was last preempted."""

    @property
    def request_id(self) -> RequestId:
        """The request's id."""
        return self.request.request_id

    @property
    def decodes(self) -> bool:
        """Whether its prompt is computed."""
        return self.computed >= self.target


@dataclass(slots=True)  # one a token: a frozen one takes three times as long to make
class Write:
    """Tokens ``start..stop`` of a sequence, to be written this step; ``hit`` of them before came by a hit."""

    sequence: Sequence
    start: int
    stop: int
    hit: int = 0


@dataclass(slots=True)
class StepPlan:
    """What one step does."""

    step: int
    writes: list[Write]
    num_decodes: int
    """So many of the writes come first and are decoded tokens; the others are chunks of prompts."""
    facts: StepFacts
    pressed: bool = False
    """An admission or extension was refused, or a sequence preempted."""
