"""From the figures of each option to one verdict and one cause an option: pure, and the same in any order.

*ship* the knee, the option with the most qualified tokens; *reject* loses to memory; *inspect* wins memory
and loses latency. What is ambiguous in that is settled in docs/decisions/0019-the-knee.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsuite.errors import ConfigError
from kvsuite.sweep.slo import RESAMPLES, SEED, interval_places

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["ship", "reject", "inspect"]
Cause = Literal["slack", "refusal", "latency", "table bytes", "dominated"]
Result = Literal["ship", "SLO unreachable on this device", "not decided by latency", "no verdict"]

MIN_SIZES = 5
"""Fewer sizes that ran give no verdict."""
MIN_REPEATS = 3
NOISE_CAP = 0.05
"""Options further apart than this are never tied, however wide the interval of their ratio."""
EXTRA_SLACK = 0.01
"""Share of the pool that a larger block may leave empty beyond the tied one that leaves least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What was measured of one option. Repeat ``k`` of every option ran on its ``k``-th draw of costs."""

    name: str
    block_size: int
    is_control: bool = False
    """A control is ruled on and never ships."""
    refused: str | None = None
    """Why the engine refused it; there are no figures then."""
    unjudged: str | None = None
    """Why there are no figures although it was not refused."""
    unfit: str | None = None
    """Why it must not ship although it ran, such as a lifecycle it does not survive."""
    qualified_tokens: tuple[int, ...] = ()
    """One a repeat."""
    step_us: tuple[float, ...] = ()
    """Duration of a step at one load that is the same for all options, one a repeat."""
    completed_tokens: int = 0
    slack_share: float = 0.0
    """Slack and over-reserved slots over the slots of the pool, mean over steps."""
    table_share: float = 0.0
    """Bytes of block tables charged to the pool, over the pool before the charge."""
    lost_requests: int = 0
    """Requests refused for good."""

    @property
    def ran(self) -> bool:
        """Whether there are figures."""
        return self.refused is None and self.unjudged is None

    @property
    def overhead(self) -> float:
        """Share of the pool that holds no token because of the option."""
        return self.slack_share + self.table_share


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of means over paired repeats with its bootstrap 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_tie(self) -> bool:
        """Whether it may be 1 by the interval, and is not too far below."""
        return self.high >= 1 and self.value >= 1 - NOISE_CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What became of one option; verdict and cause are ``None`` where nothing is ruled."""

    option: Option
    verdict: Verdict | None = None
    cause: Cause | None = None
    ratio: Ratio | None = None
    """Qualified tokens over those of the best size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The knee, or the reason that there is none. ``rulings`` are in the order of the options."""

    result: Result
    shipped: Option | None = None
    favoured: Option | None = None
    """Where latency does not decide: what the rule for ties would take, by memory alone."""
    tied: tuple[Option, ...] = ()
    """Options within the noise of the best, itself among them, by block size; empty where it stands alone."""
    rulings: tuple[Ruling, ...]

    def ruling(self, name: str) -> Ruling:
        """Return the ruling on the option called ``name``."""
        return next(ruling for ruling in self.rulings if ruling.option.name == name)


def decide(options: Sequence[Option], *, least: int = MIN_SIZES) -> Decision:
    """Return the verdict over ``options``; fewer than ``least`` of them that ran, controls apart, give none.

    **Raises:** `ConfigError` for two options of one name, for fewer than `MIN_REPEATS` repeats, and for
    options with different numbers of them.
    """
    _check(options)
    candidates = [option for option in options if option.ran and not option.is_control]
    if len(candidates) < least:
        return Decision(result="no verdict", rulings=tuple(_unruled(option) for option in options))
    serving = [option for option in candidates if sum(option.qualified_tokens) > 0]
    fit = [option for option in serving if option.unfit is None]
    if not fit:
        return Decision(
            result="no verdict" if serving else "SLO unreachable on this device",
            rulings=tuple(_unserved(option) for option in options),
        )
    best = max(fit, key=lambda option: (sum(option.qualified_tokens), *_rank(option)))
    tied = sorted((option for option in fit if _ratio_to(best, option).is_tie), key=_rank)
    favoured = _favoured(tied)
    undecided = len(tied) == len(candidates)
    rulings = tuple(_ruling(option, favoured, best) for option in options)
    if not undecided:
        rulings = _with_reason_to_ship(rulings, favoured)
    return Decision(
        result="not decided by latency" if undecided else "ship",
        shipped=None if undecided else favoured,
        favoured=favoured if undecided else None,
        tied=tuple(tied) if len(tied) > 1 else (),
        rulings=rulings,
    )


