"""An engine that passes every verb on to another: what watches or disturbs an engine builds on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kvsuite.engine.contract import SupportsTransfers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.contract import (
        Admission,
        Engine,
        EngineSpec,
        Ops,
        Release,
        SupportsBudget,
        SupportsFork,
        SupportsGauges,
        SupportsMemory,
        SupportsResetCache,
        SupportsSlots,
        SupportsStorage,
    )
    from kvsuite.engine.snapshot import Budget, Gauges, Int64Array, MemoryClaim, PoolKey, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


class EngineProxy:
    """Passes every verb on to ``engine``; those of capabilities are to be used only where it claims them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims."""
        return self.engine.spec

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Pass on."""
        return self.engine.admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Pass on."""
        return self.engine.extend(request_id, tokens, lookahead_tokens=lookahead_tokens)

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Pass on."""
        self.engine.release(request_id, reason)

    def take_ops(self) -> Ops:
        """Pass on."""
        return self.engine.take_ops()

    def launched(self, step: int) -> None:
        """Pass on."""
        self.engine.launched(step)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Pass on."""
        self.engine.done(step, accepted)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Pass on."""
        return self.engine.snapshot(since)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Pass on."""
        return cast("SupportsFork", self.engine).fork(parent_id, child_id)

    def memory(self) -> MemoryClaim:
        """Pass on."""
        return cast("SupportsMemory", self.engine).memory()

    def gauges(self) -> tuple[Gauges, ...]:
        """Pass on."""
        return cast("SupportsGauges", self.engine).gauges()

    def budget(self) -> Budget:
        """Pass on."""
        return cast("SupportsBudget", self.engine).budget()

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Pass on."""
        cast("SupportsTransfers", self.engine).transfer_done(ref, ok)

    def tick(self, now_us: int) -> None:
        """Pass on, where the engine moves blocks at all."""
        if isinstance(self.engine, SupportsTransfers):
            self.engine.tick(now_us)

    def forget(self, request_id: RequestId) -> None:
        """Pass on, where the engine moves blocks at all."""
        if isinstance(self.engine, SupportsTransfers):
            self.engine.forget(request_id)

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Pass on."""
        return cast("SupportsSlots", self.engine).read_slots(request_id)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Pass on."""
        return cast("SupportsSlots", self.engine).write_slots(request_id)

    def write_storage(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Pass on."""
        cast("SupportsStorage", self.engine).write_storage(pool, slots, tags)

    def read_storage(self, pool: PoolKey, slots: Int64Array) -> Int64Array:
        """Pass on."""
        return cast("SupportsStorage", self.engine).read_storage(pool, slots)

    def reset_cache(self) -> bool:
        """Pass on."""
        return cast("SupportsResetCache", self.engine).reset_cache()
