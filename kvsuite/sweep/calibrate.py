"""A calibration: what a step costs on one device, through one kernel, at each block size.

It holds the timings themselves, so that costs can be drawn again as another run of the same clock might have
found them. A step of the model is

    layers / layers timed  x  (attention + the rest of a layer)  +  vocabulary / rows timed  x  head
    +  upload of the tables  +  the manager

Attention is taken cold: between two steps a layer's weights pass through the caches. A prefill chunk adds its
tokens and pairs; its fixed cost is the reading of the same weights, which a step pays once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvsuite.device.timing.rounds import Timing
from kvsuite.errors import ConfigError
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.fit import BASE, TERMS, PartFit, PartTimings
from kvsuite.sweep.manager_time import MANAGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SCHEMA = 1
BY_SIZE = ("attention", MANAGER)
"""Parts that are timed at each block size; the others cost the same at all."""
_COSTS = {
    BASE: "base_us",
    "sequences": "sequence_us",
    "context_tokens": "context_token_us",
    "prefill_tokens": "prefill_token_us",
    "prefill_pairs": "prefill_pair_us",
    "table_entries": "table_entry_us",
    "blocks": "block_us",
}
_DRAWN_APART = 0x5EED
"""Keeps drawn costs from the stream that the spread of the fits was drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was timed, on what: a calibration serves no other."""

    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    kernel: str
    kernel_hash: str
    layout: str
    layout_hash: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timings and the costs fitted to them. `calibration_file` reads and writes it."""

    schema: int = SCHEMA
    kvsuite_version: str
    created: str
    """UTC, ISO 8601."""
    subject: Subject
    clocks_mhz: dict[str, float]
    """As read before the timing; empty where they cannot be."""
    packages: dict[str, str]
    control: str
    """The kernel that read contiguous memory."""
    manager: str
    model: str
    dtype: str
    layers: int
    layers_timed: int
    vocabulary: int
    head_rows_timed: int
    bytes_per_token: int
    """Of the layers timed."""
    read_bytes: int
    """What a timing of part ``read`` moves: plain reading on a CPU; on a card a copy, both ways counted."""
    refused: dict[int, str]
    """Block sizes that the kernel does not take, with the reason."""
    timings: list[Timing]
    fits: list[PartFit]
    projected: bool = False
    """Whether it is of another device than the one it was read for: such figures never gate anything."""

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Sizes that were timed, ascending."""
        return tuple(sorted({fit.block_size for fit in self.fits if fit.block_size is not None}))

    @property
    def factors(self) -> Mapping[str, float]:
        """How often each part that was timed stands in a step of the model."""
        layers = self.layers / self.layers_timed
        head = self.vocabulary / self.head_rows_timed
        return {part: layers if part in ("attention", "rest", "prefill") else 1.0 for part in TERMS} | {
            "head": head
        }

    def costs(self, block_size: int) -> StepCosts:
        """Return what a step costs at a block size.

        **Raises:** `ConfigError` for one that was not timed.
        """
        self._check_size(block_size)
        fits = {fit.part: fit for fit in self.fits if fit.block_size in (None, block_size)}
        return self._sum({part: fit.costs_us for part, fit in fits.items()})

    def draw(self, seed: int) -> dict[int, StepCosts]:
        """Return the costs of every size as a repeat might have found them.

        Rounds are drawn with replacement, the same ones for every part and size: what slowed a round down
        slowed all of it.
        """
        drawn: dict[tuple[str, int | None], tuple[float, ...]] = {}
        for timings in fitted_together(self.timings):
            costs = timings.costs(np.random.default_rng([_DRAWN_APART, seed])).tolist()
            rows = zip(timings.sizes, costs, strict=True)
            drawn |= {(timings.part, size): tuple(row) for size, row in rows}
        return {
            size: self._sum({part: drawn[part, size if part in BY_SIZE else None] for part in TERMS})
            for size in self.block_sizes
        }

    def fit(self, part: str, block_size: int | None = None) -> PartFit:
        """Return the fit of a part; ``block_size`` is for those of `BY_SIZE`."""
        return next(fit for fit in self.fits if (fit.part, fit.block_size) == (part, block_size))

    def _sum(self, costs: Mapping[str, tuple[float, ...]]) -> StepCosts:
        total = dict.fromkeys(_COSTS.values(), 0.0)
        factors = self.factors
        for part, values in costs.items():
            for term, value in zip(TERMS[part], values, strict=True):
                if (part, term) != ("prefill", BASE):
                    total[_COSTS[term]] += factors[part] * value
        return StepCosts(**total)

    def _check_size(self, block_size: int) -> None:
        if block_size in self.block_sizes:
            return
        reason = self.refused.get(block_size, "it was not timed")
        raise ConfigError(
            f"no costs of block size {block_size} in this calibration: {reason}; it has "
            f"{', '.join(map(str, self.block_sizes))}"
        )


def fitted_together(timings: Iterable[Timing]) -> Iterator[PartTimings]:
    """Yield what is fitted together: a part; of the manager, which has its own loads at each, a block size.

    Attention's cold timings are taken.

    **Raises:** `ConfigError` where a part was not timed, or at too few loads.
    """
    by_part: dict[str, dict[int | None, list[Timing]]] = {part: {} for part in TERMS}
    for timing in timings:
        what = timing.what
        if what.part in TERMS and what.cold == (what.part == "attention"):
            by_part[what.part].setdefault(what.block_size, []).append(timing)
    for part, by_size in by_part.items():
        if not by_size:
            raise ConfigError(f"{part} was not timed: calibrate again")
        if part == MANAGER:
            yield from (PartTimings(part, {size: mine}) for size, mine in by_size.items())
        else:
            yield PartTimings(part, by_size)


def fit_all(timings: Iterable[Timing]) -> list[PartFit]:
    """Return the fit of every part, at every block size where it has one.

    **Raises:** `ConfigError` as `fitted_together`.
    """
    return [fit for each in fitted_together(timings) for fit in each.fits()]


@dataclass(frozen=True, slots=True)
class CalibratedCosts:
    """A calibration as the costs of a decision's repeats: repeat 0 is what was fitted, others are drawn."""

    calibration: Calibration
    _drawn: dict[int, dict[int, StepCosts]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def device(self) -> str:
        """The model name of the device that was measured."""
        return self.calibration.subject.device_name

    @property
    def kernel(self) -> str:
        """The kernel's name, and the hash of its source."""
        return f"{self.calibration.subject.kernel} {self.calibration.subject.kernel_hash}"

    def costs(self, block_size: int) -> StepCosts:
        """Return the fitted costs. **Raises:** `ConfigError` for a size that was not timed."""
        return self.calibration.costs(block_size)

    def draw(self, block_size: int, repeat: int) -> StepCosts:
        """Return the costs of one repeat, the same for the same one; the fitted ones for repeat 0."""
        fitted = self.costs(block_size)
        if not repeat:
            return fitted
        if repeat not in self._drawn:
            self._drawn[repeat] = self.calibration.draw(repeat)
        return self._drawn[repeat][block_size]
