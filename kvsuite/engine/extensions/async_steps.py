"""Asynchronous steps over the reference: what a launched step may still touch stays out of reach.

    launched(7)           step 7 reads and writes
    release(r1)           blocks of r1: quarantined, for step 7
    launched(8)           the next step is prepared and launched before 7 is done
    release(r2)           blocks of r2: quarantined, for steps 7 and 8
    done(7)               blocks of r1: free, or cached where they have a key
    done(8)               blocks of r2 likewise

Steps may be done in any order; quarantine ends with the last one that was in flight at the release.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability
from kvsuite.engine.extensions.pins import PinnedCache, with_pins
from kvsuite.engine.reference import ReferenceEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Release
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId


@dataclass(frozen=True, slots=True)
class Quarantined:
    """What one sequence left behind, and the steps that were in flight then and are not done yet."""

    request_id: RequestId
    blocks: list[int]
    steps: set[int]


class AsyncEngine(ReferenceEngine):
    """The reference with asynchronous steps: released blocks wait for the steps in flight.

    A block in quarantine is pinned, so that it is neither taken nor evicted; a prefix hit may still share it.
    """

    name = "reference-async"
    cache_type = PinnedCache
    cache: PinnedCache

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._spec = replace(self._spec, capabilities=self._spec.capabilities | {Capability.ASYNC_STEPS})
        self._in_flight: set[int] = set()
        self._quarantine: list[Quarantined] = []

    def launched(self, step: int) -> None:
        """Expect ``done`` for this step."""
        self._in_flight.add(step)

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Take the sequence off; its blocks stay pinned until every step in flight is done."""
        table = self.cache.tables.get(request_id)
        if table is not None and self._in_flight:
            blocks = table.blocks[::-1].tolist()
            self.cache.pin(blocks)
            self._quarantine.append(Quarantined(request_id, blocks, set(self._in_flight)))
        super().release(request_id, reason)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Settle the step, and let go of what waited for it alone."""
        super().done(step, accepted)
        self._in_flight.discard(step)
        for left in self._quarantine:
            left.steps.discard(step)
            if not left.steps:
                self.cache.unpin(left.blocks)
        self._quarantine = [left for left in self._quarantine if left.steps]

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool in full, with the pins of quarantined blocks."""
        del since
        (shot,) = super().snapshot()
        return (with_pins(shot, [block for left in self._quarantine for block in left.blocks]),)
