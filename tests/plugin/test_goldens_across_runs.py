"""Goldens from run to run: recorded, matched, accepted, and never blessing what is broken."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ACME = "--engine=acme"


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_recorded_then_matched_in_a_clean_process_and_beside_others(project: pytest.Pytester) -> None:
    recorded = project.runpytest(ACME, "--update-goldens")
    assert recorded.ret == 0
    recorded.stdout.fnmatch_lines(["goldens: 3 written"])
    serial = _files(project.path / "goldens")
    assert len(serial) == 5  # three goldens, the manifest, the baseline
    matched = project.runpytest_subprocess(ACME, "-n", "2")
    matched.assert_outcomes(passed=5)
    matched.stdout.fnmatch_lines(
        [
            "kvsuite: engine acme 1.0; device cpu; trace churn",
            "goldens: 3 match",
            "PASS: cancellations are told apart",
        ]
    )
    assert _files(project.path / "goldens") == serial
    shutil.rmtree(project.path / "goldens")
    assert project.runpytest_subprocess(ACME, "-n", "2", "--update-goldens").ret == 0
    assert _files(project.path / "goldens") == serial


def test_a_killed_worker_leaves_whole_files_and_fails_the_run(
    project: pytest.Pytester, add_case: Callable[..., None]
) -> None:
    add_case("import os\n\ndef test_dies(engine_name):\n    os._exit(9)\n")
    ended = project.runpytest_subprocess(ACME, "-n", "2", "--update-goldens", "--kv-report=out/report.html")
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(["*worker 'gw?' crashed while running*"])
    found = _files(project.path / "goldens")
    assert sum(name.endswith(".json") and "MANIFEST" not in name for name in found) == 3
    assert not [name for name in found if "/." in name]
    again = project.runpytest(ACME, "-k", "test_ledger or test_cancels")
    again.stdout.fnmatch_lines(["goldens: 3 match"])
    outcomes = [
        line for line in _record(project) if line["kind"] == "case" and "test_dies" in str(line["case"])
    ]
    assert [line["outcome"] for line in outcomes] == ["error"]


def test_unrecorded_passes_and_says_so(project: pytest.Pytester) -> None:
    ended = project.runpytest(ACME)
    ended.assert_outcomes(passed=5)
    ended.stdout.fnmatch_lines(["goldens: 3 unrecorded", "unrecorded: 3 ledgers have no golden*"])


def test_a_regression_fails_and_what_was_observed_can_be_copied(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.runpytest(ACME, "--update-goldens")
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:evicts-newest")
    ended = project.runpytest(ACME)
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(
        [
            "*GoldenMismatch: golden regression acme/*expected *, found *",
            "*accept: pytest --engine=acme --update-goldens 'cases/*::test_ledger?acme-*",
            "goldens: * regression*",
            "accept all: * observed ledgers are left to be copied: cp -r *reports/observed/. *goldens/",
        ]
    )
    shutil.copytree(project.path / "reports/observed", project.path / "goldens", dirs_exist_ok=True)
    accepted = project.runpytest(ACME)
    accepted.assert_outcomes(passed=5)
    assert not [*(project.path / "reports/observed").rglob("*.json")]


def test_footprint_passes_first_in_the_list_and_fails_when_strict(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.runpytest(ACME, "--update-goldens")
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:free-list-fifo")
    ended = project.runpytest(ACME)
    assert ended.ret == 0
    ended.stdout.fnmatch_lines(
        ["goldens: * footprint*", "footprint acme/*: by step *, id_order: *in another order"]
    )
    assert project.runpytest(ACME, "--strict-footprint").ret == 1


def test_a_new_version_is_unblessed_or_drifts(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.runpytest(ACME, "--update-goldens")
    monkeypatch.setenv("ACME_VERSION", "1.1")
    same = project.runpytest(ACME)
    same.assert_outcomes(passed=5)
    same.stdout.fnmatch_lines(["goldens: 3 unblessed", "unblessed acme/*"])
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:evicts-newest")
    other = project.runpytest(ACME)
    assert other.ret == 1
    other.stdout.fnmatch_lines(["*golden drift acme/* (held against acme/*", "*changed: version: 1.0 -> 1.1"])


def test_an_update_never_blesses_a_leak(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_BEHAVIOUR", "mutant:leak-on-cancel")
    ended = project.runpytest(ACME, "--update-goldens", "-k", "test_cancels")
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(["*InvariantViolation: closure at step *", "*drain * in pool device/g0/r0: *"])
    assert not (project.path / "goldens").exists()


def test_a_case_that_fails_after_its_check_records_nothing(
    project: pytest.Pytester, add_case: Callable[..., None]
) -> None:
    add_case(
        "from kvsuite.trace.synthetic import synthetic\n\n"
        "def test_fails(kv_replay, golden):\n"
        "    trace = synthetic('boundary')\n"
        "    golden.check(kv_replay(trace, block_size=16, num_blocks=64), trace)\n"
        "    assert False\n"
    )
    assert project.runpytest(ACME, "--update-goldens", "-k", "test_fails").ret == 1
    assert not (project.path / "goldens").exists()


def test_a_missing_golden_fails_with_the_command_that_records_it(project: pytest.Pytester) -> None:
    project.runpytest(ACME, "--update-goldens")
    victim = next((project.path / "goldens").rglob("*cancels*.json"))
    victim.unlink()
    ended = project.runpytest(ACME)
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(
        [
            "*GoldenError: golden missing acme/*: no such file, though this engine has others",
            "*accept: pytest --engine=acme --update-goldens 'cases/*::test_cancels?acme?'",
        ]
    )


def test_a_golden_cut_in_half_fails_naming_file_line_and_remedy(project: pytest.Pytester) -> None:
    project.runpytest(ACME, "--update-goldens")
    victim = next((project.path / "goldens").rglob("*cancels*.json"))
    victim.write_text(victim.read_text()[:2000])
    ended = project.runpytest(ACME)
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(
        ["*GoldenError: acme/*cancels*, line *: the file ends in the middle of a golden: restore*"]
    )


def test_a_golden_whose_case_is_gone_fails_the_suite(project: pytest.Pytester) -> None:
    project.runpytest(ACME, "--update-goldens")
    case = project.path / "cases/conformance/test_growth.py"
    case.write_text(case.read_text().replace("test_cancels", "test_renamed"))
    whole = project.runpytest(ACME)
    whole.stdout.fnmatch_lines(["*1 goldens have no case any more*rm *test_cancels*.json*"])
    whole.assert_outcomes(passed=3, failed=2)
    part = project.runpytest(ACME, "cases/test_suite_is_complete.py")
    part.assert_outcomes(skipped=2)
    part.stdout.fnmatch_lines(
        ["*only the whole suite can tell*conformance/test_growth.py was not collected*"]
    )


def test_a_golden_that_its_case_no_longer_asks_for_fails_the_case(project: pytest.Pytester) -> None:
    project.runpytest(ACME, "--update-goldens")
    case = project.path / "cases/conformance/test_growth.py"
    case.write_text(case.read_text().replace("head(30)", "head(31)"))
    update = project.runpytest(ACME, "--update-goldens", "-k", "test_cancels")
    assert update.ret == 0
    update.stdout.fnmatch_lines(["superseded: *test_cancels no longer compares *; delete: rm *"])
    ended = project.runpytest(ACME)
    ended.stdout.fnmatch_lines(
        ["*GoldenError: *test_cancels no longer compares *: its trace or recipe changed*"]
    )
    assert ended.ret == 1


def test_the_record_and_the_page_hold_what_ran(project: pytest.Pytester) -> None:
    project.runpytest(ACME, "--update-goldens")
    ended = project.runpytest(ACME, "--kv-report=out/report.html")
    ended.stdout.fnmatch_lines(["report: *out/report.html"])
    lines = _record(project)
    kinds = [line["kind"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("header", "end")
    assert (kinds.count("ledger"), kinds.count("content"), kinds.count("golden"), kinds.count("case")) == (
        3,
        3,
        3,
        5,
    )
    assert lines[-1]["counts"] == {"passed": 5}
    assert lines[-1]["verdicts"] == {"match": 3}
    engine = next(line for line in lines if line["kind"] == "engine")
    assert (engine["name"], engine["version"]) == ("acme", "1.0")
    cases = {line["case"] for line in lines if line["kind"] == "case"}
    assert "conformance/test_growth.py::test_ledger[8]" in cases
    assert (project.path / "out/report.html").read_text().startswith("<!doctype html>")


def _record(project: pytest.Pytester) -> list[dict[str, object]]:
    return [json.loads(line) for line in (project.path / "out/run.jsonl").read_text().splitlines()]


def test_what_could_not_be_written_is_not_counted(project: pytest.Pytester) -> None:
    (project.path / "reports").write_text("")
    (project.path / "blocked").mkdir()
    (project.path / "blocked/acme").write_text("")
    ended = project.runpytest(ACME, "--update-goldens", "--goldens=blocked")
    assert ended.ret == 1
    ended.stdout.fnmatch_lines(["goldens: 0 of 3 written", "not written: cannot make *blocked/acme/*"])


@pytest.mark.parametrize("options", [(), ("--update-goldens",)], ids=["compare", "update"])
def test_a_file_in_the_place_of_the_goldens_is_refused(
    project: pytest.Pytester, options: tuple[str, ...]
) -> None:
    (project.path / "goldens").write_text("a file where a folder should be")
    ended = project.runpytest(ACME, *options)
    assert ended.ret == 4
    ended.stderr.fnmatch_lines(["*goldens is no folder: give --goldens the folder of the goldens*"])
    assert (project.path / "goldens").read_text() == "a file where a folder should be"
