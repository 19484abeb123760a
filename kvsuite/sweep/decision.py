"""A measurement judged: the line of the record, the stored decision, and the sentence a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.record.schema import DecisionLine
from kvsuite.sweep.decision_rows import decision_row
from kvsuite.sweep.knee import MIN_SIZES, Decision, decide
from kvsuite.sweep.recipe import StoredDecision, recipe_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsuite.sweep.clock import Float64Array
    from kvsuite.sweep.measure import Measured, Measurement
    from kvsuite.sweep.recipe import Recipe
    from kvsuite.sweep.trial import Trial

BLOCK_SIZE = "block size"
"""What options differ in unless something else is varied."""
MIN_VALUES = 2
"""Of another factor."""
UNREACHABLE_EXIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision with what it was made from."""

    measurement: Measurement
    decision: Decision
    recipe: Recipe
    factor: str
    here: str
    """The device that decided."""

    @property
    def projected(self) -> bool:
        """Whether the costs are of another device: then it is no verdict on this one."""
        return self.recipe.device != self.here

    @property
    def trial(self) -> Trial | None:
        """What the shipped option bore; ``None`` where nothing ships or nothing was tried."""
        shipped = self.decision.shipped
        if shipped is None:
            return None
        return next(m.trial for m in self.measurement.options if m.name == shipped.name)

    @property
    def with_sharing(self) -> bool | None:
        """Whether what ships shares prefixes; ``None`` as for `trial`, and for what was measured without."""
        return None if self.trial is None or self.trial.burst is None else self.trial.sharing

    @property
    def exit_code(self) -> int:
        """4 where no option meets the SLO on this device, else 0; a projection gates nothing."""
        unreachable = self.decision.result == "SLO unreachable on this device"
        return UNREACHABLE_EXIT if unreachable and not self.projected else 0

    def line(self, *, trace: str, engine: str, compared: str | None = None) -> DecisionLine:
        """Return the line of the record; ``trace`` is the ref of a trace line."""
        recipe = self.recipe.flat()
        slope_us, rho = self._trend()
        return DecisionLine(
            trace=trace,
            engine=engine,
            layout=str(self.recipe.layout),
            pool_bytes=self.recipe.pool_bytes,
            factor=self.factor,
            recipe=recipe,
            recipe_hash=recipe_hash(recipe),
            slo_ttft_us=self.recipe.slo.ttft_us,
            slo_itl_us=self.recipe.slo.itl_us,
            device=self.recipe.device,
            kernel=self.recipe.kernel,
            projected=self.projected,
            repeats=self.measurement.repeats,
            result=self.decision.result,
            shipped=None if self.decision.shipped is None else self.decision.shipped.name,
            with_sharing=self.with_sharing,
            declared_burst=self.recipe.declared_burst,
            favoured=None if self.decision.favoured is None else self.decision.favoured.name,
            tied=[option.name for option in self.decision.tied],
            sentence=sentence(self),
            compared=compared,
            cold_until_us=self.measurement.cold_until_us,
            load_sequences=self.measurement.load.sequences,
            load_context_tokens=self.measurement.load.context_tokens,
            step_slope_us=slope_us,
            step_rho=rho,
            rows=[
                decision_row(measured, ruling, self.measurement)
                for measured, ruling in zip(self.measurement.options, self.decision.rulings, strict=True)
            ],
        )

    def stored(self, line: DecisionLine) -> StoredDecision:
        """Return what is kept beside the run."""
        return StoredDecision(
            result=self.decision.result,
            shipped=line.shipped,
            with_sharing=line.with_sharing,
            tied=line.tied,
            projected=line.projected,
            sentence=line.sentence,
            recipe=line.recipe,
            recipe_hash=line.recipe_hash,
            rows=line.rows,
        )

    def _trend(self) -> tuple[float | None, float | None]:
        ran = self.measurement.candidates
        depths = [float(self.measurement.load.table_depth(measured.cell)) for measured in ran]
        return trend(depths, [measured.step_us[0] for measured in ran])


