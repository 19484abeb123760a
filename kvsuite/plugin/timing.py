"""Timing cases: alone, where ``-m`` names them, with figures that pytest-benchmark keeps for one device.

pytest-benchmark only warns where stored figures come from another machine. Here another device ends the
session before anything is measured, and another kernel fails the case. Nothing needs pytest-benchmark to be
loaded (``-p no:benchmark``) but a timing case itself.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.plugin.notes import CALL_PASSED
from kvsuite.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

    from kvsuite.device.attention.call import DecodeAttention

SUBJECT = "kvsuite"
"""Key of a benchmark's ``extra_info`` that says what was timed: device, its name, kernel and its hash."""
STORED = pytest.StashKey[dict[str, list[dict[str, str]]]]()
"""What the runs that this one is compared with have of each case, by node id: their subjects."""


def named(config: pytest.Config, mark: str) -> bool:
    """Return whether the expression of ``-m`` names a mark."""
    expression = str(config.getoption("markexpr", default="") or "")
    return re.search(rf"\b{mark}\b", expression) is not None


def not_run(cases: int, *, asked_for: bool = False) -> str:
    """Return what to say of timing cases that were left out, though ``-m`` may have asked for them.

    >>> not_run(1)
    'timing: not run (1 case, which runs alone: pytest -n 0 -m timing)'
    """
    which = "1 case, which runs" if cases == 1 else f"{cases} cases, which run"
    asked = "asked for, but this run has workers: " if asked_for else ""
    return f"timing: not run ({asked}{which} alone: pytest -n 0 -m timing)"


def lift_benchmark_skip(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Let these cases run under ``--benchmark-skip``, and no other benchmark: ``-m timing`` asked for them.

    pytest-benchmark has marked all to be skipped by now, and its fixture asks once more.
    """
    for item in items:
        item.own_markers[:] = [
            mark
            for mark in item.own_markers
            if mark.name != "skip" or "--benchmark-skip" not in str(mark.kwargs.get("reason"))
        ]
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is not None:
        session.skip = False


def leave_no_benchmark(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Keep pytest-benchmark from warning of benchmarks beside workers where none is left to run.

    It has seen timing cases that were left out since.
    """
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is not None and not any("benchmark" in getattr(item, "fixturenames", ()) for item in items):
        session.xdist_benchmark_found = False


class DeviceClock:
    """Seconds that pass by `advance` alone: pytest-benchmark reads it around what was timed already.

    >>> clock = DeviceClock("events")
    >>> clock.advance(250.0)
    >>> clock(), str(clock)
    (0.00025, 'events')
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._us = 0.0

    def __str__(self) -> str:
        return self._name

    def __call__(self) -> float:
        """Return the seconds that have passed."""
        return self._us / 1e6

    def advance(self, us: float) -> None:
        """Let microseconds pass."""
        self._us += us


class TimingKeeper:
    """Hands what was timed to pytest-benchmark; ``stored`` are the subjects of figures to compare with."""

    def __init__(
        self,
        benchmark: BenchmarkFixture,
        clock: DeviceClock,
        device: str,
        stored: Iterable[dict[str, str]] = (),
    ) -> None:
        self._benchmark, self._clock, self._device = benchmark, clock, device
        self._stored = tuple(stored)

    def keep(
        self, rounds_us: Iterable[float], *, kernel: DecodeAttention | None = None, group: str, **figures: Any
    ) -> None:
        """Keep the microseconds of each round, with what they are of; ``figures`` are kept beside them.

        A case that is compared with figures of another kernel fails.
        """
        subject = {
            **device_subject(self._device),
            "kernel": kernel.name if kernel else "",
            "kernel_hash": kernel.source_hash if kernel else "",
        }
        for older in self._stored:
            if any(older.get(key) != subject[key] for key in ("kernel", "kernel_hash")):
                pytest.fail(
                    f"the stored figures are of kernel {_kernel(older)}, this run timed {_kernel(subject)}: "
                    "compare with figures of this kernel, or store new ones with --benchmark-autosave",
                    pytrace=False,
                )
        self._benchmark.group = group
        self._benchmark.extra_info.update({SUBJECT: subject, **figures})
        taken = list(rounds_us)
        left = iter(taken)
        self._benchmark.pedantic(  # type: ignore[no-untyped-call]
            lambda: self._clock.advance(next(left)), rounds=len(taken)
        )


@pytest.fixture
def kv_device_clock(request: pytest.FixtureRequest, device: str) -> DeviceClock:
    """The clock of this case's figures; ``benchmark`` has to be set up after it."""
    clock = DeviceClock("CPU time of one thread" if device == "cpu" else "device events")
    request.node.add_marker(pytest.mark.benchmark(timer=clock))
    return clock


@pytest.fixture
def kv_timing(
    request: pytest.FixtureRequest, device: str, kv_device_clock: DeviceClock, benchmark: BenchmarkFixture
) -> Iterator[TimingKeeper]:
    """Keep what was timed on ``device``: ``kv_timing.keep(rounds_us, kernel=kernel, group="...")``.

    A case does so last, when it has shown that what was timed is right.
    """
    stored = request.config.stash.get(STORED, {})
    yield TimingKeeper(benchmark, kv_device_clock, device, stored.get(request.node.nodeid, ()))
    if not request.node.stash.get(CALL_PASSED, False):
        benchmark.skipped = True  # else it warns that it was not used, of a case that failed before that


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_benchmark_compare_machine_info(
    config: pytest.Config, compared_benchmark: dict[str, Any]
) -> Generator[None]:
    """Refuse to compare with timing cases of another device; of this one, a warning stays a warning.

    A machine's name or clock may differ there, and where warnings are errors that would end the session.

    **Raises:** `pytest.UsageError` naming both devices.
    """
    found = {
        bench["fullname"]: subject
        for bench in compared_benchmark["benchmarks"]
        if (subject := bench.get("extra_info", {}).get(SUBJECT)) is not None
    }
    if not found:
        return (yield)
    here = device_subject(config.stash[SETTINGS].device)
    others = {_device(subject) for subject in found.values()} - {_device(here)}
    if others:
        raise pytest.UsageError(
            f"--benchmark-compare: {len(found)} timing cases stored on {compared_benchmark.get('datetime')} "
            f"are of {' and '.join(sorted(others))}, and this is {_device(here)}: figures of another device "
            "say nothing here; name a run of this one, or store one with --benchmark-autosave"
        )
    stored = config.stash.setdefault(STORED, {})
    for case, subject in found.items():
        stored.setdefault(case, []).append(subject)
    with warnings.catch_warnings():
        warnings.simplefilter("default", pytest.PytestWarning)
        return (yield)


def device_subject(device: str) -> dict[str, str]:
    """Return the kind of a device, ``cpu`` or ``cuda``, and its model name."""
    from kvsuite.device.select import device_name

    return {"device": device.partition(":")[0], "device_name": device_name(device)}


def _device(subject: dict[str, str]) -> str:
    return f"{subject.get('device_name')} ({subject.get('device')})"


def _kernel(subject: dict[str, str]) -> str:
    return f"{subject.get('kernel')} {subject.get('kernel_hash')}"
