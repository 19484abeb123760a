"""What a step costs, for `kvsuite sweep --slo`: a calibration, in a file or made now, or stated costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cli import calibrate_run
from kvsuite.cli.calibrate_run import CalibrateOrder, deciding_kernel, subject_of
from kvsuite.cli.output import print_line
from kvsuite.cli.setup import TraceOptions
from kvsuite.device.select import device_name, resolve_device
from kvsuite.errors import ConfigError, DeviceError, RecordError
from kvsuite.sweep.calibrate import CalibratedCosts
from kvsuite.sweep.calibration_file import read_calibration, subject_in
from kvsuite.sweep.calibration_view import largest_load
from kvsuite.sweep.costs import read_costs

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.calibrate import Subject
    from kvsuite.sweep.costs import CostSource

CACHE_BYTES = 64 << 20
"""What the last-level cache of a device may keep."""


def open_costs(path: Path, layout: Layout) -> CostSource:
    """Return the costs in a file; those of another device are a projection, and the decision says so.

    **Raises:** `ConfigError` for a file that is neither, and for a calibration of another layout, or of
    another build of its kernel on this device; `RecordError` for one that is damaged.
    """
    subject = subject_in(path)
    if subject is None:
        return read_costs(path)
    return CalibratedCosts(read_calibration(path, _wanted(subject, layout), projected=True))


def calibrate_into(path: Path, model: str, layout: Layout, sizes: tuple[int, ...]) -> None:
    """Measure this device into ``path``, unless it holds the costs of every size here already.

    **Raises:** `ConfigError` for a rank of several, of which no decoder can be built; `DeviceError` where no
    latency verdict can be given.
    """
    if _has_costs(path, layout, sizes):
        return
    if layout.tp_size > 1:
        raise ConfigError(
            f"a calibration is of whole layers, and the layout is of one rank of {layout.tp_size}: give "
            "--calibration with stated costs"
        )
    print_line(f"no --calibration: this device is measured now, into {path}")
    order = CalibrateOrder(
        model=model,
        layout=layout,
        sizes=sizes,
        kernel=None,
        device="auto",
        rounds=None,
        small=False,
        live=None,
        live_steps=0,
        trace_options=TraceOptions(),
        step_us=None,
        out=path,
    )
    calibrate_run.run(order)


def caution(source: CostSource) -> str | None:
    """Return what is to be said of costs whose timings stayed within the caches of the device."""
    if not isinstance(source, CalibratedCosts):
        return None
    calibration = source.calibration
    read_bytes = largest_load(calibration).context_tokens * calibration.bytes_per_token
    if read_bytes >= CACHE_BYTES:
        return None
    return (
        f"the calibration read {read_bytes / 2**20:,.2f} MiB at the most, which caches hold: it says nothing "
        "of memory, and the decision no more; calibrate without --small"
    )


def local_device(costs_device: str) -> str:
    """Return the name of the device of this machine that costs are of, or of its processor."""
    try:
        card = device_name(resolve_device("auto"))
    except DeviceError:
        card = ""  # a card that is there and cannot be used is none
    return card if card == costs_device else device_name("cpu")


def _has_costs(path: Path, layout: Layout, sizes: tuple[int, ...]) -> bool:
    if not path.exists():
        return False
    try:
        source = open_costs(path, layout)
        for size in sizes:
            source.costs(size)
    except (ConfigError, RecordError):
        return False  # of another layout, kernel or version
    return source.device == local_device(source.device)


def _wanted(subject: Subject, layout: Layout) -> Subject:
    """Return what a calibration like that of ``subject`` would be of here."""
    try:
        device = resolve_device(subject.device)
    except DeviceError:
        device = "cpu"
    if device_name(device) != subject.device_name:
        return subject_of(device, subject.kernel, subject.kernel_hash, layout)
    kernel = deciding_kernel(device, layout, subject.kernel)
    return subject_of(device, kernel.name, kernel.source_hash, layout)
