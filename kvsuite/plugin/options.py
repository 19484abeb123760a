"""Options and their ini twins, checked on the controller before any worker starts."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kvsuite.errors import KvsuiteError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

CASES_MODULE = "kvsuite.cases"
_COMPLETENESS = "test_suite_is_complete.py"
_PATH_OPTIONS = ("--kv-trace", "--goldens", "--deviations", "--kv-report")
_DEFAULTS: dict[str, Any] = {
    "engine": ["reference"],
    "device": "auto",
    "workers_per_gpu": 1,
    "kv_trace": ["churn"],
    "goldens": "goldens",
    "deviations": None,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session was asked for, with every path absolute.

    ``specimens`` are engines that stand in for a case whose capabilities no engine under test claims.
    ``unavailable`` are those of both whose environment cannot be had, with the reason: their cases skip.
    ``device`` is what was asked for until `configured` has resolved it to ``cpu`` or ``cuda:N``.
    """

    active: bool
    engines: tuple[str, ...]
    specimens: tuple[str, ...]
    device: str
    workers_per_gpu: int
    traces: tuple[str, ...]
    goldens: str
    update: bool
    deviations: str | None
    strict_footprint: bool
    report: str | None
    observed: str
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def available(self) -> tuple[str, ...]:
        """Engines under test that can be opened."""
        return tuple(name for name in self.engines if name not in self.unavailable)

    @property
    def mode(self) -> str:
        """What happens to goldens, in a word or two."""
        return (
            "update" if self.update else "compare, strict footprint" if self.strict_footprint else "compare"
        )


SETTINGS = pytest.StashKey[Settings]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and an ini setting for whatever a project decides once."""
    group = parser.getgroup("kvsuite", "kvsuite: conformance and regression of paged KV caches")
    add = group.addoption
    add("--engine", action="append", metavar="NAME", help="engine under test; may be repeated (reference)")
    add("--device", metavar="DEVICE", help="auto, cpu, cuda or cuda:N (auto); cuda never falls back")
    add("--workers-per-gpu", type=int, metavar="N", help="workers that -n auto starts for each card (1)")
    add(
        "--kv-trace",
        action="append",
        metavar="TRACE",
        help="workload or file, as --kv-trace=FILE; may be repeated (churn)",
    )
    add("--goldens", metavar="DIR", help="folder of the goldens, as --goldens=DIR (goldens)")
    add("--update-goldens", action="store_true", help="accept what was observed; refused where CI is set")
    add("--deviations", metavar="FILE", help="known deviations in TOML, as --deviations=FILE")
    add("--strict-footprint", action="store_true", help="fail where only the footprint differs")
    add("--kv-report", metavar="HTML", help="write this report, and run.jsonl beside it, as --kv-report=HTML")
    parser.addini("kvsuite_engines", "engines under test", type="args", default=[])
    parser.addini(
        "kvsuite_specimens",
        "engines that stand in where a case requires what no engine under test claims; unused with --engine",
        type="args",
        default=[],
    )
    parser.addini("kvsuite_device", "auto, cpu, cuda or cuda:N", default="")
    parser.addini(
        "kvsuite_workers_per_gpu", "workers that -n auto starts for each card", type="int", default=0
    )
    parser.addini(
        "kvsuite_traces", "workloads, or files from this file's folder", type="linelist", default=[]
    )
    parser.addini("kvsuite_goldens", "folder of the goldens, from this file's folder", default="")
    parser.addini("kvsuite_deviations", "known deviations, from this file's folder", default="")
    parser.addini(
        "kvsuite_strict_footprint", "fail where only the footprint differs", type="bool", default=False
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check what was asked for; on a worker, take over what the controller found.

    **Raises:** `pytest.UsageError` (exit code 4).
    """
    config.addinivalue_line(
        "markers", "requires(*capabilities): skip where the engine does not claim them all"
    )
    config.addinivalue_line("markers", "timing: measures time; runs alone, with -n 0 -m timing")
    config.addinivalue_line("markers", "slow: takes minutes; runs where -m names it, as in -m slow")
    passed: dict[str, Any] | None = getattr(config, "workerinput", {}).get("kvsuite")
    if passed is not None:
        config.stash[SETTINGS] = msgspec.convert(passed, Settings)
    elif SETTINGS not in config.stash:
        config.stash[SETTINGS] = read_settings(config)
    settings = config.stash[SETTINGS]
    if not settings.active or config.getoption("help") or config.getoption("version"):
        return
    _load_hypothesis_profile(config)
    if passed is None:
        config.stash[SETTINGS] = _checked(config, settings)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the settings, device resolved, to a worker."""
    from kvsuite.device.select import gpu_ids

    found = asdict(node.config.stash[SETTINGS])
    if found["device"] != "cpu" and gpu_ids():
        found["device"] = "cuda:0"  # the one card that `devices` lets a worker see
    node.workerinput["kvsuite"] = {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test."""
    settings = config.stash[SETTINGS]
    if not settings.active:
        return []
    from kvsuite.plugin.subjects import subjects_of

    names = (f"{spec.name} {spec.version}" for spec in subjects_of(config).specs(settings.available))
    return [
        *(f"kvsuite: engine {name} left out, {reason}" for name, reason in settings.unavailable.items()),
        f"kvsuite: engine {', '.join(names)}; device {settings.device}; trace {', '.join(settings.traces)}",
        f"kvsuite: goldens {settings.goldens} ({settings.mode})",
    ]


