"""A foreign project that runs cases on an engine of its own; its version and faults are set from outside."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

for _heavy in ("replay.driver", "golden.store", "sweep.plan", "engine.reference", "mutants", "report.html"):
    importlib.import_module(f"kvsuite.{_heavy}")  # a run inside this process forgets what it imports first

CHECKOUT = Path(__file__).parents[2]
INI = """
[tool.pytest]
strict = true
addopts = ["-ra", "--import-mode=importlib", "-p", "no:cacheprovider"]
testpaths = ["cases"]
filterwarnings = ["error"]
"""
ENGINE = '''
"""The reference engine under another name, with a fault of the suite's own where one is asked for."""
import os
from dataclasses import replace

from kvsuite.engine.registry import open_engine


def Acme(config):
    engine = open_engine(os.environ.get("ACME_BEHAVIOUR", "reference"), config)
    version = os.environ.get("ACME_VERSION", "1.0")
    engine._spec = replace(engine.spec, name="acme", version=version)
    return engine
'''
CASES = """
import pytest
from kvsuite.trace.synthetic import synthetic


@pytest.mark.parametrize("block_size", [8, 16])
def test_ledger(kv_replay, golden, block_size):
    trace = synthetic("shared-prefix").head(20)
    golden.check(kv_replay(trace, block_size=block_size, num_blocks=960 // block_size), trace)


def test_cancels(kv_replay, golden, summary_line):
    trace = synthetic("cancel-burst").head(30)
    golden.check(kv_replay(trace, block_size=16, num_blocks=60), trace)
    summary_line("PASS: cancellations are told apart")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with an installed engine ``acme`` and three cases with goldens."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CHECKOUT), str(pytester.path / "lib")]))
    for name in ("CI", "ACME_VERSION", "ACME_BEHAVIOUR", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyprojecttoml(INI)
    (pytester.path / "conftest.py").write_text((CHECKOUT / "conftest.py").read_text())
    info = pytester.path / "lib" / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvsuite.engines]\nacme = acme_engine:Acme\n")
    (pytester.path / "lib" / "acme_engine.py").write_text(ENGINE)
    pytester.syspathinsert(pytester.path / "lib")
    cases = pytester.path / "cases" / "conformance"
    cases.mkdir(parents=True)
    (cases / "test_growth.py").write_text(CASES)
    for name in ("__init__.py", "test_suite_is_complete.py"):
        (cases.parent / name).write_text((CHECKOUT / "cases" / name).read_text())
    return pytester


@pytest.fixture
def add_case(project: pytest.Pytester) -> Callable[..., None]:
    """Write a case of the project: a file below its cases root."""

    def write(text: str, name: str = "conformance/test_more.py") -> None:
        path = project.path / "cases" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return write
