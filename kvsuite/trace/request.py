"""One row of a trace, and what is said of a trace beside its rows."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

RequestId = NewType("RequestId", str)
ABSENT = -1


class ForkKind(enum.IntEnum):
    """How a child request comes from its parent."""

    SAMPLE = 1
    """One of n parallel samples: shares the parent's prompt."""
    BEAM = 2
    """A beam: shares the parent's prompt and some generated tokens."""
    SPAWN = 3
    """A sub-agent: starts because of the parent and shares nothing."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where a trace came from; never part of its content hash."""

    format: str
    name: str
    digest: str = ""
    license: str = ""


@dataclass(frozen=True, slots=True)
class Fill:
    """Something a trace did not carry and a named, seeded rule added."""

    name: str
    rule: str
    seed: int


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a trace. Times are microseconds from the earliest arrival."""

    index: int
    request_id: RequestId
    arrival_us: int
    prompt_tokens: int
    output_tokens: int
    max_output_tokens: int | None
    parent: int | None
    fork_kind: ForkKind | None
    fork_at: int | None
    """Tokens (prompt and generated) shared with the parent; the child starts when the parent has them."""
    cancel_after: int | None
    """Generated tokens after which the client goes away; 0 is before the first."""
    cancel_at_us: int | None
    session: int | None
    turn: int | None
    priority: int
    scope: str = ""
    """Adapter, media and salt it is computed under; empty: none. Equal tokens of two scopes share nothing."""

    @property
    def final_tokens(self) -> int:
        """Tokens in the cache when the request ends by itself."""
        return self.prompt_tokens + self.output_tokens
