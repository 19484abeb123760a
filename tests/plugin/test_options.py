"""Options are checked before anything runs: usage errors exit with 4 and say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE = pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--engine=nope"], "*unknown engine 'nope': expected one of reference,*"),
        (["--device=tpu"], "*unknown device 'tpu': expected auto, cpu, cuda or cuda:N"),
        (["--kv-trace=nowhere.jsonl"], "*nowhere.jsonl is neither a file nor a synthetic workload*"),
        (["--deviations=nowhere.toml"], "*cannot read deviations *nowhere.toml: No such file*"),
        (["--workers-per-gpu=0"], "*--workers-per-gpu 0: expected 1 or more"),
        (["--kv-report=cases"], "*--kv-report *cases is a folder: name the HTML file to write"),
    ],
    ids=lambda value: value[0].partition("=")[0].lstrip("-") if isinstance(value, list) else "",
)
def test_a_wrong_option_is_a_usage_error(project: pytest.Pytester, args: list[str], said: str) -> None:
    ended = project.runpytest(*args)
    assert ended.ret == USAGE
    ended.stderr.fnmatch_lines([said])


def test_cuda_without_a_card_never_falls_back(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ended = project.runpytest_subprocess("--device=cuda", "-n", "2")
    assert ended.ret == USAGE
    ended.stderr.fnmatch_lines(["*device cuda was asked for, but*--device cpu*"])
    assert "INTERNALERROR" not in ended.stdout.str()


def test_an_update_is_refused_in_ci(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    ended = project.runpytest("--engine=acme", "--update-goldens")
    assert ended.ret == USAGE
    ended.stderr.fnmatch_lines(["*--update-goldens is refused where CI is set*reports/observed*"])
    assert not (project.path / "goldens").exists()
    monkeypatch.setenv("CI", "false")
    assert project.runpytest("--engine=acme", "--update-goldens", "-k", "test_cancels").ret == 0


def test_a_run_in_ci_leaves_what_it_observed(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    assert project.runpytest("--engine=acme", "-k", "test_cancels").ret == 0
    names = sorted(path.name for path in (project.path / "reports/observed").rglob("*.json"))
    assert len(names) == 2
    assert names[0] == "MANIFEST.json"


def test_a_path_without_equals_sign_that_moves_the_root_is_refused(
    project: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("elsewhere") / "deviations.toml"
    outside.write_text("")
    ended = project.runpytest("--deviations", str(outside), "--engine", "reference")
    assert ended.ret == USAGE
    ended.stderr.fnmatch_lines([f"*write --deviations={outside} with an equals sign*"])


def test_ini_settings_stand_in_for_options(
    project: pytest.Pytester, add_case: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ini = project.path / "pyproject.toml"
    more = (
        '\nkvsuite_engines = ["acme", "reference"]\nkvsuite_traces = ["boundary"]\n'
        'kvsuite_goldens = "kv-goldens"\nkvsuite_device = "cpu"\nkvsuite_strict_footprint = true\n'
    )
    ini.write_text(ini.read_text() + more)
    add_case("def test_seen(engine_name, trace, device):\n    assert (len(trace), device) == (65, 'cpu')\n")
    (project.path / "sub").mkdir()
    monkeypatch.chdir(project.path / "sub")
    ended = project.runpytest("../cases/conformance/test_more.py")
    ended.assert_outcomes(passed=2)
    ended.stdout.fnmatch_lines(
        [
            "kvsuite: engine acme 1.0, reference *; device cpu; trace boundary",
            f"kvsuite: goldens {project.path}/kv-goldens (compare, strict footprint)",
        ]
    )


def test_engines_and_traces_multiply_cases(project: pytest.Pytester, add_case: Callable[..., None]) -> None:
    add_case("def test_seen(engine_name, trace_name):\n    pass\n")
    args = ("--engine=acme", "--engine=reference", "--kv-trace=chat", "--kv-trace=boundary", "--engine=acme")
    ended = project.runpytest(*args, "-k", "test_seen", "--collect-only", "-q")
    ids = [line.partition("::")[2] for line in ended.outlines if "::" in line]
    assert ids == [
        "test_seen[acme-chat]",
        "test_seen[acme-boundary]",
        "test_seen[reference-chat]",
        "test_seen[reference-boundary]",
    ]


def test_a_session_that_has_nothing_to_do_with_the_suite_is_left_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile("def test_plain():\n    pass\n")
    ended = pytester.runpytest()
    assert ended.ret == 0
    assert "kvsuite:" not in ended.stdout.str()


def test_a_capability_that_is_not_claimed_skips_and_is_named(
    project: pytest.Pytester, add_case: Callable[..., None]
) -> None:
    add_case(
        "import pytest\nfrom kvsuite.engine.contract import Capability\n\n"
        "@pytest.mark.requires(Capability.FORK)\ndef test_has(open_engine):\n"
        "    open_engine(block_size=16, num_blocks=8)\n\n"
        "@pytest.mark.requires(Capability.FORK, Capability.HOST_TIER)\n"
        "def test_lacks(open_engine):\n    pass\n\n"
        "@pytest.mark.requires(Capability.FORK)\ndef test_whose():\n    pass\n"
    )
    ended = project.runpytest(
        "--engine=acme", "cases/conformance/test_more.py", "--kv-report=out/report.html"
    )
    ended.assert_outcomes(passed=1, skipped=1, errors=1)
    ended.stdout.fnmatch_lines(["*test_whose requires capabilities but takes no engine_name*"])
    ended.stdout.fnmatch_lines(["SKIPPED * acme does not claim HOST_TIER"])
    ended.stdout.fnmatch_lines(["skipped, not claimed: 1 for HOST_TIER"])
    record = (project.path / "out/run.jsonl").read_text()
    assert '"outcome":"skipped"' in record
    assert '"capability":"HOST_TIER"' in record


def test_a_line_of_a_case_is_said_only_if_it_passed(
    project: pytest.Pytester, add_case: Callable[..., None]
) -> None:
    add_case(
        "def test_good(summary_line):\n    summary_line('PASS: good')\n\n"
        "def test_bad(summary_line):\n    summary_line('PASS: bad')\n    assert False\n\n"
        "def test_absent(summary_line):\n    summary_line('PASS: absent')\n"
    )
    ended = project.runpytest("cases/conformance/test_more.py", "-k", "good or bad")
    said = [line for line in ended.outlines if line.startswith("PASS:")]
    assert said == ["PASS: good"]


def test_examples_are_the_same_in_every_run(project: pytest.Pytester, add_case: Callable[..., None]) -> None:
    add_case(
        "from hypothesis import settings\n\ndef test_profile():\n"
        "    now = settings()\n"
        "    found = (now.derandomize, now.deadline, now.database, now.print_blob)\n"
        "    assert found == (True, None, None, True)\n"
    )
    assert project.runpytest("cases/conformance/test_more.py").ret == 0
