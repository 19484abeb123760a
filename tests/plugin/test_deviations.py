"""Known deviations: expected to fail by a wrong answer, and by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError
from kvsuite.plugin.deviations import read_deviations

if TYPE_CHECKING:
    from pathlib import Path

CASE = "conformance/test_growth.py::test_cancels"
ENTRY = f"""
[[deviation]]
case = "{CASE}"
kind = "upstream"
reason = "leaks what a client leaves behind"
issue = "https://example.org/1"
"""


@pytest.fixture
def deviating(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The project with goldens, an engine that leaks on cancellation, and an entry that knows it."""
    project.runpytest("--engine=acme", "--update-goldens")
    (project.path / "deviations.toml").write_text(ENTRY)
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:leak-on-cancel")
    return project


ARGS = ("--engine=acme", "--deviations=deviations.toml")


def test_a_known_deviation_is_expected_to_fail(deviating: pytest.Pytester) -> None:
    ended = deviating.runpytest(*ARGS, "--kv-report=out/report.html")
    ended.assert_outcomes(passed=4, xfailed=1)
    assert ended.ret == 0
    ended.stdout.fnmatch_lines(
        ["XFAIL *test_cancels* - upstream: leaks what a client leaves behind (https://*)"]
    )
    record = (deviating.path / "out/run.jsonl").read_text()
    assert '"outcome":"xfailed"' in record
    assert '"deviation":"upstream: leaks what a client leaves behind (https://example.org/1)"' in record


def test_a_fixed_deviation_fails_the_run(deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["*XPASS(strict)*leaks what a client leaves behind*"])
    ended.stdout.fnmatch_lines(
        ["mended: 1 known deviations did not occur; delete their entries from */deviations.toml"]
    )


def test_a_stale_deviation_fails_the_run(deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    (deviating.path / "deviations.toml").write_text(ENTRY.replace("test_cancels", "test_gone"))
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["*known deviations of cases that are gone*test_gone*"])


def test_a_missing_golden_is_never_excused(
    deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    next((deviating.path / "goldens").rglob("*cancels*.json")).unlink()
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["*GoldenError: golden missing*"])


def test_a_crash_is_never_excused(deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    case = deviating.path / "cases/conformance/test_growth.py"
    case.write_text(case.read_text().replace('synthetic("cancel-burst")', "(1 / 0)"))
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["*ZeroDivisionError*"])


@pytest.mark.parametrize(
    ("wrong", "outcome"),
    [("assert len(trace) == 31", "xfailed"), ("fail_inside()", "failed")],
    ids=["of the case", "of the engine"],
)
def test_an_assertion_is_excused_where_the_case_made_it(
    deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, wrong: str, outcome: str
) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    engine = deviating.path / "lib/acme_engine.py"
    engine.write_text(engine.read_text() + "\n\ndef fail_inside():\n    assert False\n")
    case = deviating.path / "cases/conformance/test_growth.py"
    text = case.read_text().replace("import pytest\n", "import pytest\nfrom acme_engine import fail_inside\n")
    first_line = '    trace = synthetic("cancel-burst").head(30)\n'
    assert first_line in text
    case.write_text(text.replace(first_line, f"{first_line}    {wrong}\n"))
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, **{outcome: 1})


def test_an_update_leaves_the_golden_of_a_known_deviation(
    deviating: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:evicts-newest")
    golden = next((deviating.path / "goldens").rglob("*cancels*.json"))
    before = golden.read_bytes()
    ended = deviating.runpytest(*ARGS, "--update-goldens")
    ended.assert_outcomes(passed=4, xfailed=1)
    assert golden.read_bytes() == before


def test_an_entry_covers_its_parameters_and_its_engine(tmp_path: Path) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(
        '[[deviation]]\ncase = "a.py::t"\nkind = "by_design"\nreason = "so"\n'
        '[[deviation]]\ncase = "b.py::t[8]"\nkind = "by_design"\nreason = "so"\nengine = "acme"\n'
    )
    every, one = read_deviations(path)
    assert every.covers("a.py::t[16]", "any")
    assert every.covers("a.py::t", None)
    assert not every.covers("a.py::tt", "any")
    assert one.covers("b.py::t[8]", "acme")
    assert not one.covers("b.py::t[8]", "other")
    assert not one.covers("b.py::t[16]", "acme")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deviation = 3", "Expected `array`, got `int`"),
        (ENTRY.replace("upstream", "bug"), "Invalid enum value 'bug'"),
        (
            ENTRY.replace('reason = "leaks what a client leaves behind"', ""),
            "missing required field `reason`",
        ),
        (ENTRY.replace("leaks what a client leaves behind", " "), "entry 1 .*: the reason is blank"),
        (ENTRY.replace("https://example.org/1", ""), "entry 1 .*: kind upstream needs an issue"),
        (ENTRY + ENTRY, "entry 2 .*: the case stands there twice"),
        (ENTRY.replace("issue", "isue"), "unknown field `isue`"),
        ("[[deviation", "are no TOML"),
    ],
    ids=["type", "kind", "no reason", "blank reason", "no issue", "twice", "unknown key", "no TOML"],
)
def test_an_entry_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"deviations {path}.*{said}"):
        read_deviations(path)
