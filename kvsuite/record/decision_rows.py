"""Rows of a `decision` line: one a block size or control, with its figures by phase."""

from __future__ import annotations

from typing import Literal

import msgspec


class PercentileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A nearest-rank percentile with its bootstrap 95 % interval, in microseconds."""

    percent: int
    value_us: float
    low_us: float
    high_us: float


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One option over the requests that arrived in one phase. Counts and percentiles are of the first repeat.

    ``requests = met + missed_ttft + missed_itl + refused + cancelled + unanswered``.
    """

    phase: Literal["cold", "steady"]
    requests: int
    met: int
    missed_ttft: int
    missed_itl: int
    """First token in time, gaps too long."""
    refused: int
    cancelled: int
    unanswered: int
    completed_tokens: int
    qualified_tokens: list[int]
    """One a repeat."""
    qualified_low: float
    """Ends of the bootstrap 95 % interval of their mean."""
    qualified_high: float
    goodput: float
    """Qualified tokens a second of simulated time."""
    safe_concurrency: int
    """The largest concurrency at a first token such that every request there or below met the SLO."""
    ttft: list[PercentileRow]
    itl: list[PercentileRow]
    """Of each request's p99 gap."""


class BurstRow(msgspec.Struct, frozen=True, kw_only=True):
    """The largest number of samples that forked and diverged at once where the pool is fullest."""

    largest: int
    bound: Literal["blocks", "seats", "no sequence to fork"]
    """What kept a larger burst off."""
    spare_blocks: int
    """Free or reclaimable in that step; what ends in it leaves more to the next."""
    running: int
    copied_tokens: int
    """By copy-on-write, in the step in which the largest burst diverged, beyond what is without it."""


class LifecycleRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stretch of the trace around the fullest step, with forks, beams and a cancellation burst."""

    requests: int
    """Those drawn onto it included."""
    forked: int
    denied: int
    """Samples and beams that found no seat or no room."""
    left_at_once: int
    preempted: int
    tokens_read: int
    """Written, and read back."""
    broken: str | None
    """The first law that was broken, or request that did not end as it must."""


class DecisionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a decision, or the reason that there are no figures."""

    option: str
    engine: str
    block_size: int
    control: bool
    verdict: Literal["ship", "reject", "inspect"] | None
    """``None`` where nothing was ruled."""
    cause: Literal["slack", "refusal", "latency", "table bytes", "dominated"] | None
    signal: str
    """What was observed, in one line."""
    refused: str | None = None
    unjudged: str | None = None
    """Why there are no figures although the engine did not refuse."""
    unfit: str | None = None
    """Why it must not ship although it ran."""
    ratio: float | None = None
    """Qualified tokens of the steady phase over those of the best size, over all repeats."""
    ratio_low: float | None = None
    """Ends of its bootstrap 95 % interval."""
    ratio_high: float | None = None
    pool_blocks: int | None = None
    """Left when the tables were paid for."""
    table_bytes: int | None = None
    """Charged to the pool."""
    table_share: float | None = None
    slack_share: float | None = None
    """Slack and over-reserved slots over the slots of the pool, mean over steps."""
    admitted: int | None = None
    preempted: int | None = None
    lost_requests: int | None = None
    mean_occupancy: float | None = None
    mean_running: float | None = None
    running_variation: float | None = None
    """Standard deviation of the running sequences over their mean, in the steady phase."""
    table_depth: int | None = None
    """Entries of one table at the load of ``step_us``."""
    step_us: float | None = None
    """A decode step at one load that is the same for every option."""
    spare_blocks: int | None = None
    """Free or reclaimable when the pool was fullest; each sample that diverges takes one."""
    burst: BurstRow | None = None
    """Of an option that would ship, with shared prefixes."""
    lifecycle: LifecycleRow | None = None
    """Of an option that would ship."""
    phases: list[PhaseRow] = []