def in_use(options: argparse.Namespace, args: Sequence[str], root: Path) -> bool:
    """Return whether a session has to do with the suite: it asks for it, or is its checkout."""
    asked = any(
        getattr(options, name, None)
        for name in (*_DEFAULTS, "update_goldens", "strict_footprint", "kv_report")
    )
    return (
        asked
        or any(arg.startswith(CASES_MODULE) for arg in args)
        or (root / "cases" / _COMPLETENESS).is_file()
    )


def read_settings(config: pytest.Config) -> Settings:
    """Return options, or else ini settings, or else defaults; nothing is checked yet."""
    here, home = config.invocation_params.dir, config.inipath.parent if config.inipath else config.rootpath

    def asked(option: str, ini: str) -> tuple[Any, Path]:
        value = config.getoption(option, default=None)
        if value is not None:
            return value, here
        value = config.getini(ini)
        return (value, home) if value else (_DEFAULTS[option], config.rootpath)

    traces, from_folder = asked("kv_trace", "kvsuite_traces")
    goldens, goldens_from = asked("goldens", "kvsuite_goldens")
    deviations, deviations_from = asked("deviations", "kvsuite_deviations")
    report = config.getoption("kv_report", default=None)
    settings_named = [
        name for name in ("engines", "traces", "goldens", "deviations") if config.getini(f"kvsuite_{name}")
    ]
    return Settings(
        active=bool(settings_named) or in_use(config.option, config.args, config.rootpath),
        engines=tuple(dict.fromkeys(asked("engine", "kvsuite_engines")[0])),
        specimens=()
        if config.getoption("engine", default=None)
        else tuple(config.getini("kvsuite_specimens")),
        device=str(asked("device", "kvsuite_device")[0]),
        workers_per_gpu=int(asked("workers_per_gpu", "kvsuite_workers_per_gpu")[0]),
        traces=tuple(dict.fromkeys(_located(text, from_folder) for text in traces)),
        goldens=str(goldens_from / goldens),
        update=bool(config.getoption("update_goldens", default=False)),
        deviations=None if deviations is None else str(deviations_from / deviations),
        strict_footprint=bool(
            config.getoption("strict_footprint", default=False) or config.getini("kvsuite_strict_footprint")
        ),
        report=None if report is None else str(here / report),
        observed=str(config.rootpath / "reports" / "observed"),
    )


def in_ci() -> bool:
    """Return whether ``CI`` is set to anything but no."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false", "no"}


def _located(trace: str, folder: Path) -> str:
    """Return a workload's name as it is, and a file's path made absolute."""
    from kvsuite.trace.synthetic import workload_names

    return trace if trace in workload_names() else str((folder / Path(trace).expanduser()).absolute())


def _checked(config: pytest.Config, settings: Settings) -> Settings:
    from kvsuite.device.select import resolve_device
    from kvsuite.golden.files import check_root
    from kvsuite.plugin.deviations import known_deviations
    from kvsuite.plugin.subjects import subjects_of
    from kvsuite.trace.load import load_trace

    _check_words(config)
    if settings.update and in_ci():
        raise pytest.UsageError(
            "--update-goldens is refused where CI is set: a person accepts goldens. Run without it, take "
            f"what was observed from {settings.observed} and copy it over {settings.goldens}"
        )
    if settings.workers_per_gpu < 1:
        raise pytest.UsageError(f"--workers-per-gpu {settings.workers_per_gpu}: expected 1 or more")
    if settings.report is not None and Path(settings.report).is_dir():
        raise pytest.UsageError(f"--kv-report {settings.report} is a folder: name the HTML file to write")
    try:
        check_root(Path(settings.goldens))
        device = resolve_device(settings.device)
        unavailable = subjects_of(config).unavailable((*settings.engines, *settings.specimens))
        known_deviations(settings.deviations, settings.engines)
        for trace in settings.traces:
            load_trace(trace)
    except KvsuiteError as error:
        raise pytest.UsageError(str(error)) from error
    asked_for = config.getoption("engine", default=None) or ()
    for reason in (reason for name, reason in unavailable.items() if name in asked_for):
        raise pytest.UsageError(reason)
    return replace(settings, device=device, unavailable=unavailable)


def _check_words(config: pytest.Config) -> None:
    """Refuse a path that pytest took for a test folder, and moved its root to, because no ``=`` held it."""
    words = config.invocation_params.args
    here = config.invocation_params.dir
    if config.option.rootdir or config.option.inifilename:
        return
    for option, value in pairwise(words):
        path = here / str(value)
        if option in _PATH_OPTIONS and path.exists() and not path.resolve().is_relative_to(here.resolve()):
            raise pytest.UsageError(
                f"write {option}={value} with an equals sign: as a word of its own pytest takes the path for "
                f"a test folder, and moved its root to {config.rootpath}"
            )


def _load_hypothesis_profile(config: pytest.Config) -> None:
    """Make examples the same in every process, unless another profile was asked for."""
    if getattr(config.option, "hypothesis_profile", None) or config.pluginmanager.is_blocked(
        "hypothesispytest"
    ):
        return
    from hypothesis import settings

    settings.register_profile("kvsuite", derandomize=True, deadline=None, database=None, print_blob=True)
    settings.load_profile("kvsuite")


def on_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def command_line() -> list[str]:
    """Return how this session was started, for records."""
    return ["pytest", *sys.argv[1:]]
