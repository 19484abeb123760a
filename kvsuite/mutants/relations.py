"""Engines that keep every law of the moment, and come to another end by another way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Admission, Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_RELATIONS = "conformance/test_metamorphic.py::"


class _Shy(ReferenceEngine):
    """Publishes nothing for some of its sequences."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.shy: set[RequestId] = set()

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Settle without the shy ones."""
        super().done(step, {name: length for name, length in accepted.items() if name not in self.shy})

    def forget_keys(self, blocks: Iterable[int]) -> None:
        """Take the keys off live blocks, so that they end free and not cached."""
        if self.cache.prefixes is not None:
            self.cache.prefixes.forget(blocks)


@mutant(
    "chunked-unpublished",
    caught_by="chunked",
    shown_by="a prompt computed in chunks and asked for again",
    kind="KEY",
    killer=f"{_RELATIONS}test_chunked_prefill_equals_one_shot",
)
class ChunkedUnpublished(_Shy):
    """A prompt that is computed in chunks is never offered to others."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Note who comes in chunks."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted and admission.scheduled_tokens < prompt.stop:
            self.shy.add(request_id)
        return admission


@mutant(
    "resumed-unpublished",
    caught_by="resumed",
    shown_by="a preempted sequence that comes back, ends, and is asked for again",
    kind="ADMIT",
    killer=f"{_RELATIONS}test_preempt_and_resume_equals_uninterrupted",
)
class ResumedUnpublished(_Shy):
    """What a sequence computes after a preemption is never offered to others."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Note who was preempted."""
        if reason is Release.PREEMPT:
            self.shy.add(request_id)
        super().release(request_id, reason)


@mutant(
    "cancel-drops-keys",
    caught_by="cancelled",
    shown_by="a cancelled request whose prompt is asked for again",
    kind="KEY",
    killer=f"{_RELATIONS}test_cancel_at_any_point_equals_finish_there",
)
class CancelDropsKeys(_Shy):
    """What a cancelled request computed is thrown away, though it is as good as any."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Forget its keys first."""
        if reason is Release.CANCEL:
            self.forget_keys(self.cache.tables[request_id].blocks)
        super().release(request_id, reason)


@mutant(
    "only-the-youngest-is-cached",
    caught_by="commute",
    shown_by="sequences that end in another order than they came",
    kind="KEY",
    killer=f"{_RELATIONS}test_finish_orders_commute",
)
class OnlyTheYoungestIsCached(_Shy):
    """A sequence leaves something for the cache only if it came last."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Forget the keys of everybody else."""
        if request_id != list(self.cache.tables)[-1]:
            self.forget_keys(self.cache.tables[request_id].blocks)
        super().release(request_id, reason)


@mutant(
    "child-takes-keys-along",
    caught_by="undone",
    shown_by="a forked child that is cancelled, and its parent's prompt asked for again",
    kind="SHARE",
    killer=f"{_RELATIONS}test_a_cancelled_child_leaves_no_trace",
)
class ChildTakesKeysAlong(_Shy):
    """A holder that leaves takes the keys of shared blocks with it."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Forget the keys of what others hold too."""
        counts, blocks = self.cache.pool.ref_counts, self.cache.tables[request_id].blocks
        self.forget_keys([block for block in blocks if counts[block] > 1])
        super().release(request_id, reason)


@mutant(
    "reset-does-nothing",
    caught_by="repeat",
    shown_by="a trace that is replayed again after a reset",
    kind="KEY",
    killer=f"{_RELATIONS}test_a_trace_after_a_reset_gives_the_same_ledger",
)
class ResetDoesNothing(ReferenceEngine):
    """A reset answers that it is done, and keeps every cached block."""

    def reset_cache(self) -> bool:
        """Say yes."""
        return not self.cache.tables
