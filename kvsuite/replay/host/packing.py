"""The parts of a replay as they travel: a sequence is the index of its request, and names are told once.

Both sides have the trace, so what a sequence's tokens are is never sent. A list of names that is the one
of the step before travels as ``None``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.contract import NO_OPS
from kvsuite.engine.snapshot import PoolSnapshot
from kvsuite.ledger.tracker import StepFacts
from kvsuite.replay.batch import Sequence, Write
from kvsuite.replay.frame import Broken, Check, Closing, Forked, Frame, Leaving, Opening, Since
from kvsuite.replay.host.slots import IndicesPacker, IndicesUnpacker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kvsuite.replay.frame import Event, Part
    from kvsuite.trace.model import RequestId, Trace

PackedPart = tuple[Any, ...]
"""The name of a part's class, then what it holds."""

_SNAPSHOT_FIELDS = tuple(field.name for field in fields(PoolSnapshot))
_IDS = _SNAPSHOT_FIELDS.index("request_ids")


class Packer:
    """Packs the parts of one replay, in order."""

    def __init__(self) -> None:
        self._running: list[RequestId] | None = None
        self._shown: dict[int, tuple[RequestId, ...]] = {}
        self._indices = IndicesPacker()

    def pack(self, part: Part) -> PackedPart:
        """Return ``part`` as plain values; whoever unpacks must have had all parts before it."""
        match part:
            case Frame():
                return self._frame(part)
            case Opening():
                return "Opening", self._snapshots(part.snapshots)
            case Check():
                full = None if part.full is None else self._snapshots(part.full)
                return "Check", full, part.claim
            case Closing():
                shots = self._snapshots(part.snapshots)
                return "Closing", _since(part.since), shots, part.outcomes, part.refusals, part.clock
            case Broken():
                return "Broken", _since(part.since)

    def _frame(self, frame: Frame) -> PackedPart:
        same = frame.request_ids == self._running
        self._running = frame.request_ids
        writes = [(w.sequence.request.index, w.start, w.stop, w.hit) for w in frame.writes]
        return (
            "Frame",
            _since(frame.since),
            frame.step,
            (frame.facts.counts, frame.facts.hit_tokens),
            None if frame.ops is NO_OPS else frame.ops,
            self._snapshots(frame.snapshots),
            None if same else frame.request_ids,
            np.array(frame.lengths, np.int64),
            np.array(writes, np.int64).reshape(-1, 4),
            frame.memory_due,
            self._indices.pack(frame.indices),
        )

    def _snapshots(self, snapshots: tuple[PoolSnapshot, ...]) -> list[tuple[Any, ...]]:
        packed = []
        for pool, snapshot in enumerate(snapshots):
            values = [getattr(snapshot, name) for name in _SNAPSHOT_FIELDS]
            # Only a tuple is what the contract asks for; what an engine gives instead is passed on as it is.
            same = type(values[_IDS]) is tuple and values[_IDS] == self._shown.get(pool)
            self._shown[pool] = values[_IDS]
            if same:
                values[_IDS] = ()
            packed.append((same, *values))
        return packed


class Unpacker:
    """Makes parts again of what a `Packer` made of the parts of a replay of ``trace``."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._sequences: dict[int, Sequence] = {}
        self._running: list[RequestId] = []
        self._shown: dict[int, tuple[RequestId, ...]] = {}
        self._indices = IndicesUnpacker()
        self._makers: dict[str, Callable[..., Part]] = {
            "Opening": lambda shots: Opening(self._snapshots(shots)),
            "Frame": self._frame,
            "Check": lambda full, claim: Check(None if full is None else self._snapshots(full), claim),
            "Closing": lambda since, shots, *rest: Closing(self._since(since), self._snapshots(shots), *rest),
            "Broken": lambda since: Broken(self._since(since)),
        }

    def unpack(self, packed: PackedPart) -> Part:
        """Return the part."""
        return self._makers[packed[0]](*packed[1:])

    def _frame(
        self,
        since: Any,
        step: int,
        facts: Any,
        ops: Any,
        shots: Any,
        request_ids: list[RequestId] | None,
        lengths: Any,
        writes: Any,
        memory_due: bool,
        indices: Any,
    ) -> Frame:
        if request_ids is not None:
            self._running = request_ids
        return Frame(
            since=self._since(since),
            step=step,
            facts=StepFacts(*facts),
            ops=NO_OPS if ops is None else ops,
            snapshots=self._snapshots(shots),
            request_ids=self._running,
            lengths=lengths.tolist(),
            writes=[Write(self._sequence(index), *rest) for index, *rest in writes.tolist()],
            memory_due=memory_due,
            indices=self._indices.unpack(indices),
        )

    def _since(self, packed: Any) -> Since:
        events, after, violations, ended = packed
        return Since(
            [self._event(*event) for event in events],
            None if after is None else StepFacts(after),
            violations,
            ended,
        )

    def _event(self, kind: str, at: Any, index: int, tokens: int | None) -> Event:
        if kind == "Forked":
            assert tokens is not None
            return Forked(at, self._sequence(index), tokens)
        return Leaving(at, self._sequence(index), tokens)

    def _sequence(self, index: int) -> Sequence:
        found = self._sequences.get(index)
        if found is None:
            found = Sequence(self._trace[index], self._trace.content(index), 0)
            self._sequences[index] = found
        return found

    def _snapshots(self, packed: list[tuple[Any, ...]]) -> tuple[PoolSnapshot, ...]:
        shots = []
        for pool, (same, *values) in enumerate(packed):
            if same:
                values[_IDS] = self._shown[pool]
            self._shown[pool] = values[_IDS]
            shots.append(PoolSnapshot(*values))
        return tuple(shots)


def unpacked(trace: Trace, packed: Generator[PackedPart]) -> Generator[Part]:
    """Yield the parts that a stream of packed ones stands for; it is closed with this one."""
    unpacker = Unpacker(trace)
    with closing(packed):
        for part in packed:
            yield unpacker.unpack(part)


def _since(since: Since) -> tuple[Any, ...]:
    after = None if since.after is None else since.after.counts
    return [_event(event) for event in since.events], after, since.violations, since.ended


def _event(event: Event) -> tuple[Any, ...]:
    if isinstance(event, Forked):
        return "Forked", event.parent_id, event.child.request.index, event.tokens
    return "Leaving", event.step, event.sequence.request.index, event.final_tokens