def ratio_of(upper: Sequence[float], lower: Sequence[float]) -> Ratio:
    """Return the ratio of the sums of two paired series with its bootstrap 95 % interval over the pairs.

    Of a series that is 0 as a whole, nothing can be a share: the ratio is 1 to itself, else infinite.
    """
    above, below = np.asarray(upper, np.float64), np.asarray(lower, np.float64)
    if not below.sum():
        value = np.inf if above.sum() else 1.0
        return Ratio(value, value, value)
    places = np.random.default_rng(SEED).integers(0, len(above), (RESAMPLES, len(above)))
    totals = below[places].sum(axis=1)
    resampled = np.sort(above[places].sum(axis=1)[totals > 0] / totals[totals > 0])
    low, high = interval_places(len(resampled)) if len(resampled) >= RESAMPLES // 2 else (0, -1)
    return Ratio(float(above.sum() / below.sum()), float(resampled[low]), float(resampled[high]))


def _check(options: Sequence[Option]) -> None:
    names = [option.name for option in options]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two options are called {twice[0]!r}: give each a name of its own")
    for option in options:
        repeats = len(option.qualified_tokens)
        if option.ran and (repeats < MIN_REPEATS or repeats != len(option.step_us)):
            raise ConfigError(
                f"{option.name} has {repeats} repeats of tokens and {len(option.step_us)} of step times: "
                f"expected the same number of both, {MIN_REPEATS} or more"
            )
    if len({len(option.qualified_tokens) for option in options if option.ran}) > 1:
        raise ConfigError("options with different numbers of repeats cannot be paired: give each the same")


def _rank(option: Option) -> tuple[int, float, str]:
    """Return what orders options: by block size; at one block size, the leaner one last."""
    return option.block_size, -option.overhead, option.name


def _ratio_to(best: Option, option: Option) -> Ratio:
    return ratio_of(option.qualified_tokens, best.qualified_tokens)


def _favoured(tied: Sequence[Option]) -> Option:
    """Return the largest block that leaves at most `EXTRA_SLACK` more empty than the leanest one."""
    least = min(option.slack_share for option in tied)
    return max((option for option in tied if option.slack_share - least <= EXTRA_SLACK), key=_rank)


def _ruling(option: Option, favoured: Option, best: Option) -> Ruling:
    if not option.ran:
        return _unruled(option)
    ratio = _ratio_to(best, option)
    if option is favoured:
        return Ruling(option=option, verdict="inspect", cause="latency", ratio=ratio)
    verdict, cause = _loss(option, favoured, is_tied=ratio.is_tie)
    return Ruling(option=option, verdict=verdict, cause=cause, ratio=ratio)


def _loss(option: Option, favoured: Option, *, is_tied: bool) -> tuple[Verdict, Cause]:
    """Return by what an option loses to the favoured one."""
    if option.unfit is not None or option.lost_requests > favoured.lost_requests:
        return "reject", "refusal"
    slower = ratio_of(option.step_us, favoured.step_us).low > 1
    if option.overhead > favoured.overhead:
        if slower:
            return "reject", "dominated"
        extra_slack = option.slack_share - favoured.slack_share
        extra_tables = option.table_share - favoured.table_share
        return "reject", "slack" if extra_slack >= extra_tables else "table bytes"
    return "inspect", "dominated" if is_tied and not slower else "latency"


def _with_reason_to_ship(rulings: tuple[Ruling, ...], shipped: Option) -> tuple[Ruling, ...]:
    """Return the rulings with the shipped option's: its cause is what its strongest rival lost by."""
    rivals = [r for r in rulings if r.ratio is not None and not r.option.is_control and r.option != shipped]
    rival = max(rivals, key=lambda r: (sum(r.option.qualified_tokens), *_rank(r.option)))
    return tuple(
        Ruling(option=r.option, verdict="ship", cause=rival.cause, ratio=r.ratio)
        if r.option == shipped
        else r
        for r in rulings
    )


def _unserved(option: Option) -> Ruling:
    """Return the ruling on an option that qualifies no token: latency keeps it from it, or a lack of room.

    A control may qualify some where no size does; it is the rule against controls that keeps it.
    """
    if not option.ran:
        return _unruled(option)
    if option.unfit is not None or not option.completed_tokens:
        return Ruling(option=option, verdict="reject", cause="refusal")
    serves = option.is_control and sum(option.qualified_tokens) > 0
    return Ruling(option=option, verdict="inspect", cause="dominated" if serves else "latency")


def _unruled(option: Option) -> Ruling:
    if option.refused is not None:
        return Ruling(option=option, verdict="reject", cause="refusal")
    return Ruling(option=option)
