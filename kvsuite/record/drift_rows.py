"""Rows of a `drift` line: one an engine, held against the one before it."""

from __future__ import annotations

from typing import Literal

import msgspec


class DriftColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger column that differs: totals of an event, mean and peak of a level."""

    name: str
    kind: Literal["event", "level"]
    unit: str
    old: float | None
    """Sum of an event over every step, mean of a level over every step."""
    new: float | None
    old_peak: int | None = None
    """Levels only."""
    new_peak: int | None = None
    steps_differ: int
    """Steps at which the two values differ. An event at a step without a row counts as 0; a level is
    compared at the steps that both have."""
    first_step: int
    first_old: int | None
    first_new: int | None


class DriftFootprint(msgspec.Struct, frozen=True, kw_only=True):
    """Which blocks were used, apart from how many."""

    old_blocks: int | None
    """Different blocks held at any time, at the end of the replay."""
    new_blocks: int | None
    same_order: bool
    """Whether block ids came into use in the same order, numbered by first use."""
    steps_differ: int
    first_step: int | None = None
    """``None`` where both agree at every step that both have."""

    @property
    def equal(self) -> bool:
        """Whether the same blocks were used in the same order."""
        return self.first_step is None


class DriftPool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool that both engines have."""

    key: str
    changed: list[DriftColumn]
    equal: list[str]
    """Columns with the same value at every step."""
    unseen: list[str]
    """Columns that neither lets us see."""
    first_step: int | None = None
    """Where the counts part."""
    old_row: dict[str, int | None] = {}
    """Every counted column at that step; empty where this side has no row."""
    new_row: dict[str, int | None] = {}
    footprint: DriftFootprint
    drawn: str | None = None
    """The level that moved most: by its share of the pool, or the blocks touched where no level did."""


class DriftRow(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a chain. The first that ran is held against nothing: it has no verdict."""

    engine: str
    refused: str | None = None
    """Why it did not run."""
    against: str | None = None
    """The last engine before it that ran."""
    verdict: Literal["equal", "footprint", "drift"] | None = None
    sentence: str = ""
    """The first change."""
    changed_values: list[str] = []
    """Effective values, capabilities and facts of pools that differ, as ``name: old -> new``."""
    violations: dict[str, int] = {}
    """Laws it broke, by name, and how often."""
    steps: int = 0
    steps_lost: int = 0
    """Busy steps of the engine before it that this one does not have."""
    steps_gained: int = 0
    pools: list[DriftPool] = []
