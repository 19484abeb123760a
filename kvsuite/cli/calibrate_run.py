"""The work behind `kvsuite calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import kvsuite
from kvsuite.cli.calibrate_figures import calibration_figures, live_figures, size_table, spread_table
from kvsuite.cli.output import check_folder, print_figures, print_line, print_table, progress_bar
from kvsuite.cli.setup import open_trace
from kvsuite.device.decoder_shapes import decoder_shape
from kvsuite.device.select import device_name, resolve_device
from kvsuite.device.timing.grid import SMALL_GRID, default_grid
from kvsuite.errors import DeviceError, RecordError
from kvsuite.golden.key import slug
from kvsuite.record.provenance import installed_packages, utc_now
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.sweep.calibrate import Calibration, Subject, fit_all
from kvsuite.sweep.calibration_file import layout_hash, write_calibration
from kvsuite.sweep.calibration_view import largest_load
from kvsuite.sweep.live import decode_batches, live_steps, modelled_step_us
from kvsuite.sweep.manager_time import NAME as MANAGER_NAME
from kvsuite.sweep.manager_time import manager_timings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.cache.layout import Layout
    from kvsuite.cli.setup import TraceOptions
    from kvsuite.device.attention.call import DecodeAttention
    from kvsuite.device.timing.bench import StepBench
    from kvsuite.sweep.live import LiveStep
    from kvsuite.trace.model import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOrder:
    """Everything `kvsuite calibrate` was asked for."""

    model: str
    layout: Layout
    sizes: tuple[int, ...]
    kernel: str | None
    device: str
    rounds: int | None
    small: bool
    live: str | None
    live_steps: int
    trace_options: TraceOptions
    step_us: int | None
    """Of the replay that gives live batches; without it the modelled step at the largest load."""
    out: Path | None


def run(order: CalibrateOrder) -> int:
    """Time, fit, print, write."""
    device = resolve_device(order.device)
    kernel = deciding_kernel(device, order.layout, order.kernel)
    trace = None if order.live is None else open_trace(order.live, order.trace_options)
    path = order.out or Path("reports") / f"calibration-{slug(order.model)}-{slug(kernel.name)}.json"
    if path.is_dir():
        raise RecordError(f"{path} is a folder: name a file with --out")
    check_folder(path.parent)
    bench = open_bench(order, device, kernel)
    with progress_bar("calibrate") as progress:
        calibration = calibrated(order, device, bench, progress)
    print_figures(calibration_figures(calibration))
    print_table(size_table(calibration))
    print_table(spread_table(calibration))
    write_calibration(path, calibration)
    print_figures([("written", str(path))])
    if trace is not None:
        print_figures(live_figures(_live(order, calibration, bench, trace)))
    if order.small:
        print_line("a small grid: these figures say nothing of memory", "yellow")
    return 0


def _live(order: CalibrateOrder, calibration: Calibration, bench: StepBench, trace: Trace) -> list[LiveStep]:
    """Run decode batches of a trace at the smallest, the middle and the largest block size."""
    sizes = _first_middle_last(calibration.block_sizes)
    middle = sizes[len(sizes) // 2]
    step_us = order.step_us or modelled_step_us(calibration, middle, largest_load(calibration))
    steps: list[LiveStep] = []
    with progress_bar("live") as progress:
        for size in sizes:
            batches = decode_batches(
                trace,
                order.layout,
                SchedulerConfig(step_us=max(1, round(step_us))),
                block_size=size,
                pool_tokens=bench.attention.num_tokens,
                count=order.live_steps,
            )
            for step in live_steps(calibration, bench, batches, size):
                steps.append(step)
                progress(len(steps), len(sizes) * order.live_steps)
    return steps


def deciding_kernel(device: str, layout: Layout, name: str | None) -> DecodeAttention:
    """Return the kernel whose time decides on a device.

    **Raises:** `DeviceError` where there is none, or no torch.
    """
    try:
        from kvsuite.device.timing.choice import deciding_kernel as choose
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"no latency verdict can be given on {device}: timing needs torch, which is not installed "
            f"({error}): install kvsuite[device]"
        ) from error
    return choose(device, layout.dtype, name)


def open_bench(order: CalibrateOrder, device: str, kernel: DecodeAttention) -> StepBench:
    """Return what times steps: weights and buffers are made here."""
    from kvsuite.device.timing.bench import LAYERS_TIMED, StepBench

    shape = decoder_shape(order.model, num_layers=LAYERS_TIMED, dtype=order.layout.dtype)
    grid = SMALL_GRID if order.small else default_grid(device)
    if order.rounds is not None:
        grid = grid.with_rounds(order.rounds)
    return StepBench(kernel, shape, grid, order.sizes, device=device)


def subject_of(device: str, kernel: str, kernel_hash: str, layout: Layout) -> Subject:
    """Return what a calibration on ``device`` is of."""
    return Subject(
        device=device.partition(":")[0],
        device_name=device_name(device),
        kernel=kernel,
        kernel_hash=kernel_hash,
        layout=str(layout),
        layout_hash=layout_hash(layout),
    )


def calibrated(
    order: CalibrateOrder,
    device: str,
    bench: StepBench,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Time every part of a step and fit what each costs."""
    from kvsuite.device.timing.bench import LAYERS_TIMED
    from kvsuite.device.timing.readings import clocks_mhz

    created, clocks = utc_now(), clocks_mhz(device)
    timings = [*bench.measure(progress), *manager_timings(bench.sizes, bench.grid.rounds)]
    return Calibration(
        kvsuite_version=kvsuite.__version__,
        created=created,
        subject=subject_of(device, bench.kernel.name, bench.kernel.source_hash, order.layout),
        clocks_mhz=clocks,
        packages=installed_packages(),
        control=bench.control.name,
        manager=MANAGER_NAME,
        model=order.model,
        dtype=order.layout.dtype.value,
        layers=order.layout.num_layers,
        layers_timed=LAYERS_TIMED,
        vocabulary=bench.decoder.vocabulary,
        head_rows_timed=bench.decoder.head_rows,
        bytes_per_token=bench.attention.shape.layout.bytes_per_token,
        read_bytes=bench.attention.read_bytes,
        refused=bench.refused,
        timings=timings,
        fits=fit_all(timings),
    )


def _first_middle_last(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}))
