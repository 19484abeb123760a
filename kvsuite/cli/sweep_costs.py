"""What a step costs, for `kvsuite sweep --slo`: a calibration in a file, or a stated cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cli.calibrate_run import deciding_kernel, subject_of
from kvsuite.device.select import device_name, resolve_device
from kvsuite.errors import DeviceError
from kvsuite.sweep.calibrate import CalibratedCosts
from kvsuite.sweep.calibration_file import read_calibration, subject_in
from kvsuite.sweep.costs import read_costs

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.calibrate import Subject
    from kvsuite.sweep.costs import CostSource


def open_costs(path: Path, layout: Layout) -> CostSource:
    """Return the costs in a file; those of another device are a projection, and the decision says so.

    **Raises:** `ConfigError` for a file that is neither, and for a calibration of another layout, or of
    another build of its kernel on this device; `RecordError` for one that is damaged.
    """
    subject = subject_in(path)
    if subject is None:
        return read_costs(path)
    return CalibratedCosts(read_calibration(path, _wanted(subject, layout), projected=True))


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
