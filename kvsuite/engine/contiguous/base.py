"""What the contiguous controls have in common: first fit over holes, seen as a pool of one-token blocks.

A sequence owns an unbroken run of slots, taken whole at admission. Its table lists the run, so what lies
beyond its length is over-reserved (internal fragmentation), and a request may be refused although enough
slots are free in all (external fragmentation, counted in ``fragmentation_events``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contiguous.holes import Holes
from kvsuite.engine.contract import (
    NO_OPS,
    Admission,
    BlockCopy,
    Capability,
    EngineSpec,
    Ops,
    Refusal,
    RefusalReason,
    Release,
)
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSnapshot, PoolSpec
from kvsuite.errors import BlockError, ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

POOL = PoolKey()
VERSION = "1"
"""Raised when a control allocates otherwise."""


class Run:
    """The slots of one sequence: ``start .. start + reserved``, of which the first ``length`` are filled."""

    __slots__ = ("length", "reserved", "start")

    def __init__(self, start: int, reserved: int, length: int) -> None:
        self.start = start
        self.reserved = reserved
        self.length = length


class ContiguousEngine(ABC):
    """An engine that reserves one run a sequence; a control says how long, and what happens when it is full.

    **Raises:** `ConfigError` for options; `BlockError` for a sequence that is unknown or live already;
    `EngineError` for tokens that do not follow what the sequence has.
    """

    name: str
    reservation: str

    def __init__(self, config: EngineConfig) -> None:
        if config.options:
            raise ConfigError(f"{self.name}: unknown option {min(config.options)!r}: the control takes none")
        self.num_slots = config.num_blocks * config.block_size
        self.fragmentation_events = 0
        """Admissions and extensions refused although enough slots were free in all."""
        self._holes = Holes(self.num_slots)
        self._runs: dict[RequestId, Run] = {}
        self._copies: list[BlockCopy] = []
        self._spec = self._make_spec(config)
        self._revision = 0
        self._changed: set[RequestId] = set()
        self._live = np.zeros(self.num_slots, np.bool_)
        self._seen_live = self._live.copy()
        self._moved = False

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    @abstractmethod
    def reserved_tokens(self, request_id: RequestId, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return how many slots a sequence reserves at admission."""

    @abstractmethod
    def outgrow(self, request_id: RequestId, run: Run, length: int) -> bool:
        """Make room for ``length`` tokens, more than ``run`` has reserved; False: refused."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in with its whole reservation, or refuse it and change nothing."""
        if request_id in self._runs:
            raise BlockError(f"{request_id} is live already: release it before it is admitted again")
        reserved = max(prompt.stop, self.reserved_tokens(request_id, prompt.stop, max_tokens))
        start = self._take(reserved)
        if start is None:
            return Admission(refusal=self._refusal(reserved))
        scheduled = min(prompt.stop, first_chunk_tokens)
        self._runs[request_id] = Run(start, reserved, scheduled)
        self._changed.add(request_id)
        return Admission(scheduled_tokens=scheduled)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        run = self._run(request_id, "extend")
        if tokens.start != run.length or lookahead_tokens:
            raise EngineError(
                f"{request_id} holds {run.length} tokens and is extended from {tokens.start} with "
                f"{lookahead_tokens} look-ahead tokens: tokens must follow, and look-ahead is not claimed"
            )
        if tokens.stop > run.reserved and not self.outgrow(request_id, run, tokens.stop):
            return False
        run.length = tokens.stop
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds; every reason is treated alike."""
        del reason
        run = self._run(request_id, "release")
        self._give_back(run.start, run.reserved)
        del self._runs[request_id]
        self._changed.discard(request_id)
        self._copies = [copy for copy in self._copies if copy.request_id != request_id]

    def take_ops(self) -> Ops:
        """Return, once, the copies of sequences that moved: one a token, in order."""
        if not self._copies:
            return NO_OPS
        ops = Ops(tuple(self._copies))
        self._copies = []
        return ops

    def launched(self, step: int) -> None:
        """Nothing to do: a step is settled before the next one is driven."""
        del step

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Nothing to do: nothing is shared, so nothing is published."""
        del step, accepted

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        changed_only = since is not None and since == self._revision
        self._revision += 1
        request_ids = tuple(self._runs)
        wanted = self._changed if changed_only else request_ids
        rows = [row for row, request_id in enumerate(request_ids) if request_id in wanted]
        runs = [self._runs[request_ids[row]] for row in rows]
        offsets = np.zeros(len(runs) + 1, np.int64)
        np.cumsum([run.reserved for run in runs], out=offsets[1:])
        free, live = self._slots(changed_only)
        self._changed = set()
        return (
            PoolSnapshot(
                key=POOL,
                revision=self._revision,
                since=since if changed_only else None,
                request_ids=request_ids,
                lengths=np.array([run.length for run in self._runs.values()], np.int64),
                table_rows=np.array(rows, np.int32),
                table_offsets=offsets,
                table_blocks=_slot_ids([(run.start, run.start + run.reserved) for run in runs]),
                free=free,
                cached=NO_BLOCKS,
                live=live,
                largest_free_run=self._holes.largest,
            ),
        )

    def _take(self, size: int) -> int | None:
        start = self._holes.take(size)
        if start is None:
            self.fragmentation_events += size <= self._holes.free_slots
        else:
            self._mark(start, size, live=True)
        return start

    def _take_at(self, start: int, size: int) -> bool:
        taken = self._holes.take_at(start, size)
        if taken:
            self._mark(start, size, live=True)
        return taken

    def _give_back(self, start: int, size: int) -> None:
        self._holes.give_back(start, size)
        self._mark(start, size, live=False)

    def _mark(self, start: int, size: int, *, live: bool) -> None:
        self._live[start : start + size] = live
        self._moved = True

    def _slots(self, changed_only: bool) -> tuple[Int32Array, Int32Array]:
        free, live = NO_BLOCKS, NO_BLOCKS
        if not changed_only:
            free = _slot_ids(list(self._holes))
        elif self._moved:
            changed = np.flatnonzero(self._live != self._seen_live).astype(np.int32)
            now = self._live[changed]
            free, live = changed[~now], changed[now]
        if self._moved:
            np.copyto(self._seen_live, self._live)
            self._moved = False
        return free, live

    def _refusal(self, needed: int) -> Refusal:
        free = self._holes.free_slots
        if needed > self.num_slots:
            reason = RefusalReason.NEVER_FITS
        elif needed > free:
            reason = RefusalReason.NO_BLOCKS
        else:
            reason = RefusalReason.NO_CONTIGUOUS_RUN
        return Refusal(needed, free, 0, POOL, reason)

    def _run(self, request_id: RequestId, verb: str) -> Run:
        try:
            return self._runs[request_id]
        except KeyError:
            raise BlockError(
                f"{verb} of unknown sequence {request_id!r}: not among the {len(self._runs)} live ones; "
                "it was never admitted, or was released before"
            ) from None

    def _make_spec(self, config: EngineConfig) -> EngineSpec:
        layout = config.layout
        pool = PoolSpec(
            key=POOL,
            num_blocks=self.num_slots,
            block_size=1,
            bytes_per_token=layout.bytes_per_token,
            table_entry_bytes=0,
            contiguous=True,
        )
        return EngineSpec(
            name=self.name,
            version=VERSION,
            adapter_version=1,
            pools=(pool,),
            capabilities=frozenset({Capability.CHUNKED_PREFILL, Capability.PREEMPTION}),
            effective={
                "num_slots": self.num_slots,
                "prefix_cache": False,
                "watermark_blocks": 0,
                "reservation": self.reservation,
                "placement": "first_fit",
            },
            layout=str(layout),
            dtype=layout.dtype.value,
        )


def _slot_ids(runs: Sequence[tuple[int, int]]) -> Int32Array:
    ids = [np.arange(start, stop, dtype=np.int32) for start, stop in runs]
    return np.concatenate(ids) if ids else NO_BLOCKS
