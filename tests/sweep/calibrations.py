"""Timings made from stated costs, and calibrations of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cache.layout import model_layout
from kvsuite.device.timing.rounds import Load, Timing, What
from kvsuite.sweep.calibrate import Calibration, Subject, fit_all
from kvsuite.sweep.calibration_file import layout_hash
from kvsuite.sweep.fit import BASE, TERMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SIZES = (1, 16, 64)
TOKEN_US = {1: 3.0, 16: 2.0, 64: 1.5}
"""What a token of context costs attention at each block size."""
COSTS: Mapping[str, tuple[float, ...]] = {
    "rest": (500.0, 20.0),
    "head": (100.0, 5.0),
    "prefill": (300.0, 8.0, 0.25),
    "upload": (4.0, 1.0, 0.01),
    "manager": (0.5, 0.125),
}
ATTENTION = (40.0, 6.0)
CONTROL = (24.0, 5.0, 1.0)
"""What a call, a sequence and a token of context cost where memory is contiguous."""
LOADS: Mapping[str, tuple[Load, ...]] = {
    "attention": tuple(
        Load(sequences=n, context_tokens=n * c) for n, c in ((1, 64), (1, 1024), (8, 256), (32, 128))
    ),
    "rest": tuple(Load(sequences=n) for n in (1, 8, 32)),
    "head": tuple(Load(sequences=n) for n in (1, 8, 32)),
    "prefill": tuple(Load(prefill_tokens=n, prefill_pairs=p) for n, p in ((8, 36), (64, 2080), (64, 9000))),
    "upload": tuple(Load(sequences=n, table_entries=e) for n, e in ((1, 64), (8, 64), (8, 4096))),
    "manager": (Load(blocks=512), Load(sequences=256, blocks=64)),
}


def planted_us(part: str, costs: Iterable[float], load: Load) -> float:
    return sum(
        cost * (1 if term == BASE else getattr(load, term))
        for cost, term in zip(costs, TERMS[part], strict=True)
    )


def costs_of(part: str, size: int | None) -> tuple[float, ...]:
    return (*ATTENTION, TOKEN_US[size]) if part == "attention" and size else COSTS[part]


def timings(noise: float = 0.0, seed: int = 0, rounds: int = 9) -> list[Timing]:
    """Every part at every load, each round off by at most ``noise`` of its time."""
    chance = np.random.default_rng(seed)

    def timing(part: str, load: Load, size: int | None, us: float, *, cold: bool = False) -> Timing:
        factors = 1 + noise * chance.uniform(-1, 1, rounds)
        what = What(part=part, load=load, block_size=size, cold=cold)
        return Timing(what, tuple((us * factors).tolist()))

    found = [Timing(What(part="read", cold=True), (1000.0,) * rounds)]
    for part, loads in LOADS.items():
        for size in SIZES if part in ("attention", "manager") else (None,):
            for load in loads:
                us = planted_us(part, costs_of(part, size), load)
                found.append(timing(part, load, size, us, cold=part == "attention"))
                if part == "attention":
                    found.append(timing(part, load, size, us / 4))
    for load in LOADS["attention"]:
        us = planted_us("attention", CONTROL, load)
        found += [timing("control", load, None, us, cold=True), timing("control", load, None, us / 4)]
    return found


def subject(**changes: str) -> Subject:
    layout = model_layout("llama-3.1-8b")
    sound = {
        "device": "cpu",
        "device_name": "A processor",
        "kernel": "c-prefetch",
        "kernel_hash": "00112233445566ff",
        "layout": str(layout),
        "layout_hash": layout_hash(layout),
    }
    return Subject(**(sound | changes))


@functools.cache
def calibration(noise: float = 0.0, seed: int = 0) -> Calibration:
    """32 layers of which one was timed, and a head of which an eighth was."""
    given = timings(noise, seed)
    return Calibration(
        kvsuite_version="0",
        created="2026-01-02T03:04:05+00:00",
        subject=subject(),
        clocks_mhz={"slowest processor": 2500.0},
        packages={"numpy": "2"},
        control="c-prefetch",
        manager="a manager",
        model="llama-3.1-8b",
        dtype="bfloat16",
        layers=32,
        layers_timed=1,
        vocabulary=800,
        head_rows_timed=100,
        bytes_per_token=4096,
        read_bytes=10_000_000,
        refused={256: "fake takes any size up to 64"},
        timings=given,
        fits=fit_all(given),
    )
