"""Fault injection: one allocation of a run is refused, and must have left no trace (I4).

The engine itself refuses: it is asked for more than its empty pool holds, with the same content, so that
its own way back is taken at that point of the lifecycle. Then the caller is told that there was no room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Admission, Capability, Refusal, RefusalReason
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.atomic import state_digest
from kvsuite.ledger.invariants import Violation, raise_violations
from kvsuite.replay.proxy import EngineProxy
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine, Release
    from kvsuite.trace.model import RequestId


class RefusingEngine(EngineProxy):
    """Refuses the ``refuse_at``-th call of `admit` or `extend`, counted from 0; ``None`` refuses none.

    ``calls`` counts the allocations asked for, ``refused`` names the one that was turned down, and
    ``violations`` says what a refusal changed. An admission with nothing live is refused inside and then
    granted: no scheduler waits for room in an empty pool. The engine is asked to refuse by itself where it
    is paged and every pool is full attention; others are only said to have refused.

    **Raises:** `InvariantViolation` when the engine grants more than its empty pool holds: no lifecycle goes
    on from there.
    """

    def __init__(self, engine: Engine, refuse_at: int | None = None) -> None:
        super().__init__(engine)
        self.calls = 0
        self.refused: str | None = None
        self.violations: list[Violation] = []
        self._refuse_at = refuse_at
        self._live: set[RequestId] = set()
        pools = engine.spec.pools
        self._can_ask = engine.spec.claims(Capability.PAGED) and all(p.kind is PoolKind.FULL for p in pools)
        self._too_many = max(pool.usable_blocks * pool.block_size for pool in pools) + 1

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Pass on, or refuse."""
        if self._is_due(f"admit {request_id} {prompt.stop}"):
            self._admit_too_much(request_id, prompt)
            if self._live:
                pool = self.spec.pools[0].key
                return Admission(refusal=Refusal(1, 0, 0, pool, RefusalReason.NO_BLOCKS))
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            self._live.add(request_id)
        return admission

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Pass on, or refuse."""
        if self._is_due(f"extend {request_id} by {len(tokens)}"):
            self._extend_too_much(request_id, tokens)
            return False
        return super().extend(request_id, tokens, lookahead_tokens=lookahead_tokens)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Pass on."""
        done = super().fork(parent_id, child_id)
        if done:
            self._live.add(child_id)
        return done

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Pass on."""
        self._live.discard(request_id)
        super().release(request_id, reason)

    def _is_due(self, call: str) -> bool:
        due = self.calls == self._refuse_at
        self.calls += 1
        if due:
            self.refused = call
        return due

    def _admit_too_much(self, request_id: RequestId, prompt: TokenRun) -> None:
        if not self._can_ask:
            return
        before = state_digest(self.engine.snapshot())
        run = TokenRun(prompt.content, 0, self._too_many)
        answer = self.engine.admit(
            request_id, run, first_chunk_tokens=self._too_many, max_tokens=self._too_many
        )
        self._compare(answer.accepted, state_digest(self.engine.snapshot()).differences(before))

    def _extend_too_much(self, request_id: RequestId, tokens: TokenRun) -> None:
        if not self._can_ask:
            return
        before = state_digest(self.engine.snapshot())
        run = TokenRun(tokens.content, tokens.start, tokens.start + self._too_many)
        accepted = self.engine.extend(request_id, run)
        self._compare(accepted, state_digest(self.engine.snapshot()).differences(before))

    def _compare(self, accepted: bool, changed: list[str]) -> None:
        said = f"call {self._refuse_at} ({self.refused})"
        pool = str(self.spec.pools[0].key)
        if accepted:
            message = f"{said} was granted {self._too_many} tokens, more than the empty pool holds"
            raise_violations([Violation("promise", None, pool, message)])
        if changed:
            message = f"{said} was refused {self._too_many} tokens and changed {', '.join(changed)}"
            self.violations.append(
                Violation("atomic", None, pool, f"{message}; a refusal leaves everything as it was")
            )
