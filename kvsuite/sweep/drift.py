"""Engines, or versions of one, on the same trace, configuration and scheduler: what changed between them.

Each is held against the last one before it that ran. *Counts* are how many slots, blocks and requests were in
which state at each step; the *footprint* is which blocks these were, and in which order they came into use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsuite.engine.contract import Capability
from kvsuite.engine.registry import open_engine
from kvsuite.errors import KvsuiteError
from kvsuite.golden.codec import effective_values, pool_facts
from kvsuite.golden.diff import changed_values
from kvsuite.golden.key import asked_recipe
from kvsuite.record.schema import DriftLine, DriftRow
from kvsuite.replay.driver import Replay, replay
from kvsuite.sweep.drift_pools import compare_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.record.drift_rows import DriftPool
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.trace.model import Trace

DriftVerdict = Literal["equal", "footprint", "drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPlan:
    """What every engine of a comparison is given."""

    trace: Trace
    config: EngineConfig
    scheduler: SchedulerConfig


@dataclass(frozen=True, slots=True)
class DriftLink:
    """One engine of a chain with its row; ``replay`` is ``None`` where it was refused."""

    row: DriftRow
    replay: Replay | None
    duration_s: float = 0.0


class DriftChain:
    """Runs engines one after the other, each held against the last one that ran.

    With ``go_on``, an engine that cannot be had, opened or replayed becomes a row with the reason.

    **Raises:** the `KvsuiteError` of an engine that cannot run, unless ``go_on``.
    """

    def __init__(self, plan: DriftPlan, *, go_on: bool = False) -> None:
        self._plan = plan
        self._go_on = go_on
        self._last: tuple[str, Replay] | None = None
        self.errors: list[KvsuiteError] = []
        """Why engines did not run, in order."""

    def run(self, engine: str, progress: Callable[[int, int], None] | None = None) -> DriftLink:
        """Replay the trace on ``engine`` and hold it against the last one that ran."""
        started_s = perf_counter()
        try:
            done = self._replayed(engine, progress)
        except KvsuiteError as error:
            if not self._go_on:
                raise
            self.errors.append(error)
            return DriftLink(DriftRow(engine=engine, refused=str(error)), None)
        duration_s = perf_counter() - started_s
        if self._last is None:
            row = DriftRow(engine=engine, violations=_broken(done), steps=len(done.timeline))
        else:
            against, before = self._last
            row = drift_row(before, done, against=against, engine=engine)
        self._last = (engine, done)
        return DriftLink(row, done, duration_s)

    def _replayed(self, engine: str, progress: Callable[[int, int], None] | None) -> Replay:
        opened = open_engine(engine, self._plan.config)
        return replay(self._plan.trace, opened, scheduler=self._plan.scheduler, progress=progress)


def drift_line(plan: DriftPlan, rows: Sequence[DriftRow], *, case: str, trace: str) -> DriftLine:
    """Return a chain as a line of the record; ``trace`` is the ref of the trace's own line."""
    return DriftLine(
        case=case,
        trace=trace,
        layout=str(plan.config.layout),
        recipe=asked_recipe(plan.config, plan.scheduler),
        rows=[*rows],
    )


def drift_row(old: Replay, new: Replay, *, against: str, engine: str) -> DriftRow:
    """Return how ``new`` stands to ``old``: two replays of one trace, asked for alike."""
    before = {str(pool.spec.key): pool for pool in old.timeline.pools}
    after = {str(pool.spec.key): pool for pool in new.timeline.pools}
    steps = old.timeline.steps, new.timeline.steps
    pools = [compare_pool(before[key], after[key], *steps) for key in before if key in after]
    facts = changed_values(_pool_values(old.spec), _pool_values(new.spec))
    broken = _broken(old), _broken(new)
    counted = not facts and broken[0] == broken[1] and not any(pool.first_step is not None for pool in pools)
    alike = counted and all(pool.footprint.equal for pool in pools)
    return DriftRow(
        engine=engine,
        against=against,
        verdict="equal" if alike else "footprint" if counted else "drift",
        sentence=next(_sentences(pools, facts, broken), ""),
        changed_values=[*changed_values(_engine_values(old.spec), _engine_values(new.spec)), *facts],
        violations=broken[1],
        steps=len(steps[1]),
        steps_lost=len(np.setdiff1d(steps[0], steps[1])),
        steps_gained=len(np.setdiff1d(steps[1], steps[0])),
        pools=pools,
    )


def _engine_values(spec: EngineSpec) -> dict[str, object]:
    claims = {f"claims {c.name}": "yes" if spec.claims(c) else "no" for c in Capability}
    return {"adapter_version": spec.adapter_version, **effective_values(spec), **claims}


def _pool_values(spec: EngineSpec) -> dict[str, object]:
    facts = ((f"pool {pool.key}", pool_facts(pool)) for pool in spec.pools)
    return {f"{pool} {name}": value for pool, values in facts for name, value in values.items()}


def _broken(done: Replay) -> dict[str, int]:
    counts = Counter(violation.invariant for violation in done.violations)
    return {name: counts[name] for name in sorted(counts)}


def _sentences(
    pools: Sequence[DriftPool], facts: Sequence[str], broken: tuple[dict[str, int], dict[str, int]]
) -> Iterator[str]:
    """Yield changes in words, what weighs most first: the first count, laws, facts, footprint."""
    several = len(pools) > 1
    parted = [pool for pool in pools if pool.first_step is not None]
    for pool in sorted(parted, key=lambda pool: pool.first_step or 0):
        yield f"step {pool.first_step:,}{_where(pool, several)}, {_first_values(pool)}"
    for change in changed_values(*broken):
        yield f"laws broken, {change}"
    yield from facts
    for pool in pools:
        print_ = pool.footprint
        if not print_.equal:
            blocks = f"{_shown(print_.old_blocks)} -> {_shown(print_.new_blocks)} different blocks touched"
            order = "as many blocks touched, in another order"
            said = order if print_.old_blocks == print_.new_blocks else blocks
            yield f"from step {print_.first_step:,}{_where(pool, several)}, {said}"


def _where(pool: DriftPool, several: bool) -> str:
    return f" of pool {pool.key}" if several else ""


def _first_values(pool: DriftPool) -> str:
    if not pool.old_row or not pool.new_row:
        return "busy before, idle now" if pool.old_row else "idle before, busy now"
    name = next(name for name, value in pool.old_row.items() if value != pool.new_row[name])
    return f"{name}: {_shown(pool.old_row[name])} -> {_shown(pool.new_row[name])}"


def _shown(value: int | None) -> str:
    return "not seen" if value is None else f"{value:,}"