def decided(
    measurement: Measurement,
    recipe: Recipe,
    *,
    here: str,
    factor: str = BLOCK_SIZE,
    trials: Callable[[Measured], Trial] | None = None,
) -> Decided:
    """Return the decision over what was measured.

    ``trials`` tries what would ship. An option that does not bear it is struck, and the knee is found again
    without it.
    """
    least = MIN_SIZES if factor == BLOCK_SIZE else MIN_VALUES
    while True:
        decision = decide([measured.option() for measured in measurement.options], least=least)
        name = None if decision.shipped is None else decision.shipped.name
        chosen = next((measured for measured in measurement.options if measured.name == name), None)
        if chosen is None or trials is None:
            break
        chosen.trial = trials(chosen)
        chosen.unfit = chosen.trial.unfit
        if chosen.unfit is None:
            break
    return Decided(measurement=measurement, decision=decision, recipe=recipe, factor=factor, here=here)


def sentence(decided: Decided) -> str:
    """Return what a person can act on."""
    projected = (
        f" Projected: the costs were measured on {decided.recipe.device}, not on {decided.here}; "
        "this gates nothing."
        if decided.projected
        else ""
    )
    return _said(decided) + projected


def trend(depths: Sequence[float], step_us: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the least-squares slope of step time over table depth, and Spearman's rank correlation.

    ``None`` where there are fewer than two depths; the correlation also where all step times are equal.

    >>> trend([1, 3], [10, 14])
    (2.0, 1.0)
    """
    x, y = np.asarray(depths, np.float64), np.asarray(step_us, np.float64)
    if len(set(depths)) < 2:
        return None, None
    centred = x - x.mean()
    slope = float(centred @ (y - y.mean()) / (centred @ centred))
    if len(set(step_us)) < 2:
        return slope, None
    return slope, round(float(np.corrcoef(_ranks(x), _ranks(y))[0, 1]), 12)


def _said(decided: Decided) -> str:
    decision, slo = decided.decision, decided.recipe.slo
    if decision.result == "SLO unreachable on this device":
        return (
            f"SLO unreachable on this device: no {_candidate(decided)} qualifies a token under {slo}. "
            "Nothing ships; give a larger budget, a faster kernel or device, or a smaller model."
        )
    if decision.result == "no verdict":
        return _no_verdict(decided)
    if decision.result == "not decided by latency":
        favoured = "" if decision.favoured is None else decision.favoured.name
        return (
            f"Not decided by latency: all {_candidate(decided)}s qualify the same tokens under {slo}, within "
            f"the noise. By memory alone it would be {favoured}."
        )
    assert decision.shipped is not None
    ruling = decision.ruling(decision.shipped.name)
    others = [option.name for option in decision.tied if option != decision.shipped]
    tied = f" Tied with it: {', '.join(others)}." if others else ""
    tokens = f"{_mean(decision.shipped.qualified_tokens):,.0f} qualified tokens under {slo}"
    lost = "is dominated" if ruling.cause == "dominated" else f"loses by {ruling.cause}"
    loses = f"its strongest rival {lost}.{tied}"
    trial, name = decided.trial, decision.shipped.name
    if trial is None or trial.burst is None:
        return f"Ship {name}: {tokens}; {loses}"
    bears = f"bears {trial.burst.largest:,} samples that diverge at once"
    if trial.sharing:
        return f"Ship {name}: {tokens}; {loses} At its fullest step it {bears}."
    return (
        f"Ship {name} with sharing off: {_mean(trial.unshared_tokens):,.0f} qualified tokens so. With "
        f"sharing, {tokens}, and at its fullest step it {bears}, where {decided.recipe.declared_burst:,} are "
        f"declared; {loses}"
    )


def _mean(tokens: Sequence[int]) -> float:
    return sum(tokens) / len(tokens)


def _candidate(decided: Decided) -> str:
    """Return what may ship, in a word: a control qualifies tokens and is none."""
    return BLOCK_SIZE if decided.factor == BLOCK_SIZE else "option"


def _no_verdict(decided: Decided) -> str:
    ran = decided.measurement.candidates
    unfit = [f"{option.name} ({option.unfit})" for option in ran if option.unfit is not None]
    if unfit:
        return f"No verdict: nothing that qualifies tokens is fit to ship: {'; '.join(unfit)}."
    options = decided.measurement.options
    refused = next((option for option in options if option.refused and not option.cell.is_control), None)
    because = "" if refused is None else f" {refused.name} was refused: {refused.refused}."
    if decided.factor == BLOCK_SIZE:
        told = f"No verdict: {len(ran)} block sizes ran, expected {MIN_SIZES} or more"
        return f"{told}.{because}" if because else f"{told}; give more --sizes."
    return f"No verdict: {len(ran)} values of {decided.factor} ran, expected {MIN_VALUES} or more.{because}"


def _ranks(values: Float64Array) -> Float64Array:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
