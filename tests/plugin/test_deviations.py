"""Known deviations: expected to fail by a wrong answer, and by nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvsuite.engine import environments, registry
from kvsuite.engine.environments import Environment
from kvsuite.errors import ConfigError
from kvsuite.plugin.deviations import adapter_file, read_deviations

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


def entry(**values: object) -> str:
    """Return an entry by its keys; case, kind and reason are given where they are not asked for."""
    whole = {"case": "a.py::t", "kind": "by_design", "reason": "so", **values}
    return "[[deviation]]\n" + "".join(f"{key} = {value!r}\n" for key, value in whole.items())


def test_an_entry_covers_its_parameters_and_its_engine(tmp_path: Path) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(entry() + entry(case="b.py::t[8]", engine="acme"))
    every, one = read_deviations(path)
    assert every.covers("a.py::t[16]", "any")
    assert every.covers("a.py::t", None)
    assert not every.covers("a.py::tt", "any")
    assert one.covers("b.py::t[8]", "acme")
    assert one.covers("b.py::t[8]", "acme@1.0")
    assert not one.covers("b.py::t[8]", "acme-window")
    assert not one.covers("b.py::t[8]", "other")
    assert not one.covers("b.py::t[8]", None)
    assert not one.covers("b.py::t[16]", "acme")


def test_an_entry_may_list_cases_and_engines(tmp_path: Path) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(entry(case=["a.py::t[8]", "b.py::t"], engine=["acme", "acme-window"]))
    assert [(one.case, one.engine) for one in read_deviations(path)] == [
        ("a.py::t[8]", "acme"),
        ("a.py::t[8]", "acme-window"),
        ("b.py::t", "acme"),
        ("b.py::t", "acme-window"),
    ]


@pytest.mark.parametrize(
    ("since", "before", "inside", "outside"),
    [
        ("5.9", None, ("5.9", "5.9.0", "5.10", "6.0.dev1", "5.9rc1"), ("5.8.9", "4.10")),
        (None, "5.18.0", ("0.1", "5.9.9", "5.17.0"), ("5.18", "5.18.0rc1", "5.18.1", "10")),
        ("1.2", "1.10", ("1.2", "1.9.9"), ("1.1", "1.10.0", "2")),
    ],
)
def test_versions_are_compared_as_numbers(
    tmp_path: Path, since: str | None, before: str | None, inside: tuple[str, ...], outside: tuple[str, ...]
) -> None:
    path = tmp_path / "deviations.toml"
    given = {key: value for key, value in (("since", since), ("before", before)) if value is not None}
    path.write_text(entry(**given))
    (one,) = read_deviations(path)
    assert [version for version in inside if not one.covers("a.py::t", "acme", version)] == []
    assert [version for version in outside if one.covers("a.py::t", "acme", version)] == []
    assert not one.covers("a.py::t", "acme", None)
    assert not one.covers("a.py::t", "acme", "main")


def test_a_case_may_stand_there_once_for_each_version(tmp_path: Path) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(entry(before="2.0") + entry(since="2", before="3") + entry(since="3.0"))
    assert len(read_deviations(path)) == 3
    path.write_text(entry(before="2.0.1") + entry(since="2"))
    with pytest.raises(ConfigError, match=r"entry 2 .*: the case stands there twice"):
        read_deviations(path)


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
        ("deviation = [3]", "Expected `object`, got `int`"),
        (entry(case=[]), "entry 1: a list of cases or engines is empty"),
        (entry(engine=[]), "entry 1: a list of cases or engines is empty"),
        (entry(case=["a.py::t", 3]), "Expected `str`, got `int`"),
        (entry(case=["a.py::t", "a.py::t"]), "entry 1 .*: the case stands there twice"),
        (entry(since="new"), "entry 1 .*: since is 'new': expected .*numbers"),
        (entry(before="5.18rc1"), "entry 1 .*: before is '5.18rc1': expected .*numbers"),
        (entry(since=5.18), "Expected `str | null`, got `float`"),
        (entry(since="2.0", before="2"), "entry 1 .*: no version is since 2.0 and before 2:"),
        (entry(since="1.10", before="1.9"), "entry 1 .*: no version is since 1.10 and before 1.9:"),
        (entry(before="0"), "entry 1 .*: no version is since 0 and before 0:"),
        (entry(invariants=[]), "entry 1 .*: name the laws to be set apart"),
        (entry(invariants=["slack", " "]), "entry 1 .*: name the laws to be set apart"),
    ],
    ids=[
        *("type", "kind", "no reason", "blank reason", "no issue", "twice", "unknown key", "no TOML"),
        *(
            "no table",
            "no cases",
            "no engines",
            "case type",
            "listed twice",
            "since",
            "before",
            "number",
            "empty range",
        ),
        *("wrong way round", "before all", "no laws", "blank law"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "deviations.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"deviations {path}.*{said}"):
        read_deviations(path)


ADAPTERS_CASE = "conformance/test_growth.py::test_ledger"


@pytest.fixture
def adapted(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``acme`` and ``reference`` are adapters whose package has a list; ``NAME@VERSION`` runs here."""
    package = project.path / "lib" / "acme_adapter"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("acme", "reference"):
        monkeypatch.setitem(registry.ADAPTERS, name, "acme_adapter:Acme")

    def ensure(name: str, version: str, *, loader: str | None) -> Environment:
        return Environment(name, version, loader or "full", Path(sys.executable), Path(sys.prefix))

    monkeypatch.setattr(environments, "ensure", ensure)
    return package / "deviations.toml"


