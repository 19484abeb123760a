"""Engines with a host tier that lose track of its room: who goes, what counts where, what a reset covers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import Admission, RefusalReason
from kvsuite.engine.extensions.host_tier import HostTier
from kvsuite.engine.extensions.tiers import TiersEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenRun

_FILE = "conformance/test_tier_room.py::"


class _NewestFirstHost(HostTier):
    def take(self) -> int | None:
        idle = self.pool._idle
        if idle:
            idle.move_to_end(next(reversed(idle)), last=False)
        return super().take()


@mutant(
    "host-evicts-newest",
    kind="TIER",
    caught_by="reachable",
    shown_by="a chain on a full host, and one more store",
    killer=_FILE + "test_a_chain_is_evicted_from_its_tail",
)
class HostEvictsNewest(TiersEngine):
    """The copy used last is evicted first: a chain from its head, so that the rest is there for nothing."""

    host_type = _NewestFirstHost


class _RoundedHost(HostTier):
    def __init__(self, device: PoolSpec, num_blocks: int) -> None:
        super().__init__(device, 1 << (num_blocks - 1).bit_length())


@mutant(
    "host-rounded-to-power-of-two",
    kind="TIER",
    caught_by="bytes",
    shown_by="a host tier of a size that is no power of two",
    killer=_FILE + "test_the_host_is_as_large_as_it_was_asked_to_be",
)
class HostRoundedToPowerOfTwo(TiersEngine):
    """The host tier is allocated in powers of two, whatever was asked for."""

    host_type = _RoundedHost


class _ByAgeHost(HostTier):
    def touch(self, key: PrefixKey) -> bool:
        return bool(self.prefixes.match([key], 1))


@mutant(
    "host-evicts-by-age-alone",
    kind="TIER",
    caught_by="reachable",
    shown_by="a chain whose last block is stored long after its first ones",
    killer=_FILE + "test_a_chain_is_evicted_from_its_tail",
)
class HostEvictsByAgeAlone(TiersEngine):
    """A copy goes by its own age, although newer ones hang on it: whether it is a leaf is not asked."""

    host_type = _ByAgeHost


@mutant(
    "tier-swapped-before-claim",
    kind="TIER",
    caught_by="closure",
    shown_by="a store under way",
    killer=_FILE + "test_a_move_is_counted_in_both_tiers",
)
class TierSwappedBeforeClaim(TiersEngine):
    """A block counts for the other tier as soon as its copy begins: one pool gains what the other loses."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """List host targets among the device's quarantined blocks."""
        device, host = super().snapshot(since)
        moved = np.array([move.host_block for move in self._moves.values() if move.to_host], np.int32)
        return (
            replace(device, quarantined=np.append(device.quarantined, moved)),
            replace(host, quarantined=np.setdiff1d(host.quarantined, moved)),
        )


class _UnyieldingHost(HostTier):
    def take(self) -> int | None:
        return super().take() if self.pool.num_free else None


@mutant(
    "full-host-refuses-stores",
    kind="TIER",
    caught_by="progress",
    shown_by="a store into a full host",
    killer=_FILE + "test_a_full_host_makes_room",
)
class FullHostRefusesStores(TiersEngine):
    """A host full of copies that nobody reads takes no new one."""

    host_type = _UnyieldingHost


@mutant(
    "load-need-understated",
    kind="TIER",
    caught_by="promise",
    shown_by="a refused prompt whose prefix lies on the host",
    killer=_FILE + "test_the_room_for_a_load_is_told_before",
)
class LoadNeedUnderstated(TiersEngine):
    """A refusal counts blocks on the host as if they were on the device and took no room there."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Tell less than is needed."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.refusal is None or admission.refusal.reason is not RefusalReason.NO_BLOCKS:
            return admission
        copies = len(self.host.match(self._prompt_keys(prompt)))
        needed = max(0, admission.refusal.needed_blocks - copies)
        return replace(admission, refusal=replace(admission.refusal, needed_blocks=needed))


@mutant(
    "reset-forgets-the-host",
    kind="TIER",
    caught_by="reset",
    shown_by="a reset with copies on the host",
    killer=_FILE + "test_a_reset_covers_every_tier",
)
class ResetForgetsTheHost(TiersEngine):
    """A reset of the cache covers the device alone."""

    def reset_cache(self) -> bool:
        """Forget one tier."""
        return ReferenceEngine.reset_cache(self)


@mutant(
    "reset-keeps-what-is-coming",
    kind="TIER",
    caught_by="reset",
    shown_by="a reset while a load is under way",
    killer=_FILE + "test_a_reset_covers_every_tier",
)
class ResetKeepsWhatIsComing(TiersEngine):
    """What is under way between the tiers during a reset can be hit when it has arrived."""

    def reset_cache(self) -> bool:
        """Forget what rests."""
        chains = {ref: move.chain for ref, move in self._moves.items()}
        done = super().reset_cache()
        for ref, chain in chains.items():
            self._moves[ref].chain = chain
        return done
