"""The contract of an engine that schedules and samples by itself: requests go in, and we watch.

One step of a replay, as such an engine sees it::

    cancel(request)        clients that went away
    submit(request)        requests that arrived
    step()                 the engine schedules, computes and samples, at most one token an answer
    observe()              what can be seen now

What an engine does not show is ``None`` or left out, never 0: the laws that need it are not judged then.
Pools may be seen as they stand in the step's forward pass or after it, so that a request which ended in the
step may or may not be counted. After the last request has ended one more step is made, and nothing may be
held then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.contract import EngineSpec, Release
    from kvsuite.engine.snapshot import PoolKey, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """What an engine says of one pool in numbers; ``None`` where it says nothing."""

    key: PoolKey
    used_blocks: int | None = None
    """Blocks that requests hold; cached ones that nobody holds are not used."""
    free_blocks: int | None = None
    """Every other block that can be taken, cached ones included."""
    total_blocks: int | None = None
    pool_bytes: int | None = None
    """Bytes of the whole pool."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What can be seen after one step."""

    running: tuple[RequestId, ...] | None
    """Requests that hold blocks, oldest first; ``None``: it cannot be seen which."""
    finished: Mapping[RequestId, Release]
    """Requests that ended since the observation before, each once, and how."""
    snapshots: tuple[PoolSnapshot, ...] = ()
    """Every pool in full, or none. A sequence is called by its request's id; of several answers to one
    request, number ``k`` from 1 up is called ``<id>/<k>``."""
    counts: tuple[PoolCounts, ...] = ()
    """Pools that only numbers are given of."""
    generated: Mapping[RequestId, tuple[int, ...]] = field(default_factory=dict)
    """Tokens of each answer so far; a request whose answers cannot be seen yet is left out."""
    refused: Mapping[RequestId, str] = field(default_factory=dict)
    """Requests that the engine gave up since the observation before, with its reason in its own words."""
    num_running: int | None = None
    """How many requests the step computed, where ``running`` is ``None``."""


@runtime_checkable
class RequestEngine(Protocol):
    """An engine that schedules and samples by itself; it claims ``Capability.REQUEST_DRIVEN``.

    It goes on to ``max_tokens`` whatever it samples. Limits of its batch are options of its configuration:
    ``max_sequences`` and ``max_step_tokens``, where it has them.
    """

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        ...

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Take a request for ``num_answers`` answers of ``max_tokens`` tokens each.

        More answers than one are asked only of an engine that claims ``Capability.SAMPLES``.
        """
        ...

    def cancel(self, request_id: RequestId) -> None:
        """Learn that the client went away; the request ends in the next step, or the one after it."""
        ...

    def step(self) -> None:
        """Run one step."""
        ...

    def observe(self) -> Observation:
        """Return what can be seen now."""
        ...