@pytest.mark.parametrize("engine", ["acme", "reference@1"])
def test_the_list_beside_an_adapter_is_found(project: pytest.Pytester, adapted: Path, engine: str) -> None:
    adapted.write_text(entry(case=ADAPTERS_CASE, reason="as its makers say"))
    ended = project.runpytest(f"--engine={engine}", "--engine=reference-observed")
    ended.assert_outcomes(passed=6, failed=2)
    ended.stdout.fnmatch_lines(["*XPASS(strict)*as its makers say*"])
    ended.stdout.fnmatch_lines([f"mended: 2 known deviations did not occur; delete * {adapted}"])


def test_an_entry_of_the_named_file_goes_before_that_of_the_adapter(
    deviating: pytest.Pytester, adapted: Path
) -> None:
    adapted.write_text(entry(case=CASE, reason="as its makers say"))
    ended = deviating.runpytest(*ARGS)
    ended.assert_outcomes(passed=4, xfailed=1)
    ended.stdout.fnmatch_lines(["XFAIL *test_cancels* - upstream: leaks what a client leaves behind*"])


def test_an_entry_of_another_version_excuses_nothing_and_is_not_stale(
    deviating: pytest.Pytester, adapted: Path
) -> None:
    adapted.write_text(
        entry(case=CASE, before="1.0")
        + entry(case=CASE, since="1.1")
        + entry(case="gone.py::t", since="1.1")
        + entry(case="gone.py::t", engine="acme-window")
    )
    ended = deviating.runpytest("--engine=acme")
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["FAILED *test_cancels*"])


def test_an_entry_of_this_version_can_be_stale(project: pytest.Pytester, adapted: Path) -> None:
    adapted.write_text(entry(case="gone.py::t", since="0.9", before="1.1", engine="acme"))
    ended = project.runpytest("--engine=acme")
    ended.assert_outcomes(passed=4, failed=1)
    ended.stdout.fnmatch_lines(["*known deviations of cases that are gone*gone.py::t*"])


def test_every_real_engine_finds_its_list() -> None:
    for name in registry.ADAPTERS:
        path = adapter_file(f"{name}@1.0")
        assert path is not None, name
        assert path == adapter_file(name)
        assert read_deviations(path)
    assert adapter_file("reference") is None
    assert adapter_file("mutant:stale-key") is None


SET_APART = entry(case=[CASE, ADAPTERS_CASE], reason="holds a block more", invariants=["slack"])


@pytest.fixture
def surplus(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """The project with an engine whose full blocks bring an empty one, and a list that sets the law apart."""
    (project.path / "deviations.toml").write_text(SET_APART)
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:surplus-at-boundary")
    return project


def test_goldens_are_kept_of_replays_that_break_a_law_set_apart(surplus: pytest.Pytester) -> None:
    written = surplus.runpytest(*ARGS, "--update-goldens")
    written.assert_outcomes(passed=5)
    written.stdout.fnmatch_lines(["3 goldens written*", "set apart: slack in 3 cases, as known deviations"])
    ended = surplus.runpytest(*ARGS, "--kv-report=out/report.html")
    ended.assert_outcomes(passed=5)
    ended.stdout.fnmatch_lines(["goldens: 3 match"])
    record = (surplus.path / "out/run.jsonl").read_text()
    assert record.count('"deviation":"by_design: holds a block more; set apart: slack"') == 3
    assert record.count('"invariants":["slack"]') == 3
    assert "holds a block more; set apart: slack" in (surplus.path / "out/report.html").read_text()


def test_a_law_set_apart_excuses_no_other_allocation(
    surplus: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goldens of the sound engine: the other one's ledgers differ from them."""
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    surplus.runpytest("--engine=acme", "--update-goldens")
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:surplus-at-boundary")
    ended = surplus.runpytest(*ARGS)
    ended.assert_outcomes(passed=2, failed=3)
    ended.stdout.fnmatch_lines(["*GoldenMismatch: golden regression*"])


def test_a_law_set_apart_excuses_no_other(surplus: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """``late-block`` breaks slack, lengths and content."""
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:late-block")
    ended = surplus.runpytest(*ARGS, "--update-goldens")
    ended.assert_outcomes(passed=2, failed=3)
    ended.stdout.fnmatch_lines(["*InvariantViolation: content at step *", "*lengths at step *"])
    assert "slack at step" not in ended.stdout.str()
    assert not (surplus.path / "goldens").exists()


def test_a_law_set_apart_that_holds_fails_the_case(
    surplus: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "reference")
    ended = surplus.runpytest(*ARGS, "--update-goldens", "--kv-report=out/report.html")
    ended.assert_outcomes(passed=2, failed=3)
    ended.stdout.fnmatch_lines(
        [
            "*XPASS(strict)? by_design: holds a block more;*: no replay of this case broke slack",
            "mended: 3 known deviations did not occur; delete their entries from */deviations.toml",
        ]
    )
    assert (surplus.path / "out/run.jsonl").read_text().count('"outcome":"xpassed"') == 3
    assert not (surplus.path / "goldens").exists()
