"""Rows of the lines that compare: allocation strategies, block sizes, broken engines."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation strategy in a comparison."""

    strategy: str
    engine: str
    reserved_tokens: int
    payload_tokens: int
    fragmentation_events: int
    refused_admissions: int


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a sweep: a block size or a control, or the reason it was refused or failed."""

    option: str
    engine: str
    block_size: Positive
    refused: str | None = None
    failed: str | None = None
    """Why it came to nothing, however often it was tried."""
    slack_share: float | None = None
    """Slack over allocated, mean over steps."""
    allocation_efficiency: float | None = None
    """Payload over what sequences hold, mean over steps: the waste of a control is reservation, not slack."""
    static_slack_share: float | None = None
    """Slack over allocated with every request at its final length."""
    table_bytes_peak: int | None = None
    admitted: int | None = None
    finished: int | None = None
    preempted: int | None = None
    refused_admissions: int | None = None
    fragmentation_events: int | None = None
    peak_payload_tokens: int | None = None
    mean_occupancy: float | None = None
    """Live blocks over the pool, mean over steps."""
    mean_running: float | None = None
    hit_tokens: int | None = None
    steps: int | None = None


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """One broken engine in a kill matrix."""

    mutant: str
    kind: str
    """Its kind in the catalogue of faults, such as ``LEAK``."""
    fault: str
    """What is wrong with it, in one line."""
    declared: str
    """The invariant that must see it; ``golden`` where only a golden shows a difference."""
    killers: int
    """Test functions that fail on it by a named invariant."""
    invariants: list[str]
    """Every invariant that any of them named, sorted."""
    counter_only: bool
    """Whether a check that only counts blocks would have seen it."""
