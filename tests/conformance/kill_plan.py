"""A pytest plugin for one session with many broken engines: keeps planned pairs, writes what became of each.

Named by ``-p kill_plan`` in a child process. The plan is a JSON object, mutant to case ids without
parameters, or to null for every case; one JSON line a test goes to the results file.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.registry import MUTANT_PREFIX
from kvsuite.plugin.case_id import case_id, cases_root, engine_of
from kvsuite.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator

PLAN: dict[str, list[str] | None] = json.loads(Path(os.environ["KILL_PLAN"]).read_text())
RESULTS = Path(os.environ["KILL_RESULTS"])


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
    """Leave out what no engine is planned for."""
    left = [item for item in items if not str(engine_of(item)).startswith(MUTANT_PREFIX)]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.when == "call" or report.outcome != "passed":
        error = call.excinfo.typename if call.excinfo else None
        line = {
            "mutant": (engine_of(item) or "").removeprefix(MUTANT_PREFIX),
            "case": case_id(item),
            "when": report.when,
            "outcome": report.outcome,
            "error": error,
            "message": str(call.excinfo.value)[:2000] if call.excinfo else "",
        }
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return report
