"""An engine whose every answer is held against a model of its own.

A `JudgedEngine` stands between a scheduler and an engine. It looks at full snapshots before and after what
it passes on, so it is for short lifecycles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Capability, RefusalReason
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.admission import Offer, never_fits, promise
from kvsuite.ledger.atomic import state_digest
from kvsuite.ledger.contiguity import admits_what_fits, grows_where_there_is_room
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import Violation
from kvsuite.replay.driver import replay
from kvsuite.replay.endings import endings, pressure_without_cause
from kvsuite.replay.model import LifecycleModel, judged_pools
from kvsuite.replay.proxy import EngineProxy
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvsuite.engine.contract import Admission, Engine, Release
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.replay.driver import Replay
    from kvsuite.replay.scene import Scene
    from kvsuite.replay.worker import Worker
    from kvsuite.trace.model import Trace
    from kvsuite.trace.tokens import TokenContent, TokenRun

MAX_KEPT_VIOLATIONS = 50


class JudgedEngine(EngineProxy):
    """Passes every verb on and keeps in ``violations`` what the model did not expect.

    Judged are: hits (nothing is found that was not computed before), promise, progress, contiguity and
    atomicity of every refusal, and that blocks are neither fewer than different contents nor more than
    ``sum of ceil(n / b)``.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.violations: list[Violation] = []
        self._model = LifecycleModel(engine.spec)
        self._pools = judged_pools(engine.spec)
        self._all_full = all(pool.kind is PoolKind.FULL for pool in engine.spec.pools)
        self._shares = any(engine.spec.claims(c) for c in (Capability.PREFIX_CACHE, Capability.FORK))
        self._step = 0

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Pass on and judge the answer."""
        before = self.engine.snapshot()
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        after = self.engine.snapshot()
        offers = self._offers(request_id, prompt.stop, admission, before, after)
        if admission.refusal is None:
            self._keep(self._judge_hits(request_id, prompt, admission.hit_tokens))
            for offer in offers:
                self._keep(promise(offer))
            self._model.admit(request_id, prompt, admission.scheduled_tokens)
        elif self._all_full and admission.refusal.reason is not RefusalReason.LOADING:
            # A refusal that begins a load takes blocks for it; the laws of tiers judge those.
            self._keep(self._judge_refusal(offers, admission.refusal.reason))
            self._keep(self._judge_atomic(f"admission of {request_id}", before, after))
        return admission

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Pass on and judge a refusal."""
        before = self.engine.snapshot() if self._may_need_blocks(tokens) else None
        done = super().extend(request_id, tokens, lookahead_tokens=lookahead_tokens)
        if done:
            self._model.extend(request_id, tokens)
            return True
        after = self.engine.snapshot()
        if before is not None:
            self._keep(self._judge_atomic(f"extension of {request_id}", before, after))
        if self._all_full:
            self._keep(self._judge_growth(request_id, tokens.stop, before or after))
        return False

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Pass on."""
        done = super().fork(parent_id, child_id)
        if done:
            self._model.fork(parent_id, child_id)
        return done

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Pass on."""
        self._model.release(request_id)
        super().release(request_id, reason)

    def launched(self, step: int) -> None:
        """Pass on."""
        self._step = step
        super().launched(step)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Pass on."""
        super().done(step, accepted)
        for request_id, length in accepted.items():
            self._model.settle(request_id, length)

    def reset_cache(self) -> bool:
        """Pass on."""
        done = super().reset_cache()
        if done:
            self._model.reset()
        return done

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Pass on, and judge how many blocks are held."""
        snapshots = super().snapshot(since)
        for spec, snapshot in zip(self.spec.pools, snapshots, strict=True):
            if spec in self._pools and snapshot.is_full:
                self._keep(self._judge_blocks(spec, snapshot))
        return snapshots

    def _judge_hits(self, request_id: RequestId, prompt: TokenRun, hit_tokens: int) -> Iterator[Violation]:
        most = self._model.longest_hit(prompt) if self.spec.claims(Capability.PREFIX_CACHE) else 0
        if hit_tokens > most:
            message = (
                f"{request_id} was told {hit_tokens} tokens are found, at most {most} were computed before"
            )
            yield self._violation("hits", message)

    def _judge_refusal(self, offers: list[Offer], reason: RefusalReason) -> Iterator[Violation]:
        kept, said_never = kept_back(self.spec), reason is RefusalReason.NEVER_FITS
        never = any(offer.total_blocks > offer.spec.usable_blocks for offer in offers)
        may = any(offer.total_blocks + kept > offer.spec.usable_blocks for offer in offers)
        if said_never != never and not (said_never and may):
            yield from (v for offer in offers for v in never_fits(offer, kept))
        elif not said_never:
            # Several pools: the one that is named fell short, whatever the others say.
            for offer in offers:
                assert offer.admission.refusal is not None
                if offer.admission.refusal.pool == offer.spec.key:
                    yield from promise(offer)
                    yield from admits_what_fits(offer)
        request_id = offers[0].request_id if offers else ""
        if reason is RefusalReason.PROMISED and not self._model.prefilling():
            yield self._violation(
                "progress", f"{request_id} was refused on promises, and no prompt is under way"
            )
        in_force = self.spec.effective.get("watermark_blocks", 1)
        if reason is RefusalReason.WATERMARK and not (self._model.live and in_force):
            message = f"{request_id} was refused by a watermark of {in_force} beside {len(self._model.live)}"
            yield self._violation("progress", f"{message} live sequences: expected admission")

    def _judge_growth(
        self, request_id: RequestId, length: int, snapshots: tuple[PoolSnapshot, ...]
    ) -> Iterator[Violation]:
        """Yield when every pool had the blocks for ``length`` tokens, a private copy of the tail included."""
        found: list[Violation] = []
        for spec, snapshot in zip(self.spec.pools, snapshots, strict=True):
            if spec not in self._pools:
                continue
            row = snapshot.request_ids.index(request_id)
            table = snapshot.table(row)
            others = np.delete(
                snapshot.table_blocks, np.s_[snapshot.table_offsets[row] : snapshot.table_offsets[row + 1]]
            )
            copies = int(len(table) > 0 and bool((others == table[-1]).any()))
            ahead = length + snapshot.lookahead_tokens
            needed = max(0, -(-ahead // spec.block_size) - len(table)) + copies
            short = list(grows_where_there_is_room(spec, snapshot, request_id, needed, self._step))
            if not short:
                return
            found += short
        yield from found

    def _judge_atomic(
        self, what: str, before: tuple[PoolSnapshot, ...], after: tuple[PoolSnapshot, ...]
    ) -> Iterator[Violation]:
        changed = state_digest(after).differences(state_digest(before))
        if changed:
            yield self._violation("atomic", f"{what} was refused and changed {', '.join(changed)}")

    def _judge_blocks(self, spec: PoolSpec, snapshot: PoolSnapshot) -> Iterator[Violation]:
        held = len(np.setdiff1d(snapshot.table_blocks, snapshot.null_ids))
        fewest = self._model.distinct_contents(spec.block_size)
        most = self._model.table_entries(spec.block_size)
        ahead = len(self._model.live) * -(-snapshot.lookahead_tokens // spec.block_size)
        if not self._shares:
            fewest = most
        if not fewest <= held <= most + ahead:
            message = (
                f"{len(self._model.live)} sequences hold {held} different blocks, expected {fewest} to "
                f"{most + ahead}: no block serves two contents, and none is spare"
            )
            yield self._violation("blocks", message, spec)

    def _may_need_blocks(self, tokens: TokenRun) -> bool:
        """Return whether an extension can be refused at all: it crosses a block, or a block may be shared."""
        size = min((pool.block_size for pool in self._pools), default=1)
        return self._shares or -(-tokens.stop // size) > -(-tokens.start // size)

    def _offers(
        self,
        request_id: RequestId,
        tokens: int,
        admission: Admission,
        before: tuple[PoolSnapshot, ...],
        after: tuple[PoolSnapshot, ...],
    ) -> list[Offer]:
        pools = zip(self.spec.pools, before, after, strict=True)
        return [
            Offer(spec, request_id, tokens, admission, old, new, step=self._step)
            for spec, old, new in pools
            if spec in self._pools
        ]

    def _violation(self, invariant: str, message: str, spec: PoolSpec | None = None) -> Violation:
        pool = spec or self.spec.pools[0]
        return Violation(invariant, self._step, str(pool.key), message)

    def _keep(self, found: Iterator[Violation]) -> None:
        room = MAX_KEPT_VIOLATIONS - len(self.violations)
        self.violations += list(found)[: max(0, room)]


def judged_replay(
    trace: Trace,
    engine: Engine,
    worker: Worker | None = None,
    scheduler: SchedulerConfig | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Replay:
    """Replay a short trace with everything read at every step and every answer held against the model."""
    judged = JudgedEngine(engine)
    done = replay(trace, judged, worker, scheduler, read_all=True, progress=progress)
    found = sorted(
        (*done.violations, *judged.violations, *endings(trace, done), *pressure_without_cause(trace, done)),
        key=lambda violation: (violation.step or 0, violation.invariant),
    )
    return replace(done, violations=tuple(found))


def offered(
    scene: Scene,
    name: str,
    tokens: int,
    *,
    content: TokenContent | None = None,
    first_chunk: int | None = None,
    max_tokens: int | None = None,
    expected_hits: tuple[int, ...] | None = None,
) -> Offer:
    """Let a scene admit a prompt, and return what its first pool was before and after."""
    before = scene.engine.snapshot()[0]
    admission = scene.admit(name, tokens, content=content, first_chunk=first_chunk, max_tokens=max_tokens)
    return Offer(
        spec=scene.engine.spec.pools[0],
        request_id=RequestId(name),
        prompt_tokens=tokens,
        admission=admission,
        before=before,
        after=scene.engine.snapshot()[0],
        expected_hits=expected_hits,
        step=scene.step_number,
    )
