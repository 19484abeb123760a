"""The line of a decision: which block size ships, what became of the others, and what it rests on."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvsuite.record.decision_rows import DecisionRow


class DecisionLine(
    msgspec.Struct,
    frozen=True,
    tag_field="kind",
    tag="decision",
    kw_only=True,
    forbid_unknown_fields=True,
):
    """Block sizes, or values of another factor, under one SLO on one trace, pool and device."""

    trace: str
    engine: str
    layout: str
    pool_bytes: int
    factor: str
    """What the options differ in: ``block size``, or the name of what was varied."""
    recipe: dict[str, int | str | bool]
    """What the decision depends on, by name."""
    recipe_hash: str
    slo_ttft_us: int
    slo_itl_us: int
    device: str
    """The device that the costs were measured on."""
    kernel: str
    projected: bool
    """Whether that is another device than the one that decided."""
    repeats: int
    result: Literal["ship", "SLO unreachable on this device", "not decided by latency", "no verdict"]
    shipped: str | None
    with_sharing: bool | None = None
    """Whether it ships with shared prefixes; ``None`` where nothing ships, and without a prefix cache."""
    declared_burst: int = 0
    """Samples that may fork and diverge at once, which the shipped option has to bear; 0 for none."""
    favoured: str | None
    """Where latency does not decide: what memory alone would take."""
    tied: list[str]
    """Options within the noise of the best, itself among them; empty where it stands alone."""
    sentence: str
    """What a person can act on."""
    compared: str | None = None
    """How it stands to the stored decision, where one was given."""
    cold_until_us: float
    """Requests that arrived before are cold, the others steady."""
    load_sequences: int
    """The load at which step times are compared: sequences, and tokens of context of each."""
    load_context_tokens: int
    step_slope_us: float | None
    """Microseconds of a step for each entry that tables are deeper, by least squares over block sizes."""
    step_rho: float | None
    """Spearman's rank correlation of step time and table depth."""
    rows: list[DecisionRow]
