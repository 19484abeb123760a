"""What the engine's side of a replay tells the ledger's side: one `Frame` a step, all plain values.

`kvsuite.replay.steps` makes them beside the engine, `kvsuite.replay.recorder` makes rows of them. In this
order::

    Opening                     the pools before the first step
    Frame                       a step, up to its forward pass
      Check                     only where a full snapshot or a memory claim is due in that step
    Frame, Check, ...
    Closing                     the pools after the last step, and how every request fared

A frame is handed over before its step is settled, so that an engine that fails in `Engine.done` is found
with that step recorded; what comes after the forward pass stands at the head of the next frame. Arrays of a
snapshot belong to the engine and hold until it is asked for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.contract import Ops, RefusalReason
    from kvsuite.engine.snapshot import MemoryClaim, PoolSnapshot
    from kvsuite.ledger.invariants import Violation
    from kvsuite.ledger.tracker import StepFacts
    from kvsuite.replay.addresses import Indices
    from kvsuite.replay.batch import Ending, Sequence, Write
    from kvsuite.replay.step_clock import ClockLog
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request fared; steps are absent where it never came so far.

    Of an engine that schedules by itself, what it does not show is absent too.
    """

    index: int
    ending: Ending | None
    arrived_step: int | None
    admitted_step: int | None
    first_token_step: int | None
    ended_step: int | None
    generated_tokens: int | None
    final_tokens: int
    hit_tokens: int | None
    preemptions: int | None


@dataclass(slots=True)
class Leaving:
    """A running sequence is about to give its blocks back; ``final_tokens`` where it has all its answers."""

    step: int
    sequence: Sequence
    final_tokens: int | None


@dataclass(slots=True)
class Forked:
    """A child now shares its parent's blocks, ``tokens`` tokens long."""

    parent_id: RequestId
    child: Sequence
    tokens: int


Event = Leaving | Forked


@dataclass(slots=True)
class Since:
    """What happened since the frame before: the end of its step, and the beginning of the next."""

    events: list[Event] = field(default_factory=list)
    after: StepFacts | None = None
    """What to add to the row of the step before."""
    violations: tuple[Violation, ...] = ()
    """What the scheduler saw."""
    ended: int = 0
    """Requests that had ended when the step before was over."""


@dataclass(slots=True)
class Opening:
    """The pools before the first step, in full."""

    snapshots: tuple[PoolSnapshot, ...]


@dataclass(slots=True)
class Frame:
    """One step, up to its forward pass.

    ``request_ids`` and ``lengths`` are the running sequences and the tokens that each was given slots for,
    oldest first. ``snapshots`` are full where every token is to be read, else changes where the engine
    gives them. Transfers of ``ops`` begin here and have ended when the next part comes.
    """

    since: Since
    step: int
    facts: StepFacts
    ops: Ops
    snapshots: tuple[PoolSnapshot, ...]
    request_ids: list[RequestId]
    lengths: list[int]
    writes: list[Write]
    memory_due: bool
    """Whether memory is to be observed in this step."""
    indices: Indices | None = None
    """Of an engine that claims SLOTS."""


@dataclass(slots=True)
class Check:
    """What is asked of an engine at intervals, in the step of the frame before."""

    full: tuple[PoolSnapshot, ...] | None
    """Full snapshots that the changes must have come to."""
    claim: MemoryClaim | None


@dataclass(slots=True)
class Closing:
    """The pools after the last step, in full, and what the scheduler knows."""

    since: Since
    snapshots: tuple[PoolSnapshot, ...]
    outcomes: tuple[Outcome, ...]
    refusals: Mapping[RefusalReason, int]
    clock: ClockLog | None
    """Where steps last as long as what they do."""


@dataclass(slots=True)
class Broken:
    """The last part where the engine failed: the error follows."""

    since: Since


Part = Opening | Frame | Check | Closing | Broken
