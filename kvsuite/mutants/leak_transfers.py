"""Engines that leave a block or a pin behind when a request goes while its blocks move between tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import Admission, RefusalReason, Release
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.mutants.table import mutant
from kvsuite.mutants.tier import KeepingEngine

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.extensions.tiers import Move
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_FILE = "conformance/test_leak_transfers.py::"


@mutant(
    "transfer-without-deadline",
    kind="LEAK",
    caught_by="drain",
    shown_by="a load whose acknowledgement is lost",
    killer=_FILE + "test_a_lost_acknowledgement_gives_back_at_the_deadline",
)
class TransferWithoutDeadline(TiersEngine):
    """A transfer that is never acknowledged holds its blocks for ever."""

    def tick(self, now_us: int) -> None:
        """Let time pass unseen."""


@mutant(
    "late-acknowledgement-dropped",
    kind="LEAK",
    caught_by="drain",
    shown_by="a cancel between a load and its acknowledgement",
    killer=_FILE + "test_a_load_ends_whether_its_request_is_there_or_not",
)
class LateAcknowledgementDropped(TiersEngine):
    """The end of a load is passed over when its request was cancelled meanwhile."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._cancelled: set[RequestId] = set()

    def forget(self, request_id: RequestId) -> None:
        """Take the request off the list of those whose messages count."""
        self._cancelled.add(request_id)

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Filter the message."""
        move = self._moves.get(ref)
        if move is None or move.to_host or move.transfer.request_id not in self._cancelled:
            super().transfer_done(ref, ok)


@mutant(
    "copied-out-block-kept",
    kind="LEAK",
    caught_by="drain",
    shown_by="a finished request whose blocks are copied out",
    killer=_FILE + "test_what_is_copied_out_is_let_go",
)
class CopiedOutBlockKept(TiersEngine):
    """The release of a block that is being copied out is put off, and never made up for."""

    def _release_ends(self, move: Move) -> None:
        self.host.unpin(move.host_block)
        if not move.to_host:
            self.cache.unpin([move.device_block])


@mutant(
    "loaded-block-kept-for-the-cancelled",
    kind="LEAK",
    caught_by="pins",
    shown_by="a cancel after a load and before the admission",
    killer=_FILE + "test_a_request_cancelled_after_its_load_and_before_its_turn",
)
class LoadedBlockKeptForTheCancelled(KeepingEngine):
    """Loaded blocks are held until their request is admitted, and stay held when it is cancelled instead."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._waiting_for: dict[RequestId, list[int]] = {}

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Hand the loaded blocks over."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            for block in self._waiting_for.pop(request_id, []):
                self.kept_device.remove(block)
                self.cache.unpin([block])
        return admission

    def _release_ends(self, move: Move) -> None:
        if not move.to_host:
            self.cache.pin([move.device_block])
            self.kept_device.append(move.device_block)
            self._waiting_for.setdefault(move.transfer.request_id, []).append(move.device_block)
        super()._release_ends(move)


@mutant(
    "copy-forgotten-by-cancel",
    kind="LEAK",
    caught_by="recount",
    shown_by="a cancel while a copy of the request is under way",
    killer=_FILE + "test_a_cancel_while_a_copy_is_under_way",
)
class CopyForgottenByCancel(TiersEngine):
    """A cancel takes the request's copies off the list of transfers, and leaves their ends as they are."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Forget what is under way."""
        super().release(request_id, reason)
        if reason is Release.CANCEL:
            self._moves = {
                ref: move
                for ref, move in self._moves.items()
                if not (move.to_host and move.transfer.request_id == request_id)
            }


@mutant(
    "look-up-lock-kept",
    kind="LEAK",
    caught_by="pins",
    shown_by="a cancel between a look-up on the host and the admission",
    killer=_FILE + "test_a_look_up_is_let_go_by_cancel",
)
class LookUpLockKept(KeepingEngine):
    """A look-up locks what it found on the host until the admission; a cancel before it leaves the locks."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._locks: dict[RequestId, list[int]] = {}

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Lock at the first look, unlock when admitted."""
        found = self.host.match(self._prompt_keys(prompt))
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        refusal = admission.refusal
        if refusal is None:
            for block in self._locks.pop(request_id, []):
                self.kept_host.remove(block)
                self.host.unpin(block)
        elif refusal.reason is RefusalReason.LOADING and request_id not in self._locks:
            self._locks[request_id] = found
            self.kept_host += found
            for block in found:
                self.host.pin(block)
        return admission
