"""The contract between kvsuite and a cache engine.

An engine author writes one class with the methods of `Engine`, registers it under the entry-point
group ``kvsuite.engines``, subclasses nothing and overrides no test. The engine is told what happens to
each request; what it then holds is read from `Engine.snapshot` and never asked of it in words.

One step of a replay, as an engine sees it::

    release(cancelled)                   clients that went away
    extend(running, one token)           decode; a refusal makes the scheduler preempt and ask again
    extend(running, next chunk)          chunked prefill goes on
    admit(waiting)                       new and resumed requests, until one is refused
    take_ops()                           copies the worker executes before it writes
    launched(step)                       reads and writes of this step are under way
    snapshot(since)                      the ledger row
    done(step, accepted)                 settled: publish prefix keys, maintenance
    release(finished); fork(...)         ends and forks, before the next step
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kvsuite.engine.requests import Observation as Observation
from kvsuite.engine.requests import PoolCounts as PoolCounts
from kvsuite.engine.requests import RequestEngine as RequestEngine
from kvsuite.engine.verbs import (
    SupportsBudget as SupportsBudget,
)
from kvsuite.engine.verbs import (
    SupportsFork as SupportsFork,
)
from kvsuite.engine.verbs import (
    SupportsGauges as SupportsGauges,
)
from kvsuite.engine.verbs import (
    SupportsMemory as SupportsMemory,
)
from kvsuite.engine.verbs import (
    SupportsResetCache as SupportsResetCache,
)
from kvsuite.engine.verbs import (
    SupportsSlots as SupportsSlots,
)
from kvsuite.engine.verbs import (
    SupportsStorage as SupportsStorage,
)
from kvsuite.engine.verbs import (
    SupportsTransfers as SupportsTransfers,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.snapshot import (
        PoolKey,
        PoolSnapshot,
        PoolSpec,
    )
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


class Capability(enum.Enum):
    """What an engine may claim; closed by default, so a newer suite never asks for more than was claimed.

    The text of each member is its definition and stands in the report.
    """

    PAGED = "A sequence's blocks may lie anywhere in the pool: any free block serves."
    PREFIX_CACHE = "Full blocks of equal prompts are shared, and stay cached after their last holder left."
    FORK = "A running sequence can be forked: `fork(parent_id, child_id)` shares its blocks."
    COPY_ON_WRITE = (
        "A write into a shared block goes to a private copy; the copy is an operation of `take_ops`, but for "
        "an engine that copies itself."
    )
    COPIES_ITSELF = (
        "Copies on write happen inside the engine's own tensors and are not reported as operations; "
        "`write_storage` and `read_storage` reach these. COPY_ON_WRITE is claimed beside it."
    )
    CHUNKED_PREFILL = "A prompt may be admitted in part and extended by further chunks."
    PREEMPTION = "`release(preempt)` frees a running sequence, which may be admitted again with more tokens."
    SLIDING_WINDOW = "Blocks that fall out of the attention window are released while the sequence runs."
    GROUPS = "Layers in groups with block sizes and tables of their own."
    CONSTANT_STATE = "Layers whose state does not grow with the sequence."
    LOOKAHEAD = "`extend` reserves slots for draft tokens beyond the sequence."
    HOST_TIER = "Blocks can move to host memory and back."
    ASYNC_STEPS = "A step may be launched before the one before it is done."
    MEMORY = "`memory()` lists the storages that hold the cache."
    SLOTS = "`read_slots` and `write_slots` give the engine's own indices of a sequence's tokens."
    RESET_CACHE = "`reset_cache()` forgets every cached block."
    GAUGES = "`gauges()` reports what an operator sees: shares, capacity, hits."
    BUDGET = "`budget()` says how the pools came to their size."
    REQUEST_DRIVEN = "Schedules and samples by itself: driven by `submit`, `cancel`, `step` and `observe`."
    SAMPLES = "A request may ask for several answers, which share its prompt: `submit(num_answers=n)`."


class Release(enum.Enum):
    """Why a sequence gives its blocks back."""

    FINISH = "finish"
    CANCEL = "cancel"
    PREEMPT = "preempt"
    ERROR = "error"


class RefusalReason(enum.Enum):
    """Why an admission was refused."""

    NO_BLOCKS = "no_blocks"
    """Not enough free and reclaimable blocks now."""
    NO_CONTIGUOUS_RUN = "no_contiguous_run"
    """Enough free slots in all, but no unbroken run of them (contiguous pools only)."""
    WATERMARK = "watermark"
    """It would fit, and would leave fewer blocks than the watermark keeps back."""
    PROMISED = "promised"
    """It would fit, on blocks that are promised to prompts still being computed."""
    LOADING = "loading"
    """Its blocks are on their way from another tier: ask again."""
    NEVER_FITS = "never_fits"
    """Larger than the empty pool."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused admission: what was needed and what there was, in blocks of the limiting pool."""

    needed_blocks: int
    free_blocks: int
    reclaimable_blocks: int
    pool: PoolKey
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to `Engine.admit`: accepted with the hits held, or refused with the reason.

    ``hit_tokens`` counts prompt tokens whose blocks were found; they are held from now on.
    ``scheduled_tokens`` is how many tokens, hits included, now have slots.
    """

    hit_tokens: int = 0
    scheduled_tokens: int = 0
    refusal: Refusal | None = None

    @property
    def accepted(self) -> bool:
        """Whether the sequence is live now."""
        return self.refusal is None


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first ``num_tokens`` slots of block ``source`` to block ``target``."""

    pool: PoolKey
    source: int
    target: int
    num_tokens: int
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy a block to another tier; it may end at any later time, and both ends stay pinned until it does.

    The worker answers with `SupportsTransfers.transfer_done`, in any order, or never.
    """

    ref: int
    source_pool: PoolKey
    source: int
    target_pool: PoolKey
    target: int
    num_tokens: int
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Ops:
    """What the worker does before this step's writes, in order: copies, zeroing, then transfers begin."""

    copies: tuple[BlockCopy, ...] = ()
    zeroed: tuple[tuple[PoolKey, int], ...] = ()
    transfers: tuple[Transfer, ...] = ()


