"""Opens engines and replays traces for cases; every replay is judged before anything else looks at it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from kvsuite.errors import InvariantViolation
from kvsuite.plugin.notes import notes_of
from kvsuite.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from kvsuite.cache.layout import Layout
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.ledger.invariants import Violation
    from kvsuite.replay.driver import Replay
    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace

MAX_RECORDED = 8
"""Replays of one case that go to the record; broken ones always do."""
MAX_ROWS = 400


class EngineOpener:
    """Opens the engine under test; remembers how each one was opened."""

    def __init__(self, engine_name: str) -> None:
        self.engine_name = engine_name
        self._opened: list[tuple[Engine, EngineConfig]] = []

    def __call__(
        self,
        *,
        block_size: int,
        num_blocks: int,
        layout: str | Layout = "tiny",
        dtype: str | None = None,
        **config: Any,
    ) -> Engine:
        """Return a fresh engine; ``config`` takes the other fields of `EngineConfig`.

        **Raises:** `ConfigError` for a configuration that cannot be, or that the engine refuses.
        """
        from kvsuite.cache.layout import Dtype, model_layout
        from kvsuite.engine.config import EngineConfig
        from kvsuite.engine.registry import open_engine

        shape = model_layout(layout) if isinstance(layout, str) else layout
        if dtype is not None:
            shape = shape.with_(dtype=Dtype.parse(dtype))
        asked = EngineConfig(layout=shape, block_size=block_size, num_blocks=num_blocks, **config)
        engine = open_engine(self.engine_name, asked)
        self._opened.append((engine, asked))
        return engine

    def config_of(self, engine: Engine) -> EngineConfig | None:
        """Return how an engine was opened; ``None`` where it was opened elsewhere."""
        return next((config for opened, config in self._opened if opened is engine), None)


class Replayer:
    """Replays traces for one case and notes each for the record."""

    def __init__(self, item: pytest.Item, opener: EngineOpener, device: str) -> None:
        self._item = item
        self._opener = opener
        self._device = device
        self._replays: list[tuple[Replay, EngineConfig | None]] = []
        self._worker: Worker | None = None

    def __call__(
        self,
        trace: Trace,
        *,
        block_size: int | None = None,
        num_blocks: int | None = None,
        layout: str | Layout = "tiny",
        dtype: str | None = None,
        slots: str | None = None,
        scheduler: SchedulerConfig | None = None,
        engine: Engine | None = None,
        read_all: bool = True,
        **config: Any,
    ) -> Replay:
        """Take ``trace`` through a fresh engine, or through ``engine``, and judge it.

        ``slots`` is ``full`` (tensors on the device) or ``probe``; by default full on a card and probe on
        the CPU. An engine that copies by itself is read in its own tensors instead. ``read_all=False`` is
        for long traces. ``config`` takes the other fields of `EngineConfig`.

        **Raises:** `InvariantViolation` naming invariant, step and pool.
        """
        __tracebackhide__ = True
        from kvsuite.replay.driver import replay
        from kvsuite.sweep.lengths import longest_declared_tokens

        if engine is None:
            if block_size is None or num_blocks is None:
                raise TypeError("kv_replay needs block_size and num_blocks, or an engine that is open")
            config = {"max_model_tokens": longest_declared_tokens(trace), "trace": trace, **config}
            engine = self._opener(
                block_size=block_size, num_blocks=num_blocks, layout=layout, dtype=dtype, **config
            )
        asked = self._opener.config_of(engine)
        worker = self._open_worker(engine, asked, slots, scheduler)
        done = replay(trace, engine, worker, scheduler, read_all=read_all)
        self.close()
        self.note(trace, done, asked)
        refuse_violations(self._item, done)
        return done

    @property
    def engine_name(self) -> str:
        """The engine under test."""
        return self._opener.engine_name

    def config_of(self, replay: Replay) -> EngineConfig | None:
        """Return how the engine of a replay was opened; ``None`` where it is not known."""
        return next((config for done, config in self._replays if done is replay), None)

    def close(self) -> None:
        """Give the slots of the last replay back."""
        worker, self._worker = self._worker, None
        if worker is not None and hasattr(worker, "close"):
            worker.close()

    def _open_worker(
        self, engine: Engine, asked: EngineConfig | None, slots: str | None, scheduler: SchedulerConfig | None
    ) -> Worker | None:
        from kvsuite.engine.contract import Capability
        from kvsuite.errors import ConfigError
        from kvsuite.replay.scheduler import SchedulerConfig
        from kvsuite.replay.worker import ProbeWorker

        notes = notes_of(self._item)
        if engine.spec.claims(Capability.COPIES_ITSELF):
            notes.worker = "engine"
            return None
        mode = slots or ("probe" if self._device == "cpu" or asked is None else "full")
        if mode not in {"probe", "full"}:
            raise ConfigError(f"unknown slots {mode!r}: expected probe or full")
        notes.worker = mode if notes.worker in {"", mode} else "full and probe"
        if mode == "probe":
            return ProbeWorker(engine.spec.pools)
        if asked is None:
            raise ConfigError(
                "full slots need to know the layout: open the engine with the fixture open_engine"
            )
        from kvsuite.device.worker import SlotWorker

        notes.device = self._device.partition(":")[0]
        rows = (scheduler or SchedulerConfig()).max_sequences
        self._worker = SlotWorker(engine.spec.pools, asked.layout, self._device, table_rows=rows)
        return self._worker

    def note(self, trace: Trace, done: Replay, asked: EngineConfig | None) -> None:
        """Note a replay, opened as ``asked``, for the record."""
        self._replays.append((done, asked))
        notes = notes_of(self._item)
        notes.invariants = sorted({*notes.invariants, *(v.invariant for v in done.violations)})
        absent = {f"{law.invariant} ({law.absent})" for law in done.not_judged}
        notes.not_judged = sorted({*notes.not_judged, *absent})
        recorded = self._item.config.stash[SETTINGS].report is not None
        if not recorded or (len(self._replays) > MAX_RECORDED and not done.violations):
            return
        from kvsuite.golden.key import asked_recipe
        from kvsuite.record.build import content_line, ledger_lines, memory_lines, trace_line
        from kvsuite.trace.identity import content_hash

        identity = content_hash(trace)
        number = len(self._replays)
        ref = (
            trace.source.name
            if trace.source.format == "synthetic"
            else f"{trace.source.name} {identity[5:11]}"
        )
        ref += f" #{number}" if number > 1 else ""
        notes.add_line(trace_line(trace, ref=ref, content_hash=identity))
        recipe = {"layout": done.spec.layout, **(asked_recipe(asked, done.scheduler) if asked else {})}
        ledgers = ledger_lines(done, case=notes.case, engine=self.engine_name, trace=ref, max_rows=MAX_ROWS)
        for ledger in ledgers:
            notes.add_line(msgspec.structs.replace(ledger, recipe={**ledger.recipe, **recipe}))
        notes.add_line(content_line(done, ledger=ledgers[0].ref))
        for line in memory_lines(done.timeline.device, case=notes.case):
            notes.add_line(line)


def refuse_violations(item: pytest.Item, done: Replay | RequestReplay) -> None:
    """Refuse a replay that broke a law, but for those that a known deviation of the case sets apart.

    **Raises:** `InvariantViolation` naming invariant, step and pool.
    """
    __tracebackhide__ = True
    apart = notes_of(item).set_apart
    broken = [violation for violation in done.violations if violation.invariant not in apart]
    if broken:
        raise InvariantViolation(violation_text(broken))


def violation_text(violations: Sequence[Violation]) -> str:
    """Return what is wrong with a replay: the first violation of each invariant, and how many there are."""
    counts = Counter(violation.invariant for violation in violations)
    first = {violation.invariant: violation for violation in reversed(violations)}
    more = {name: f" (first of {count})" if count > 1 else "" for name, count in counts.items()}
    return "\n".join(f"{first[name]}{more[name]}" for name in counts)
