"""The ledger's side: rows and laws from `RequestFrame`, as far as the engine lets us see.

Where it gives snapshots, the trackers of every other replay make the rows and judge them; where it gives
numbers only, the columns that nobody can know are `ABSENT`. Content is never checked: the slots are the
engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability, PoolCounts
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import NotJudged, Violation, judge
from kvsuite.ledger.request_laws import counts_absent, counts_close, shown_lengths, used_between
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES
from kvsuite.ledger.timeline import PoolTimeline, RowBuffer, Timeline
from kvsuite.ledger.tracker import PoolTracker, StepFacts
from kvsuite.replay.batch import Ending
from kvsuite.replay.model import judged_pools
from kvsuite.replay.requests.judge import known_requests, step_laws

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.ledger.request_laws import KnownRequest
    from kvsuite.replay.requests.steps import RequestFrame

_SHARING = (Capability.PREFIX_CACHE, Capability.SAMPLES)
_ENGINE_ONLY = (
    *("written", "hit", "resumed_hit", "copied", "recomputed", "admitted", "forked", "fork_denied"),
    *("preempted", "refused_admissions", "refused_growths"),
)
"""Columns that only a scheduler knows, and the engine keeps to itself."""
_BY_HITS = ("allocated", "reactivated", "evicted")
"""Columns that need to know which blocks came by a prefix hit."""
MAX_KEPT_VIOLATIONS = 200


@dataclass(slots=True)
class _Pool:
    """One pool over time: a tracker where snapshots are given, else rows of what numbers say."""

    spec: PoolSpec
    tracker: PoolTracker
    rows: RowBuffer
    shown: bool | None = None
    """Whether snapshots are given, once something was seen."""
    absent: dict[str, NotJudged] | None = None


class RequestLedger:
    """Takes in the frames of one replay in order."""

    def __init__(self, spec: EngineSpec) -> None:
        self.steps: list[int] = []
        self.violations: list[Violation] = []
        self._spec = spec
        self._pools = tuple(_Pool(pool, PoolTracker(pool), RowBuffer()) for pool in spec.pools)
        self._judged = frozenset(pool.key for pool in judged_pools(spec))
        self._shares = any(spec.claims(capability) for capability in _SHARING)
        lookahead = spec.effective.get("lookahead_tokens", 0)
        self._lookahead = lookahead if isinstance(lookahead, int) else 0

    def take(self, frame: RequestFrame) -> None:
        """Take in one frame.

        **Raises:** `EngineError` for a snapshot that has not the form of the contract.
        """
        known = known_requests(frame)
        self._keep(step_laws(frame, self._spec))
        facts = _facts(frame)
        counts = {given.key: given for given in frame.seen.counts}
        shots = {shot.key: shot for shot in frame.seen.snapshots}
        for pool in self._pools:
            shot, given = shots.get(pool.spec.key), counts.get(pool.spec.key, PoolCounts(pool.spec.key))
            used = self._take_shown(pool, shot, frame, known) if shot is not None else given.used_blocks
            self._keep(counts_close(given, pool.spec, frame.step))
            self._judge_used(pool, given, used, frame, known)
            if not frame.closing:
                self._add_row(pool, shot, given, facts)
        if not frame.closing:
            self.steps.append(frame.step)

    def timeline(self) -> Timeline:
        """Return the rows taken so far."""
        pools = (
            pool.tracker.timeline() if pool.shown else PoolTimeline(pool.spec, pool.rows.finish())
            for pool in self._pools
        )
        return Timeline(np.array(self.steps, np.int64), tuple(pools))

    def found(self) -> tuple[Violation, ...]:
        """Return every violation, in the order of steps."""
        found = [*self.violations]
        for pool in self._pools:
            if pool.shown:
                found += pool.tracker.violations
                found += judge(Timeline(np.array(self.steps, np.int64), (pool.tracker.timeline(),)))
        return tuple(sorted(found, key=lambda violation: (violation.step or 0, violation.invariant)))

    def not_judged(self) -> tuple[NotJudged, ...]:
        """Return what could not be judged, content first: it never can."""
        found = [NotJudged("content", str(pool.spec.key), "slots") for pool in self._pools]
        for pool in self._pools:
            if pool.shown:
                if not pool.tracker.claims_ref_counts:
                    found.append(NotJudged("recount", str(pool.spec.key), "ref_counts"))
            else:
                found += (pool.absent or {}).values()
        return tuple(found)

    def _take_shown(
        self, pool: _Pool, shot: PoolSnapshot, frame: RequestFrame, known: tuple[KnownRequest, ...]
    ) -> int:
        pool.tracker.take(shot, StepFacts(), frame.step)
        if pool.spec.kind is not PoolKind.STATE and pool.spec.key.tier == "device":
            self._keep(
                shown_lengths(
                    shot.request_ids, shot.lengths, known, pool.spec, frame.step, lookahead=self._lookahead
                )
            )
        return pool.tracker.holdings.live_blocks

    def _judge_used(
        self,
        pool: _Pool,
        given: PoolCounts,
        used: int | None,
        frame: RequestFrame,
        known: tuple[KnownRequest, ...],
    ) -> None:
        key = str(pool.spec.key)
        if given.used_blocks is not None and used != given.used_blocks:
            message = f"the engine counts {given.used_blocks} blocks in use, its tables hold {used}"
            self._keep([Violation("used", frame.step, key, message)])
        if used is None:
            return
        if frame.closing:
            self._keep(_drained(pool, used, frame.step))
        elif pool.spec.key in self._judged:
            self._keep(
                used_between(
                    used, known, pool.spec, frame.step, shares=self._shares, lookahead=self._lookahead
                )
            )

    def _add_row(self, pool: _Pool, shot: PoolSnapshot | None, given: PoolCounts, facts: StepFacts) -> None:
        if shot is not None:
            unknown = _ENGINE_ONLY + (_BY_HITS if self._spec.claims(Capability.PREFIX_CACHE) else ())
            pool.shown = True
            pool.tracker.add_row(shot, StepFacts({**facts.counts, **dict.fromkeys(unknown, ABSENT)}))
            return
        row = {**dict.fromkeys(COLUMN_NAMES, ABSENT), **facts.counts}
        if given.used_blocks is not None:
            row["live_blocks"] = given.used_blocks
        pool.rows.append(list(row.values()))
        if pool.absent is None:
            pool.absent = {}
        for law in counts_absent(given, pool.spec):
            pool.absent[law.invariant] = law

    def _keep(self, found: Iterable[Violation]) -> None:
        room = MAX_KEPT_VIOLATIONS - len(self.violations)
        self.violations += [*found][: max(0, room)]


def _facts(frame: RequestFrame) -> StepFacts:
    """Return the columns that follow from what came, what went, and who is seen to run."""
    endings = [one.ending for one in frame.watched]
    counts = {
        "arrived": frame.arrived,
        "finished": endings.count(Ending.FINISHED),
        "cancelled": endings.count(Ending.CANCELLED),
        "rejected": endings.count(Ending.REJECTED),
    }
    seen = frame.seen
    running = seen.num_running if seen.running is None else len(seen.running)
    counts["running"] = ABSENT if running is None else running
    counts["waiting"] = ABSENT if running is None else max(0, endings.count(None) - running)
    return StepFacts(counts)


def _drained(pool: _Pool, used: int, step: int) -> Iterator[Violation]:
    resting = pool.tracker.states.resting_blocks() if pool.shown else pool.spec.num_blocks
    if used == 0 and resting == pool.spec.num_blocks:
        return
    message = f"every request has ended, and {used} of {pool.spec.num_blocks} blocks are in use"
    if pool.shown:
        live = ", ".join(pool.tracker.holdings.tables) or "none"
        message += f", {resting} free, cached or never allocatable; live sequences: {live}"
    yield Violation("drain", step, str(pool.spec.key), message)
