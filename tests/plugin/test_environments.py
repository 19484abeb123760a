"""An engine in an environment of its own: what happens where it can be had, and where it cannot."""

from __future__ import annotations

import pytest

VERSIONS = """

import sys
from pathlib import Path
from kvsuite.engine import environments, registry
from kvsuite.errors import EnvironmentUnavailable


def ensure(name, version):
    if version == "0":
        raise EnvironmentUnavailable(f"no index can be reached for {name} {version}")
    return environments.Environment(name, version, "full", Path(sys.executable), Path(sys.prefix))


environments.ensure = ensure
registry.ADAPTERS["reference"] = "kvsuite.engine.reference:ReferenceEngine"
"""


@pytest.fixture
def versions(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project in which ``reference@1`` is this interpreter, and ``reference@0`` cannot be had."""
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + VERSIONS)
    monkeypatch.delenv("KVSUITE_REQUIRE_ENVIRONMENTS", raising=False)
    return project


def _named_by_ini(project: pytest.Pytester, *engines: str) -> None:
    path = project.path / "pyproject.toml"
    path.write_text(path.read_text() + f"\nkvsuite_engines = {[*engines]}\n")


def test_cases_run_on_a_version_and_keep_their_ids(versions: pytest.Pytester) -> None:
    """Goldens lie under the name that the engine gives itself."""
    ended = versions.runpytest_subprocess("--engine=reference@1", "--update-goldens", "-v")
    ended.assert_outcomes(passed=5, skipped=0)
    ended.stdout.fnmatch_lines(["kvsuite: engine reference 1;*", "*test_ledger?reference@1-8? PASSED*"])
    assert [path.name for path in (versions.path / "goldens").iterdir()] == ["reference"]
    same = versions.runpytest_subprocess("--engine=reference", "-v")
    same.assert_outcomes(passed=5)


def test_an_environment_asked_for_by_name_that_cannot_be_had_ends_the_session(
    versions: pytest.Pytester,
) -> None:
    ended = versions.runpytest_subprocess("--engine=reference", "--engine=reference@0")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*environment unavailable: no index can be reached for reference 0*"])
    assert "collected" not in ended.stdout.str()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_environment_of_the_project_that_cannot_be_had_is_left_out(
    versions: pytest.Pytester, workers: str
) -> None:
    _named_by_ini(versions, "reference", "reference@0")
    ended = versions.runpytest_subprocess("-n", workers, "--kv-report=page.html")
    ended.assert_outcomes(passed=5, skipped=3)
    ended.stdout.fnmatch_lines(["*SKIPPED*environment unavailable: no index can be reached for reference 0"])
    assert "environment unavailable" in (versions.path / "run.jsonl").read_text()


def test_left_out_is_failed_where_environments_are_required(
    versions: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSUITE_REQUIRE_ENVIRONMENTS", "1")
    _named_by_ini(versions, "reference", "reference@0")
    ended = versions.runpytest_subprocess()
    ended.assert_outcomes(passed=5, errors=3)
    ended.stdout.fnmatch_lines(["*environment unavailable: no index*(KVSUITE_REQUIRE_ENVIRONMENTS is set)"])


def test_a_specimen_that_cannot_be_had_is_left_out(versions: pytest.Pytester) -> None:
    path = versions.path / "pyproject.toml"
    path.write_text(path.read_text() + '\nkvsuite_specimens = ["reference@0"]\n')
    (versions.path / "cases" / "conformance" / "test_window.py").write_text(
        "import pytest\nfrom kvsuite.engine.contract import Capability\n\n\n"
        "@pytest.mark.requires(Capability.SLIDING_WINDOW)\n"
        "def test_window(open_engine):\n    open_engine(block_size=4, num_blocks=8)\n"
    )
    ended = versions.runpytest_subprocess("-k", "test_window")
    ended.stdout.fnmatch_lines(["*environment unavailable: no index can be reached for reference 0*"])
    ended.assert_outcomes(skipped=2)