NO_OPS = Ops()


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Who an engine is. ``effective`` holds the values it really runs with, after its own rounding.

    Identity of a golden is (name, version, adapter version, effective values, pools, layout and dtype).
    ``provenance`` (loader kind, kernel) is recorded beside it and is not identity.
    """

    name: str
    version: str
    adapter_version: int
    pools: tuple[PoolSpec, ...]
    capabilities: frozenset[Capability]
    effective: Mapping[str, int | str | bool] = field(default_factory=dict)
    layout: str = ""
    """Canonical text of the layout, such as ``gqa L32 kv8 d128 bfloat16 tp1``."""
    dtype: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    def claims(self, capability: Capability) -> bool:
        """Return whether the engine claims ``capability``."""
        return capability in self.capabilities


@runtime_checkable
class Engine(Protocol):
    """A cache engine that is driven token by token. All counts are tokens unless named otherwise."""

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        ...

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in, or refuse it and change nothing.

        ``prompt`` is everything to be computed (after a preemption: prompt and what was generated).
        The engine looks up its prefix cache, holds the hits and takes slots for ``first_chunk_tokens``
        more tokens, at most the rest of the prompt. ``max_tokens`` is the cap on the whole sequence that
        the client declared.
        """
        ...

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        ...

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds."""
        ...

    def take_ops(self) -> Ops:
        """Return, once, the copies and zeroing to be done before this step's writes."""
        ...

    def launched(self, step: int) -> None:
        """Learn that this step's reads and writes are under way."""
        ...

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Learn that the step is settled; ``accepted`` is the settled length of each sequence in it."""
        ...

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return every pool as it stands; with ``since``, a revision, optionally only what changed."""
        ...
