"""Engines with a host tier that lose track of a copy: of its content, its pins, its key or its room."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Admission, RefusalReason, Release
from kvsuite.engine.extensions.host_tier import HostTier
from kvsuite.engine.extensions.tiers import TieredCache, TiersEngine
from kvsuite.mutants.content import TolerantCache
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.extensions.tiers import Chain, Move
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenRun

_FILE = "conformance/test_tier.py::"


class KeepingEngine(TiersEngine):
    """Pins blocks on its own account: ``kept_device`` and ``kept_host``, shown like any other pin."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.kept_device: list[int] = []
        self.kept_host: list[int] = []

    def _device_pins(self) -> list[int]:
        return [*super()._device_pins(), *self.kept_device]

    def _host_pins(self) -> list[int]:
        return [*super()._host_pins(), *self.kept_host]


@mutant(
    "oldest-transfer-acknowledged",
    kind="TIER",
    caught_by="pins",
    shown_by="transfers that end in another order than they began",
    killer=_FILE + "test_transfers_may_end_in_any_order",
)
class OldestTransferAcknowledged(TiersEngine):
    """An acknowledgement ends the transfer that began first, whichever it names."""

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Take them in order."""
        if ref in self._moves:
            super().transfer_done(next(iter(self._moves)), ok)


class _ReversedHost(HostTier):
    def match(self, keys: Sequence[PrefixKey]) -> list[int]:
        return super().match(keys)[::-1]


@mutant(
    "loaded-under-wrong-key",
    kind="TIER",
    caught_by="content",
    shown_by="a prompt of two blocks loaded back",
    killer=_FILE + "test_a_copy_comes_back_token_for_token",
)
class LoadedUnderWrongKey(TiersEngine):
    """Copies of one prompt are loaded back in the wrong order: each block gets another's key."""

    host_type = _ReversedHost


@mutant(
    "failed-load-published",
    kind="TIER",
    caught_by="content",
    shown_by="a load that fails",
    killer=_FILE + "test_a_failed_load_is_never_a_hit",
)
class FailedLoadPublished(TiersEngine):
    """A load that failed counts as done: its target can be hit."""

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Believe in every load."""
        move = self._moves.get(ref)
        super().transfer_done(ref, ok or (move is not None and not move.to_host))


@mutant(
    "failed-store-keyed",
    kind="TIER",
    caught_by="content",
    shown_by="a store that fails, and the prompt asked for again",
    killer=_FILE + "test_a_failed_store_leaves_no_copy",
)
class FailedStoreKeyed(TiersEngine):
    """A store that failed leaves its key on the host: what was there before is loaded for it."""

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Believe in every store."""
        move = self._moves.get(ref)
        super().transfer_done(ref, ok or (move is not None and move.to_host))


@mutant(
    "load-source-unpinned",
    kind="TIER",
    caught_by="content",
    shown_by="a full host while a load is under way",
    killer=_FILE + "test_both_ends_are_pinned_until_the_transfer_ends",
)
class LoadSourceUnpinned(TiersEngine):
    """The host end of a load is not pinned: it is evicted and overwritten while it is read."""

    def _begin(self, chain: Chain, source: int, target: int, *, to_host: bool) -> None:
        super()._begin(chain, source, target, to_host=to_host)
        if not to_host:
            self.host.unpin(source)

    def _host_pins(self) -> list[int]:
        return [move.host_block for move in self._moves.values() if move.to_host]

    def _release_ends(self, move: Move) -> None:
        self.cache.unpin([move.device_block])
        if move.to_host:
            self.host.unpin(move.host_block)


@mutant(
    "look-up-believed",
    kind="TIER",
    caught_by="content",
    shown_by="a loaded prefix that is evicted before its request is admitted",
    killer=_FILE + "test_a_look_up_is_checked_again_at_use",
)
class LookUpBelieved(TiersEngine):
    """The hits counted at the look-up are answered at the admission, whatever is still there."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._promised: dict[RequestId, int] = {}

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Answer what was promised."""
        keys = self._prompt_keys(prompt)
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            promised = self._promised.pop(request_id, 0)
            return replace(admission, hit_tokens=max(admission.hit_tokens, promised))
        if admission.refusal is not None and admission.refusal.reason is RefusalReason.LOADING:
            size = self.cache.block_size
            here = self.cache.found(prompt.stop, keys)
            there = len(self.host.match(keys[here : (prompt.stop - 1) // size]))
            self._promised[request_id] = (here + there) * size
        return admission


class _ClampingCache(TolerantCache, TieredCache):
    pass


@mutant(
    "unpin-twice-clamped",
    kind="TIER",
    caught_by="partition",
    shown_by="a prefix hit on a block that is being copied out",
    killer=_FILE + "test_an_end_is_unpinned_once",
)
class UnpinTwiceClamped(TiersEngine):
    """The end of a store is unpinned twice, and a count that would fall below 0 is set to 0."""

    cache_type = _ClampingCache

    def _release_ends(self, move: Move) -> None:
        super()._release_ends(move)
        if move.to_host and self.cache.pool.ref_count(move.device_block) > 0:
            self.cache.unpin([move.device_block])


@mutant(
    "known-copy-pinned-again",
    kind="TIER",
    caught_by="pins",
    shown_by="the same prompt stored twice",
    killer=_FILE + "test_a_prompt_sent_twice_is_stored_once",
)
class KnownCopyPinnedAgain(KeepingEngine):
    """A key that the host has already is pinned when it is sent again, and never unpinned."""

    def _store(self, block: int, chain: Chain) -> None:
        for known in self.host.match([chain.key]):
            self.host.pin(known)
            self.kept_host.append(known)
        super()._store(block, chain)


@mutant(
    "swapped-copy-kept",
    kind="TIER",
    caught_by="recount",
    shown_by="a preempted request that is cancelled",
    killer=_FILE + "test_a_preempted_request_that_is_cancelled_leaves_the_host",
)
class SwappedCopyKept(TiersEngine):
    """The host copy of a preempted request is held for its return, and stays held when it is cancelled."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._preempted: set[RequestId] = set()

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Note who is to return."""
        super().release(request_id, reason)
        if reason is Release.PREEMPT:
            self._preempted.add(request_id)

    def _release_ends(self, move: Move) -> None:
        if move.to_host and move.transfer.request_id in self._preempted:
            self.host.pin(move.host_block)
        super()._release_ends(move)
