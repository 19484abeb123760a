"""What each part of a step costs, fitted to timings: a linear model whose costs are not negative.

A row is weighed by one over the root of its time: the variance of a timing grows about as the time does, so
that a small batch neither decides what a token costs nor is drowned. Parts are timed apart, and a step is
their sum.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.device.timing.rounds import Load, Timing

FloatArray = npt.NDArray[np.float64]
BASE = "base"
TERMS: Mapping[str, tuple[str, ...]] = {
    "attention": (BASE, "sequences", "context_tokens"),
    "rest": (BASE, "sequences"),
    "head": (BASE, "sequences"),
    "prefill": (BASE, "prefill_tokens", "prefill_pairs"),
    "upload": (BASE, "sequences", "table_entries"),
    "manager": ("sequences", "blocks"),
}
"""What the time of each part depends on: a fixed cost, and fields of `Load`."""
BOOTSTRAP_DRAWS = 200
_COARSEST_US = 1e-3
"""Stands for 0, which a coarse clock says of a short call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFit:
    """The microseconds of a part for one of each of its terms, and how far the timings lie from that.

    Residuals are ``|fitted - measured| / measured`` over the medians of its timings. ``low_us`` and
    ``high_us`` are the quartiles of a bootstrap over rounds.
    """

    part: str
    block_size: int | None
    terms: tuple[str, ...]
    costs_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    residual_median: float
    residual_max: float

    def us(self, load: Load) -> float:
        """Return the fitted microseconds of a load."""
        return float(np.dot(self.costs_us, _row(self.terms, load)))


def nonnegative_least_squares(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Return ``x >= 0`` that minimises ``|matrix @ x - target|``, for a few columns.

    Every set of columns is solved without bounds, and the best of the solutions that keep them is taken: the
    optimum is the plain solution on its own support, so it is among them.

    >>> nonnegative_least_squares(np.eye(2), np.array([3.0, -1.0])).tolist()
    [3.0, 0.0]
    """
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(target @ target)
    for count in range(1, columns + 1):
        for chosen in itertools.combinations(range(columns), count):
            part = matrix[:, chosen]
            solved = np.linalg.lstsq(part, target, rcond=None)[0]
            missed = part @ solved - target
            if solved.min() >= 0 and missed @ missed < least:
                least = float(missed @ missed)
                best = np.zeros(columns)
                best[list(chosen)] = solved
    return best


class PartTimings:
    """The timings of one part, at every block size where one fit serves all: what a fit is made from.

    The terms before the last then cost the same at every size, and only what comes with the last one differs.
    With equal loads at all sizes the shared costs of the joint least squares are those of the mean over
    sizes, and given them each size has one cost left.

    **Raises:** `ConfigError` where the loads do not tell the terms apart, or are not the same at all sizes.
    """

    def __init__(self, part: str, by_size: Mapping[int | None, Sequence[Timing]]) -> None:
        self.part, self.terms, self.sizes = part, TERMS[part], tuple(by_size)
        loads = [[timing.what.load for timing in timings] for timings in by_size.values()]
        if any(each != loads[0] for each in loads):
            raise ConfigError(
                f"timings of {part} are not of the same loads at every block size: time all anew"
            )
        self._loads = np.array([_row(self.terms, load) for load in loads[0]], np.float64)
        if np.linalg.matrix_rank(self._loads) < len(self.terms):
            raise ConfigError(
                f"{len(self._loads)} timings of {part} do not tell {', '.join(self.terms)} apart: time more "
                "loads"
            )
        self._rounds = np.array(
            [[timing.rounds_us for timing in timings] for timings in by_size.values()], np.float64
        )

    def costs(self, chance: np.random.Generator | None = None) -> FloatArray:
        """Return the microseconds of one of each term, float64 [sizes, terms].

        With ``chance``, of as many rounds drawn with replacement, the same in every timing.
        """
        measured = self._medians(chance)
        mean = measured.mean(axis=0)
        weights = mean**-0.5
        loads = self._loads * weights[:, None]
        shared = nonnegative_least_squares(loads, mean * weights)[:-1]
        last = loads[:, -1]
        left = measured * weights - loads[:, :-1] @ shared
        costs = np.empty((len(measured), len(self.terms)))
        costs[:, :-1] = shared
        costs[:, -1] = np.maximum(0.0, left @ last / (last @ last))
        return costs

    def fits(self, *, seed: int = 0) -> Iterator[PartFit]:
        """Yield the fit of each size, with a bootstrap's spread."""
        costs, measured = self.costs(), self._medians(None)
        chance = np.random.default_rng(seed)
        drawn = np.array([self.costs(chance) for _ in range(BOOTSTRAP_DRAWS)])
        low, high = np.quantile(drawn, [0.25, 0.75], axis=0)
        residuals = np.abs(costs @ self._loads.T - measured) / measured
        for index, size in enumerate(self.sizes):
            yield PartFit(
                part=self.part,
                block_size=size,
                terms=self.terms,
                costs_us=tuple(costs[index].tolist()),
                low_us=tuple(low[index].tolist()),
                high_us=tuple(high[index].tolist()),
                residual_median=float(np.median(residuals[index])),
                residual_max=float(residuals[index].max()),
            )

    def _medians(self, chance: np.random.Generator | None) -> FloatArray:
        """Return the median of each timing, float64 [sizes, loads]."""
        rounds = self._rounds
        if chance is not None:
            rounds = rounds[..., chance.integers(0, rounds.shape[-1], rounds.shape[-1])]
        return np.maximum(np.median(rounds, axis=-1), _COARSEST_US)


def _row(terms: Sequence[str], load: Load) -> list[float]:
    return [1.0 if term == BASE else float(getattr(load, term)) for term in terms]
