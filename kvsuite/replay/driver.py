"""The driver: a trace through an engine, a ledger row a step, every token written and read back."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvsuite.engine.contract import Capability
from kvsuite.errors import EngineError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.frame import Outcome
from kvsuite.replay.host.packing import unpacked
from kvsuite.replay.recorder import Recorder, Replay
from kvsuite.replay.steps import Stepper
from kvsuite.replay.storage import worker_of
from kvsuite.replay.worker import ProbeWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kvsuite.engine.contract import Engine, EngineSpec
    from kvsuite.replay.frame import Part
    from kvsuite.replay.host.packing import PackedPart
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace

__all__ = ["Outcome", "Replay", "StreamsReplays", "replay"]


@runtime_checkable
class StreamsReplays(Protocol):
    """An engine that lives elsewhere and has a scheduler beside it: a replay comes as one stream."""

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims."""
        ...

    def replay_parts(
        self, trace: Trace, scheduler: SchedulerConfig, *, read_all: bool
    ) -> Generator[PackedPart]:
        """Yield what `kvsuite.replay.host.packing` makes of the parts of a replay; closing it ends it."""
        ...


def replay(
    trace: Trace,
    engine: Engine,
    worker: Worker | None = None,
    scheduler: SchedulerConfig | None = None,
    *,
    read_all: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Take ``trace`` through ``engine``.

    Without a ``worker`` the probe stands in: one int64 a token. An engine that copies by itself is written
    and read in its own tensors, whatever ``worker`` is given. ``read_all`` is for short cases: full snapshots
    and every live token read at every step. ``progress`` is called with requests ended and in all.

    **Raises:** `EngineError` when the engine breaks the contract in a way that leaves nothing to judge.
    """
    config = scheduler or SchedulerConfig()
    parts: Generator[Part]
    stepper = None
    if isinstance(engine, StreamsReplays) and not engine.spec.claims(Capability.COPIES_ITSELF):
        spec, worker = engine.spec, worker or ProbeWorker(engine.spec.pools)
        parts = unpacked(trace, engine.replay_parts(trace, config, read_all=read_all))
    else:
        stepper = Stepper(trace, engine, config, read_all=read_all)
        spec, worker, parts = stepper.spec, worker_of(stepper.engine, worker), stepper.parts()
    tell = None if progress is None else lambda ended: progress(ended, len(trace))
    recorder = Recorder(spec, worker, read_all=read_all, progress=tell)
    if stepper is not None and spec.claims(Capability.COPIES_ITSELF):
        # Its tensors are not ours: what a sequence leaves is read before the engine copies over it.
        stepper.witness = recorder.take_event
    try:
        with closing(parts):
            for part in parts:
                recorder.take(part)
    except EngineError as error:
        found = recorder.found()
        if not found:
            raise
        raise EngineError(f"{error}\nbroken before that: {found[0]}") from error
    done = recorder.result(config)
    if progress is not None:
        progress(recorder.ended, len(trace))
    return done
