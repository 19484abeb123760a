"""A pytest plugin for one session with many broken engines: keeps planned pairs, writes what became of each.

Named by ``-p kill_plan`` in a child process. The plan is a JSON object, mutant to case ids without
parameters, or to null for every case; one JSON line a test goes to the results file.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.registry import MUTANT_PREFIX
from kvsuite.ledger.counter_only import counter_only
from kvsuite.mutants import MUTANTS
from kvsuite.plugin.case_id import case_id, cases_root, engine_of
from kvsuite.plugin.options import SETTINGS
from kvsuite.plugin.subjects import subjects_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.engine.snapshot import PoolSnapshot

PLAN: dict[str, list[str] | None] = json.loads(Path(os.environ["KILL_PLAN"]).read_text())
RESULTS = Path(os.environ["KILL_RESULTS"])
COUNTED: set[str] = set()
"""Mutants of the running case in whose full snapshots the rejected control, counting alone, saw a gap."""


def _counted(name: str, factory: Callable[[EngineConfig], Engine]) -> Callable[[EngineConfig], Engine]:
    """Return the factory of an engine whose answers are counted on their way to whoever asked."""

    def open_counted(config: EngineConfig) -> Engine:
        engine = factory(config)
        asked = engine.snapshot

        def snapshot(since: int | None = None) -> tuple[PoolSnapshot, ...]:
            answer = asked(since)
            pools = {pool.key: pool for pool in engine.spec.pools}
            if any(shot.is_full and counter_only(shot, pools[shot.key]) for shot in answer):
                COUNTED.add(name)
            return answer

        engine.snapshot = snapshot  # type: ignore[method-assign]
        return engine

    return open_counted


def pytest_configure() -> None:
    """Let the rejected control watch every planned mutant."""
    for name in PLAN:
        MUTANTS[name] = replace(MUTANTS[name], factory=_counted(name, MUTANTS[name].factory))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Start each case with nothing counted."""
    COUNTED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Run a case on the engines planned for it, and on no other."""
    settings = metafunc.config.stash[SETTINGS]
    root = cases_root(metafunc.definition.path)
    assert root is not None, "the plan is for cases"
    case = f"{metafunc.definition.path.relative_to(root)}::{metafunc.definition.originalname}"
    wanted = [name for name, cases in PLAN.items() if cases is None or case in cases]
    planned = tuple(f"{MUTANT_PREFIX}{name}" for name in wanted)
    metafunc.config.stash[SETTINGS] = replace(settings, engines=planned)
    yield
    metafunc.config.stash[SETTINGS] = settings


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what no engine is planned for, and what its mutant does not claim; note what there was."""
    planned = [item for item in items if str(engine_of(item)).startswith(MUTANT_PREFIX)]
    functions = sorted({case_id(item).partition("[")[0] for item in planned})
    RESULTS.with_name("functions.json").write_text(json.dumps(functions))
    kept = [item for item in planned if _claims(item)]
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept
    gc.freeze()  # A hundred thousand items, which every collection in a case would look through again.


def _claims(item: pytest.Item) -> bool:
    spec = subjects_of(item.config).spec(str(engine_of(item)))
    wanted = {capability for mark in item.iter_markers("requires") for capability in mark.args}
    return wanted <= spec.capabilities


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.when == "call" or report.outcome != "passed":
        error = call.excinfo.typename if call.excinfo else None
        mutant = (engine_of(item) or "").removeprefix(MUTANT_PREFIX)
        line = {
            "mutant": mutant,
            "case": case_id(item),
            "duration_s": call.duration,
            "when": report.when,
            "outcome": report.outcome,
            "error": error,
            "message": str(call.excinfo.value)[:8000] if call.excinfo else "",
            "counter_only": mutant in COUNTED,
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
