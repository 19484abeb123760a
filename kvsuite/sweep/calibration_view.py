"""A calibration in figures: bandwidth reached, paged against control, the share of attention in a step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.device.timing.rounds import Load, Timing
    from kvsuite.sweep.calibrate import Calibration


class Quartiles(NamedTuple):
    """Lower quartile, median and upper quartile."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigures:
    """One block size. Times and shares are at `largest_load`, with swept caches; ratios over every load."""

    block_size: int
    attention_us: Quartiles
    """Of the layers timed."""
    read_share: float | None
    """Of the bandwidth of plain reading in the same run; ``None`` where that was not measured."""
    ratio: Quartiles
    """Paged over control, of the same round."""
    warm_ratio: Quartiles
    """The same with whatever the caches kept."""
    attention_share: float
    """Attention's part in the modelled time of a decode step at `largest_load`."""
    residual_median: float
    residual_max: float


def largest_load(calibration: Calibration) -> Load:
    """Return the load of the most context that attention was timed at."""
    loads = (timing.what.load for timing in calibration.timings if timing.what.part == "attention")
    return max(loads, key=lambda load: (load.context_tokens, load.sequences))


def read_bytes_per_s(calibration: Calibration) -> float | None:
    """Return the bandwidth of plain reading (on a card, of a copy); ``None`` where it was not measured."""
    reads = [timing for timing in calibration.timings if timing.what.part == "read"]
    return calibration.read_bytes / (median(reads[0].rounds_us) * 1e-6) if reads else None


def quartiles(rounds: tuple[float, ...] | list[float]) -> Quartiles:
    """Return the quartiles of some rounds."""
    return Quartiles(*np.quantile(rounds, [0.25, 0.5, 0.75]).tolist())


def size_figures(calibration: Calibration) -> Iterator[SizeFigures]:
    """Yield the figures of each block size, ascending."""
    load, ceiling = largest_load(calibration), read_bytes_per_s(calibration)
    cold = {
        timing.what.block_size: timing.rounds_us
        for timing in calibration.timings
        if timing.what.part == "attention" and timing.what.load == load and timing.what.cold
    }
    nbytes = load.context_tokens * calibration.bytes_per_token
    for size in calibration.block_sizes:
        fit = calibration.fit("attention", size)
        yield SizeFigures(
            block_size=size,
            attention_us=quartiles(cold[size]),
            read_share=None if ceiling is None else nbytes / (median(cold[size]) * 1e-6) / ceiling,
            ratio=quartiles(list(_ratios(calibration.timings, size, cold=True))),
            warm_ratio=quartiles(list(_ratios(calibration.timings, size, cold=False))),
            attention_share=_attention_share(calibration, size, load),
            residual_median=fit.residual_median,
            residual_max=fit.residual_max,
        )


def _ratios(timings: list[Timing], size: int, *, cold: bool) -> Iterator[float]:
    controls = {
        timing.what.load: timing.rounds_us
        for timing in timings
        if timing.what.part == "control" and timing.what.cold == cold
    }
    for timing in timings:
        what = timing.what
        if (what.part, what.block_size, what.cold) == ("attention", size, cold):
            pairs = zip(timing.rounds_us, controls[what.load], strict=True)
            yield from (paged / whole for paged, whole in pairs if whole)


def _attention_share(calibration: Calibration, size: int, load: Load) -> float:
    factors = calibration.factors
    attention = factors["attention"] * calibration.fit("attention", size).us(load)
    others = (factors[part] * calibration.fit(part).us(load) for part in ("rest", "head"))
    whole = attention + sum(others)
    return attention / whole if whole else 0.0
