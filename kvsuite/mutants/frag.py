"""Engines that miss room because of where it lies, or count room that cannot be had."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cache.paged import PagedCache, Shortfall
from kvsuite.engine.contiguous.base import POOL, ContiguousEngine, Run
from kvsuite.engine.contiguous.controls import ContiguousPow2
from kvsuite.engine.contiguous.holes import Holes
from kvsuite.engine.contract import Admission, BlockCopy, Capability, EngineSpec, RefusalReason, Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.ledger.contiguity import blocks_inside_pages, largest_hole
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Refusal
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_FRAG = "conformance/test_frag.py::"
PAGE_BLOCKS = 8


class CompactingEngine(ContiguousEngine):
    """One unbroken run a sequence, and runs are moved together when a hole is missing.

    Any free slot serves then, so it claims `Capability.PAGED`, and is sound as long as ``max_moves`` is not
    set: the mutants below set it.
    """

    name = "compacting"
    reservation = "exact"
    max_moves: int | None = None

    def reserved_tokens(self, request_id: RequestId, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return the prompt's own length."""
        del request_id, max_tokens
        return prompt_tokens

    def outgrow(self, request_id: RequestId, run: Run, length: int) -> bool:
        """Take the slots that follow, or gather the free ones there."""
        more = length - run.reserved
        if more > self._holes.free_slots:
            return False
        if not self._take_at(run.start + run.reserved, more):
            self._gather(run)
            if not self._take_at(run.start + run.reserved, more):
                return False
        run.reserved = length
        self._changed.add(request_id)
        return True

    def _take(self, size: int) -> int | None:
        start = super()._take(size)
        if start is None and size <= self._holes.free_slots:
            self._gather(None)
            start = super()._take(size)
        return start

    def _gather(self, last: Run | None) -> None:
        """Slide runs up to ``last`` down and the others up, so that the free slots follow ``last``."""
        order = sorted(self._runs.items(), key=lambda entry: entry[1].start)
        cut = next((at + 1 for at, (_, run) in enumerate(order) if run is last), len(order))
        self._moves_left = self.num_slots if self.max_moves is None else self.max_moves
        edge = 0
        for request_id, run in order[:cut]:
            self._move(request_id, run, edge)
            edge = run.start + run.reserved
        edge = self.num_slots
        for request_id, run in reversed(order[cut:]):
            self._move(request_id, run, edge - run.reserved)
            edge = run.start
        self._mark_afresh()

    def _move(self, request_id: RequestId, run: Run, start: int) -> None:
        if start == run.start or not self._moves_left:
            return
        self._moves_left -= 1
        down = start < run.start
        offsets = range(run.length) if down else range(run.length - 1, -1, -1)
        self._copies += [BlockCopy(POOL, run.start + k, start + k, 1, request_id) for k in offsets]
        run.start = start
        self._changed.add(request_id)

    def _mark_afresh(self) -> None:
        self._holes = Holes(self.num_slots)
        self._holes.take(self.num_slots)
        self._live[:] = False
        for run in self._runs.values():
            self._live[run.start : run.start + run.reserved] = True
        for slot in np.flatnonzero(~self._live).tolist():
            self._holes.give_back(slot, 1)
        self._moved = True

    def _make_spec(self, config: EngineConfig) -> EngineSpec:
        spec = super()._make_spec(config)
        pools = tuple(replace(pool, contiguous=False) for pool in spec.pools)
        capabilities = (spec.capabilities | {Capability.PAGED}) - {Capability.CHUNKED_PREFILL}
        return replace(spec, pools=pools, capabilities=capabilities)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool; no hole is too short, so none is reported."""
        return tuple(replace(shot, largest_free_run=None) for shot in super().snapshot(since))


@mutant(
    "compaction-stops-early",
    caught_by="contiguity",
    shown_by="every second slot free",
    kind="FRAG",
    killer=f"{_FRAG}test_every_second_block_free_still_admits",
)
class CompactionStopsEarly(CompactingEngine):
    """Compaction stops after one move, and the request is refused beside enough free slots."""

    max_moves = 1


@mutant(
    "restore-needs-a-hole",
    caught_by="contiguity",
    shown_by="a preempted sequence that comes back to scattered free slots",
    kind="FRAG",
    killer=f"{_FRAG}test_a_saved_sequence_comes_back_without_a_hole",
)
class RestoreNeedsAHole(CompactingEngine):
    """A new sequence has room made for it; one that comes back needs a hole as long as it is."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._saved: set[RequestId] = set()

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Move nothing for a sequence that was here before."""
        self.max_moves = 0 if request_id in self._saved else None
        return super().admit(request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens)

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Remember whoever was preempted."""
        if reason is Release.PREEMPT:
            self._saved.add(request_id)
        super().release(request_id, reason)


