"""Which cases run: once an engine and a trace, not without a capability, and known deviations to fail."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.errors import GoldenMismatch, InvariantViolation, UnsupportedBlockSize
from kvsuite.plugin.case_id import ENGINE, case_id, cases_root, engine_of
from kvsuite.plugin.deviations import Deviation, Known, known_deviations
from kvsuite.plugin.notes import is_case, notes_of
from kvsuite.plugin.options import SETTINGS, on_worker
from kvsuite.plugin.subjects import subjects_of
from kvsuite.plugin.timing import leave_no_benchmark, lift_benchmark_skip, named

if TYPE_CHECKING:
    from collections.abc import Generator

TRACE = "trace_name"
STRICT_PASS = "[XPASS(strict)]"
"""How pytest begins what it says of an expected failure that did not fail."""
REQUIRE_VARIABLE = "KVSUITE_REQUIRE_ENVIRONMENTS"
"""Where it is set, a case whose engine cannot be had fails instead of being skipped."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected, deselected or not.

    ``deviations`` are those about an engine and a version under test. ``missing`` says why this is not the
    whole suite, ``None`` where it is.
    """

    cases: frozenset[str]
    golden_cases: frozenset[str]
    deviations: tuple[Deviation, ...]
    timing_left_out: int
    missing: str | None


COLLECTED = pytest.StashKey[Collected]()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``engine_name`` or ``trace_name`` once for each; the engine stands first."""
    settings = metafunc.config.stash[SETTINGS]
    given = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _names(mark)}
    engines = (*settings.engines, *_stand_ins(metafunc)) if ENGINE in metafunc.fixturenames else ()
    for name, values in ((ENGINE, engines), (TRACE, settings.traces)):
        if name in metafunc.fixturenames and name not in given:
            metafunc.parametrize(name, values, ids=[PurePath(value).name for value in values])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Take note of what was collected; mark known deviations; leave out what runs where -m names it."""
    before = list(items)
    settings = config.stash[SETTINGS]
    engines = (*settings.engines, *settings.specimens)
    known = known_deviations(settings.deviations, engines)
    for item in before:
        _mark_deviation(item, known)
    yield
    timing = _leave_out_marked(config, items) if settings.active else 0
    config.stash[COLLECTED] = Collected(
        cases=frozenset(case_id(item) for item in before if is_case(item)),
        golden_cases=frozenset(case_id(item) for item in before if _takes(item, "golden")),
        deviations=known.concerning((name, _version_of(config, name)) for name in engines),
        timing_left_out=timing,
        missing=_missing(session, before),
    )
    if on_worker(config):
        config.workeroutput["kvsuite_timing"] = timing  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a case whose engine cannot be had, or does not claim a capability that the case asks for."""
    reason = item.config.stash[SETTINGS].unavailable.get(engine_of(item) or "")
    if reason is not None:
        _leave_out(reason)
    wanted: list[Capability] = [c for mark in item.iter_markers("requires") for c in mark.args]
    _skip_by_requests(item, wanted)
    if not wanted:
        return
    engine = engine_of(item)
    if engine is None:
        raise pytest.UsageError(
            f"{item.nodeid} requires capabilities but takes no engine_name: of which engine?"
        )
    spec = subjects_of(item.config).spec(engine)
    lacking = [capability for capability in wanted if not spec.claims(capability)]
    if lacking:
        notes_of(item).capability = lacking[0].name
        pytest.skip(f"{engine} does not claim {', '.join(c.name for c in lacking)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip a case in a block size that its engine does not have; fail one whose laws hold after all."""
    try:
        result = yield
    except UnsupportedBlockSize as refusal:
        if not is_case(item):
            raise
        pytest.skip(str(refusal))
    if is_case(item):
        _refuse_mended(item)
    return result


def _skip_by_requests(item: pytest.Item, wanted: list[Capability]) -> None:
    """Skip a case that drives its engine token by token, where the engine schedules and samples by itself."""
    engine, by_requests = engine_of(item), Capability.REQUEST_DRIVEN
    if engine is None or by_requests in wanted or not is_case(item):
        return
    if subjects_of(item.config).spec(engine).claims(by_requests):
        pytest.skip(f"{engine} is driven by requests: this case drives its engine token by token")


def _leave_out(reason: str) -> NoReturn:
    if os.environ.get(REQUIRE_VARIABLE, "") not in {"", "0"}:
        pytest.fail(f"{reason} ({REQUIRE_VARIABLE} is set)", pytrace=False)
    pytest.skip(reason)


def _stand_ins(metafunc: pytest.Metafunc) -> tuple[str, ...]:
    """Return the specimens of a test whose capabilities no engine under test claims."""
    settings = metafunc.config.stash[SETTINGS]
    wanted = {c for mark in metafunc.definition.iter_markers("requires") for c in mark.args}
    subjects = subjects_of(metafunc.config)
    if not wanted or any(wanted <= spec.capabilities for spec in subjects.specs(settings.available)):
        return ()
    return tuple(
        name
        for name in settings.specimens
        if name in settings.unavailable or wanted <= subjects.spec(name).capabilities
    )


def _leave_out_marked(config: pytest.Config, items: list[pytest.Item]) -> int:
    """Deselect what is slow or timed and was not asked for; return how many timing cases were left out.

    A timing case runs where ``-m`` names it, in a session without workers.
    """
    if not named(config, "slow"):
        _deselect(config, items, [item for item in items if item.get_closest_marker("slow")])
    timing = [item for item in items if item.get_closest_marker("timing")]
    if named(config, "timing") and not on_worker(config):
        lift_benchmark_skip(config, timing)
        return 0
    _deselect(config, items, timing)
    if timing:
        leave_no_benchmark(config, items)
    return len(timing)


def _deselect(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _takes(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _names(mark: pytest.Mark) -> list[str]:
    names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def _mark_deviation(item: pytest.Item, known: Known) -> None:
    """Expect a known deviation to fail, by a wrong answer only: never by a crash or a missing golden.

    An assertion is an answer where the case made it; one that fails inside the engine is a crash. A case
    whose deviation names laws is not expected to fail: replays set these laws apart.
    """
    if not is_case(item):
        return
    engine = engine_of(item)
    found = known.find(case_id(item), engine, _version_of(item.config, engine))
    if found is None:
        return
    entry, path = found
    notes = notes_of(item)
    notes.deviation, notes.deviation_file = str(entry), str(path)
    if entry.invariants is not None:
        notes.set_apart = list(entry.invariants)
        return
    answers = (InvariantViolation, GoldenMismatch, AssertionError)
    raises = pytest.RaisesExc(answers, check=lambda error: _judged(error, item.path))
    item.add_marker(pytest.mark.xfail(reason=str(entry), raises=raises, strict=True))


def _version_of(config: pytest.Config, engine: str | None) -> str | None:
    """Return the version of an engine under test; ``None`` where it cannot be had."""
    if engine is None or engine in config.stash[SETTINGS].unavailable:
        return None
    return subjects_of(config).spec(engine).version


def _refuse_mended(item: pytest.Item) -> None:
    """Fail a case that passed and broke none of the laws that its known deviation sets apart."""
    notes = notes_of(item)
    if notes.set_apart and not set(notes.set_apart) & set(notes.invariants):
        pytest.fail(
            f"{STRICT_PASS} {notes.deviation}: no replay of this case broke {' or '.join(notes.set_apart)}",
            pytrace=False,
        )


def _judged(error: BaseException, case: Path) -> bool:
    """Return whether the suite judged, and not an assertion of somebody else's."""
    if not isinstance(error, AssertionError):
        return True
    (*_, raised_in) = traceback.extract_tb(error.__traceback__)
    return Path(raised_in.filename) == case


def _missing(session: pytest.Session, items: list[pytest.Item]) -> str | None:
    """Return what of the suite was not collected, ``None`` where all of it was."""
    if any("::" in str(arg) for arg in session.config.args):
        return "single tests were asked for"
    found = {item.path for item in items}
    for root in {root for path in found if (root := cases_root(path)) is not None}:
        for path in sorted(root.rglob("test_*.py")):
            if path not in found:
                return f"{path.relative_to(root).as_posix()} was not collected"
    return None
