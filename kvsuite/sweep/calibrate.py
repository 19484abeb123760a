"""A calibration: what a step costs on one device, through one kernel, at each block size.

It holds the timings themselves, so that costs can be drawn again as another run of the same clock might have
found them. A step of the model is

    layers / layers timed  x  (attention + the rest of a layer)  +  vocabulary / rows timed  x  head
    +  upload of the tables  +  the manager

Attention is taken cold: between two steps a layer's weights pass through the caches. A prefill chunk adds its
tokens and pairs; its fixed cost is the reading of the same weights, which a step pays once.

A contiguous control pays for its own attention, and for no table entry and no block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
ATTENTION, CONTROL = "attention", "control"
BY_SIZE = (ATTENTION, MANAGER)
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
Rows = dict[tuple[str, int | None], tuple[float, ...]]
"""Costs by part, and by block size where the part has one."""


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
        return {part: layers if part in (ATTENTION, "rest", "prefill") else 1.0 for part in TERMS} | {
            "head": head
        }

    def costs(self, block_size: int) -> StepCosts:
        """Return what a step costs at a block size.

        **Raises:** `ConfigError` for one that was not timed.
        """
        self._check_size(block_size)
        return self._sum(self._fitted(block_size))

    def control_costs(self) -> StepCosts:
        """Return what a step costs a contiguous control.

        Attention is fitted to the control's own timings, which may be of another kernel. The rest is what the
        largest block pays, less table entries and blocks: a sequence has one run from its admission to its
        end, and what handing that out costs is left out.

        **Raises:** `ConfigError` where the control was not timed.
        """
        (attention,) = _rows(control_timings(self.timings)).values()
        return self._sum_of_control(self._fitted(self._largest) | {ATTENTION: attention})

    def draw(self, seed: int) -> dict[int, StepCosts]:
        """Return the costs of every size as a repeat might have found them.

        Rounds are drawn with replacement, the same ones for every part and size: what slowed a round down
        slowed all of it.
        """
        drawn = self._drawn(seed)
        return {size: self._sum(_at(size, drawn)) for size in self.block_sizes}

    def draw_control(self, seed: int) -> StepCosts:
        """Return `control_costs` as a repeat might have found them, of the same rounds as `draw`.

        **Raises:** `ConfigError` where the control was not timed.
        """
        (attention,) = _rows(control_timings(self.timings), seed).values()
        return self._sum_of_control(_at(self._largest, self._drawn(seed)) | {ATTENTION: attention})

    def fit(self, part: str, block_size: int | None = None) -> PartFit:
        """Return the fit of a part; ``block_size`` is for those of `BY_SIZE`."""
        return next(fit for fit in self.fits if (fit.part, fit.block_size) == (part, block_size))

    @property
    def _largest(self) -> int:
        """The block size whose sequences take a block least often: what a call costs shows best there."""
        return self.block_sizes[-1]

    def _fitted(self, block_size: int) -> dict[str, tuple[float, ...]]:
        return {fit.part: fit.costs_us for fit in self.fits if fit.block_size in (None, block_size)}

    def _drawn(self, seed: int) -> Rows:
        drawn: Rows = {}
        for timings in fitted_together(self.timings):
            drawn |= _rows(timings, seed)
        return drawn

    def _sum_of_control(self, costs: Mapping[str, tuple[float, ...]]) -> StepCosts:
        return replace(self._sum(costs), table_entry_us=0.0, block_us=0.0)

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
        if what.part in TERMS and what.cold == (what.part == ATTENTION):
            by_part[what.part].setdefault(what.block_size, []).append(timing)
    for part, by_size in by_part.items():
        if not by_size:
            raise ConfigError(f"{part} was not timed: calibrate again")
        if part == MANAGER:
            yield from (PartTimings(part, {size: mine}) for size, mine in by_size.items())
        else:
            yield PartTimings(part, by_size)


def control_timings(timings: Iterable[Timing]) -> PartTimings:
    """Return the cold timings of the contiguous control: attention without a block size.

    **Raises:** `ConfigError` where it was not timed, or at too few loads.
    """
    cold = [timing for timing in timings if timing.what.part == CONTROL and timing.what.cold]
    if not cold:
        raise ConfigError("the contiguous control was not timed: calibrate again")
    return PartTimings(ATTENTION, {None: cold})


def fit_all(timings: Iterable[Timing]) -> list[PartFit]:
    """Return the fit of every part, at every block size where it has one.

    **Raises:** `ConfigError` as `fitted_together`.
    """
    return [fit for each in fitted_together(timings) for fit in each.fits()]


def _rows(timings: PartTimings, seed: int | None = None) -> Rows:
    """Return the costs of a part at each of its sizes; with ``seed``, those of a draw."""
    chance = None if seed is None else np.random.default_rng([_DRAWN_APART, seed])
    rows = zip(timings.sizes, timings.costs(chance).tolist(), strict=True)
    return {(timings.part, size): tuple(row) for size, row in rows}


def _at(block_size: int, rows: Rows) -> dict[str, tuple[float, ...]]:
    return {part: rows[part, block_size if part in BY_SIZE else None] for part in TERMS}


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

    def draw_control(self, repeat: int) -> StepCosts:
        """Return the costs of a contiguous control, from the rounds of `draw`; the fitted ones for repeat 0.

        **Raises:** `ConfigError` where the control was not timed.
        """
        return self.calibration.draw_control(repeat) if repeat else self.calibration.control_costs()
