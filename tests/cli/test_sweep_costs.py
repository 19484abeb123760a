"""When a sweep measures the device itself, and when it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.cli import calibrate_run, sweep_costs
from kvsuite.cli.sweep_costs import calibrate_into
from kvsuite.errors import ConfigError
from kvsuite.sweep.calibration_file import write_calibration
from tests.sweep.calibrations import calibration

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.cli.calibrate_run import CalibrateOrder


def test_a_calibration_without_a_size_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[CalibrateOrder] = []
    made = calibration()
    path = tmp_path / "calibration.json"
    write_calibration(path, made)
    monkeypatch.setattr(calibrate_run, "run", orders.append)
    monkeypatch.setattr(sweep_costs, "local_device", lambda costs_device: costs_device)
    layout = model_layout(made.model)
    calibrate_into(path, made.model, layout, (1, 16))
    assert not orders
    calibrate_into(path, made.model, layout, (1, 32))
    assert [(order.model, order.sizes) for order in orders] == [(made.model, (1, 32))]


def test_a_rank_of_several_is_not_measured(tmp_path: Path) -> None:
    layout = replace(model_layout("llama-3.1-8b"), tp_size=2)
    with pytest.raises(ConfigError, match="the layout is of one rank of 2: give --calibration"):
        calibrate_into(tmp_path / "calibration.json", "llama-3.1-8b", layout, (1, 16))
