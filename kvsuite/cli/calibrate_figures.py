"""What `kvsuite calibrate` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kvsuite.sweep.calibration_view import Quartiles, largest_load, read_bytes_per_s, size_figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.sweep.calibrate import Calibration
    from kvsuite.sweep.fit import PartFit
    from kvsuite.sweep.live import LiveStep

_ONE = {
    "base": "call",
    "sequences": "sequence",
    "context_tokens": "token of context",
    "prefill_tokens": "prompt token",
    "prefill_pairs": "pair",
    "table_entries": "table entry",
    "blocks": "block",
}


def calibration_figures(calibration: Calibration) -> Iterator[Figure]:
    """Yield what was timed, on what."""
    subject = calibration.subject
    clocks = ", ".join(f"{name} {mhz:,.0f} MHz" for name, mhz in calibration.clocks_mhz.items())
    yield "device", f"{subject.device}, {subject.device_name}, {clocks or 'clocks cannot be read'}"
    yield "kernel", f"{subject.kernel}, source {subject.kernel_hash}; control {calibration.control}"
    yield "layout", subject.layout
    yield (
        "model",
        f"{calibration.layers} layers, {calibration.layers_timed} timed: factor "
        f"{calibration.factors['attention']:g}; {calibration.head_rows_timed:,} of "
        f"{calibration.vocabulary:,} rows of the head timed: factor {calibration.factors['head']:.3g}",
    )
    yield "manager", calibration.manager
    ceiling, load = read_bytes_per_s(calibration), largest_load(calibration)
    kind = "plain reading" if subject.device == "cpu" else "a copy, both ways counted"
    yield "bandwidth", "not measured" if ceiling is None else f"{ceiling / 1e9:.1f} GB/s, {kind}"
    yield (
        "largest load",
        f"{load.sequences} sequences of {load.context_tokens // load.sequences:,} tokens, one layer reads "
        f"{load.context_tokens * calibration.bytes_per_token / 2**20:,.0f} MiB",
    )
    for size, reason in calibration.refused.items():
        yield f"block {size}", f"refused: {reason}"


def size_table(calibration: Calibration) -> Table:
    """Return one row a block size: attention at the largest load, paged against control, costs, residuals."""
    table = Table("block", box=None, pad_edge=False)
    for name in (
        "attention ms",
        "of reading",
        "ratio",
        "ratio warm",
        "of a step",
        "step us",
        "sequence us",
        "token ns",
        "block us",
        "residual",
        "largest",
    ):
        table.add_column(name, justify="right")
    for figures in size_figures(calibration):
        size = figures.block_size
        costs = calibration.costs(size)
        table.add_row(
            str(size),
            _spread(figures.attention_us, 1e-3, 2),
            "" if figures.read_share is None else f"{figures.read_share:.0%}",
            _spread(figures.ratio, 1, 3),
            _spread(figures.warm_ratio, 1, 3),
            f"{figures.attention_share:.1%}",
            f"{costs.base_us:,.0f}",
            f"{costs.sequence_us:,.1f}",
            _cost_spread(calibration, "attention", size, 1e3, 1),
            _cost_spread(calibration, "manager", size, 1.0, 2),
            f"{figures.residual_median:.1%}",
            f"{figures.residual_max:.1%}",
        )
    return table


def spread_table(calibration: Calibration) -> Table:
    """Return one row for each cost that is the same at every block size, with its bootstrap's quartiles."""
    table = Table("part", "of one", box=None, pad_edge=False)
    for name in ("us", "quartiles", "residual", "largest"):
        table.add_column(name, justify="right")
    sizes = calibration.block_sizes
    for fit in (
        calibration.fit("attention", sizes[0]),
        *(f for f in calibration.fits if f.block_size is None),
    ):
        for index in range(len(fit.terms) - (fit.block_size is not None)):
            table.add_row(*_cost_cells(fit, index))
    return table


def live_figures(steps: Sequence[LiveStep]) -> Iterator[Figure]:
    """Yield how far the model lies from real steps of a trace."""
    for size in sorted({step.block_size for step in steps}):
        mine = [step for step in steps if step.block_size == size]
        largest = max(mine, key=lambda step: step.batch.load.context_tokens)
        load = largest.batch.load
        yield (
            f"live, block {size}",
            (
                f"{_disagreement(mine)}; largest batch {load.sequences} sequences of "
                f"{load.context_tokens:,} tokens: measured {largest.measured_us / 1e3:,.1f} ms, "
                f"modelled {largest.modelled_us / 1e3:,.1f} ms"
            ),
        )
    yield "live, all", _disagreement(steps)


def _disagreement(steps: Sequence[LiveStep]) -> str:
    middle, high = np.quantile([step.disagreement for step in steps], [0.5, 0.9]).tolist()
    return (
        f"model and device differ by {middle:.1%} in the median, {high:.1%} at the 90th percentile, of "
        f"{len(steps)} steps"
    )


def _cost_cells(fit: PartFit, index: int) -> tuple[str, ...]:
    first = index == 0 and fit.block_size is None
    residuals = (f"{fit.residual_median:.1%}", f"{fit.residual_max:.1%}") if first else ("", "")
    spread = f"({fit.low_us[index]:.4g}, {fit.high_us[index]:.4g})"
    part = fit.part if index == 0 else ""
    return (part, _ONE[fit.terms[index]], f"{fit.costs_us[index]:.4g}", spread, *residuals)


def _cost_spread(calibration: Calibration, part: str, size: int, scale: float, digits: int) -> str:
    """Return the last cost of a part's fit: the one that differs between block sizes."""
    fit = calibration.fit(part, size)
    return _spread(Quartiles(fit.low_us[-1], fit.costs_us[-1], fit.high_us[-1]), scale, digits)


def _spread(found: Quartiles, scale: float, digits: int) -> str:
    low, middle, high = (f"{value * scale:.{digits}f}" for value in found)
    return f"{middle} ({low}, {high})"
