"""The README's commands are the ones that are run, and what it links to is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import kvsuite.cli
from kvsuite import errors

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = re.findall(r"^```sh\n(python3 -m venv .*?)\n```$", README, re.MULTILINE)
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/testing-your-engine.md")


def test_two_commands_do_all_set_up() -> None:
    main_job, tests = SET_UP[:2]
    assert main_job == "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/kvsuite replay"
    assert tests == "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest -n auto"


@pytest.mark.parametrize("number", [1, 2])
def test_ci_reads_the_commands_out_of_the_readme(number: int) -> None:
    script = f"source .ci/stages; readme_command {number}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == SET_UP[number - 1] + "\n"
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"command=$(readme_command {number})" in run
    assert 'bash -c "${command//.venv/$' in run


def test_a_stage_that_fails_ends_the_run() -> None:
    script = "set -euo pipefail; source .ci/stages; bad() { false; true; }; stage bad bad; echo went on"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAILED (1)" in done.stdout
    assert "went on" not in done.stdout


@pytest.mark.parametrize("name", ["run", "quick"])
def test_the_scripts_are_sound_and_limited(name: str) -> None:
    path = ROOT / ".ci" / name
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    (limit,) = re.findall(r"timeout (\d+)m ", text)
    assert int(limit) <= {"run": 80, "quick": 12}[name]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            assert (path.parent / link).exists(), f"{document} links to {link}"


def test_the_exit_codes_are_those_of_the_errors() -> None:
    for text in (README, kvsuite.cli.__doc__ or ""):
        assert re.findall(r"^\| (\d) \|", text, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    assert errors.KvsuiteError.exit_code == 2
    assert {errors.InvariantViolation.exit_code, errors.GoldenMismatch.exit_code} == {1}
    assert errors.DeviceError.exit_code == 3


def shown_commands() -> list[str]:
    """Return the `kvsuite` commands in the shell blocks of the documents."""
    blocks = [
        block
        for name in DOCUMENTS
        for block in re.findall(
            r"^```sh\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
    ]
    return [line for block in blocks for line in block.splitlines() if line.startswith("kvsuite ")]


@cache
def help_of(*verb: str) -> str:
    code = "from kvsuite.cli.main import main; main()"
    command = [sys.executable, "-c", code, *verb, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_shown_has_its_verb_and_options(line: str) -> None:
    words = line.partition("#")[0].split()[1:]
    text = help_of(*words[: 2 if words[0] in {"trace", "golden"} else 1])
    for word in words:
        if word.startswith("--"):
            assert f"{word.partition('=')[0]} " in text


def test_core_dependencies_stay_without_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", text)[0] for text in project["dependencies"]}
    assert names.isdisjoint({"torch", "numba", "triton"})
    assert any(text.startswith("torch") for text in project["optional-dependencies"]["device"])
    decision = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text(encoding="utf-8")
    for name in names:
        assert name in decision, f"{name} is a core dependency without a reason in 0001"


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    for section in range(1, 10):
        assert re.search(rf"^\s+{section}\. ", text, re.MULTILINE)
