"""Request-driven engines that show numbers, and broken ones: each differs from the sound one in one fault."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.contract import Observation, PoolCounts, Release
from kvsuite.engine.extensions.requests import RequestsEngine
from kvsuite.engine.snapshot import PoolKey

if TYPE_CHECKING:
    from kvsuite.trace.model import RequestId


class Counted(RequestsEngine):
    """Shows numbers in the place of tables, as they stand in the step's forward pass."""

    def used(self) -> int:
        held = {block for table in self.engine.cache.tables.values() for block in table.blocks.tolist()}
        return len(held)

    def observe(self) -> Observation:
        seen = super().observe()
        counts = PoolCounts(PoolKey(), used_blocks=self.used(), pool_bytes=self.spec.pools[0].pool_bytes)
        return replace(seen, snapshots=(), running=None, num_running=len(self.running), counts=(counts,))


class Miscounted(Counted):
    """Counts ``extra`` blocks more than there are."""

    extra = 1

    def used(self) -> int:
        return super().used() + self.extra if self.running else 0


class Undercounted(Miscounted):
    extra = -1


class LeaksOnCancel(Counted):
    """Keeps counting what a cancelled request held."""

    lost = 0

    def used(self) -> int:
        return super().used() + self.lost

    def step(self) -> None:
        leaving = [asked for asked in self.running if asked.request_id in self._left]
        self.lost += sum(
            len(self.engine.cache.tables[answer.sequence_id].blocks)
            for asked in leaving
            for answer in asked.answers
        )
        super().step()


class LosesBlocks(RequestsEngine):
    """Shows tables, and drops one block of everything that ends."""

    def release(self, asked: Any, reason: Release) -> None:
        cache = self.engine.cache
        before = set(cache.pool.take_all().free.tolist())
        super().release(asked, reason)
        freed = set(cache.pool.take_all().free.tolist()) - before
        self.dropped = {*getattr(self, "dropped", set()), *sorted(freed)[:1]}

    def observe(self) -> Observation:
        seen = super().observe()
        (shot,) = seen.snapshots
        kept = np.array([b for b in shot.free.tolist() if b not in getattr(self, "dropped", ())], np.int32)
        return replace(seen, snapshots=(replace(shot, free=kept),))


class ForgetsALength(RequestsEngine):
    """Shows every sequence one token shorter than it was computed."""

    def observe(self) -> Observation:
        seen = super().observe()
        (shot,) = seen.snapshots
        return replace(seen, snapshots=(replace(shot, lengths=shot.lengths - 1),))


class StopsShort(RequestsEngine):
    """Ends answers one token early and calls them finished."""

    def submit(self, request_id: RequestId, prompt: Any, *, max_tokens: int, num_answers: int = 1) -> None:
        super().submit(request_id, prompt, max_tokens=max_tokens - 1, num_answers=num_answers)


class GoesOn(RequestsEngine):
    """Answers with one token more than was asked for."""

    def submit(self, request_id: RequestId, prompt: Any, *, max_tokens: int, num_answers: int = 1) -> None:
        super().submit(request_id, prompt, max_tokens=max_tokens + 1, num_answers=num_answers)


class DeafToCancels(RequestsEngine):
    def cancel(self, request_id: RequestId) -> None:
        del request_id


class RefusesWhatFits(RequestsEngine):
    """Refuses whatever arrives while something runs."""

    def submit(self, request_id: RequestId, prompt: Any, *, max_tokens: int, num_answers: int = 1) -> None:
        super().submit(request_id, prompt, max_tokens=max_tokens, num_answers=num_answers)
        if self.running:
            self._refuse(self.waiting.pop(), "busy")


class Stalls(RequestsEngine):
    """Stops when half of its answers are out."""

    def step(self) -> None:
        if not any(asked.generated[0] > 10 for asked in self.running):
            super().step()


class Starves(RequestsEngine):
    """Preempts everything, for ever, once a second request has come."""

    def step(self) -> None:
        for asked in list(self.running):
            if asked.request_id == "c":
                self._preempt(asked)
                asked.answers[0].generated = 0
        super().step()


class EndsByError(RequestsEngine):
    def _end(self, asked: Any, how: Release) -> None:
        super()._end(asked, Release.ERROR if how is Release.FINISH else how)


class CancelsByItself(RequestsEngine):
    def _end(self, asked: Any, how: Release) -> None:
        super()._end(asked, Release.CANCEL if asked.request_id == "a" else how)


class ClaimsOtherBytes(Counted):
    def observe(self) -> Observation:
        seen = super().observe()
        (counts,) = seen.counts
        return replace(seen, counts=(replace(counts, pool_bytes=2 * self.spec.pools[0].pool_bytes),))


class DoesNotClose(Counted):
    def observe(self) -> Observation:
        seen = super().observe()
        (counts,) = seen.counts
        return replace(seen, counts=(replace(counts, free_blocks=60 - self.used()),))


class ContradictsItsTables(RequestsEngine):
    """Counts 40 blocks in use, whatever its tables hold."""

    def observe(self) -> Observation:
        seen = super().observe()
        return replace(seen, counts=(PoolCounts(PoolKey(), used_blocks=40),))