class _RunCache(PagedCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        shortfall = super()._shortfall(total_blocks, hits)
        needed, free = total_blocks - len(hits), np.array(self.pool._free, np.int32)
        if shortfall is not None or needed <= largest_hole(free) or self.pool.num_cached:
            return shortfall
        return Shortfall(needed, len(free), 0, 0, never_fits=False)


@mutant(
    "paged-needs-a-run",
    caught_by="contiguity",
    shown_by="free blocks that are no neighbours",
    kind="FRAG",
    killer=f"{_FRAG}test_every_second_block_free_still_admits",
)
class PagedNeedsARun(ReferenceEngine):
    """A prompt is admitted only where as many free blocks lie side by side."""

    cache_type = _RunCache

    def _refusal(self, short: Shortfall) -> Refusal:
        refusal = super()._refusal(short)
        fits = short.needed_blocks <= short.free_blocks
        return replace(refusal, reason=RefusalReason.NO_CONTIGUOUS_RUN) if fits else refusal


class _PinningCache(PagedCache):
    def reset_prefixes(self) -> bool:
        kept = [block for block in self.pool._idle if block % PAGE_BLOCKS == 0]
        self.pool.hold(kept)
        done = super().reset_prefixes()
        self._drop(kept)
        return done


@mutant(
    "reset-keeps-one-a-page",
    caught_by="pinned",
    shown_by="a reset with idle blocks all over the pool",
    kind="FRAG",
    killer=f"{_FRAG}test_idle_blocks_do_not_hold_pages_for_ever",
)
class ResetKeepsOneAPage(ReferenceEngine):
    """A reset leaves one idle block in each physical page, so that no page can be given back."""

    cache_type = _PinningCache


@mutant(
    "straddlers-counted",
    caught_by="contiguity",
    shown_by="a request for every free block",
    kind="FRAG",
    killer=f"{_FRAG}test_every_free_block_can_be_taken",
)
class StraddlersCounted(ReferenceEngine):
    """Blocks that lie across the border of two physical pages count as free and are never given out."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        pages = -(-config.num_blocks * 3 // 4)
        inside = set(blocks_inside_pages(page_bytes=4, block_bytes=3, num_pages=pages))
        pool = self.cache.pool
        self._straddlers = np.array([block for block in pool._free if block not in inside], np.int32)
        for block in self._straddlers.tolist():
            pool._free.remove(block)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """List the straddlers as free."""
        del since
        (shot,) = super().snapshot()
        return (replace(shot, free=np.append(self._straddlers, shot.free)),)


@mutant(
    "holes-called-waste",
    caught_by="waste",
    shown_by="free blocks that are no neighbours",
    kind="FRAG",
    killer=f"{_FRAG}test_a_scattered_free_block_is_no_waste",
)
class HolesCalledWaste(ReferenceEngine):
    """Only the longest run of free blocks is shown as room, though every free block is given out."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Report a longest run, as a contiguous pool would."""
        del since
        (shot,) = super().snapshot()
        return (replace(shot, largest_free_run=largest_hole(shot.free)),)


class _SplitHoles(Holes):
    """Never joins a hole to its neighbours."""

    def give_back(self, start: int, size: int) -> None:
        at = sum(other < start for other in self._starts)
        self._starts.insert(at, start)
        self._stops.insert(at, start + size)
        self.free_slots += size


@mutant(
    "holes-stay-split",
    caught_by="contiguity",
    shown_by="two neighbours that end, and a request as long as both",
    kind="FRAG",
    killer=f"{_FRAG}test_neighbours_that_end_make_one_hole",
)
class HolesStaySplit(ContiguousPow2):
    """Neighbouring holes are never joined, so that a run across both is refused."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._holes = _SplitHoles(self.num_slots)
