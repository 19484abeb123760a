"""`kvsuite env`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from kvsuite.cli.main import main
from kvsuite.engine.environments import ensure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.environments.conftest import Index


@pytest.fixture
def env(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvsuite", "env", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run


def test_create_list_remove(
    toy: Index, cache: Path, kept: Callable[[], list[str]], env: Callable[..., tuple[object, str, str]]
) -> None:
    code, out, err = env("create", "toy@newest")
    assert code == 0
    assert "toy@1.2 (filtered)" in out
    assert str(cache / "toy-1.2-filtered" / "bin" / "python") in out
    assert "toy-1.2-filtered: downloading the sdist of toy 1.2" in err
    code, out, _ = env("list")
    assert code == 0
    assert out.splitlines()[1].split()[:3] == ["toy@1.2", "filtered", f"3.{sys.version_info.minor}"]
    assert out.splitlines()[1].split()[-1] == "ready"
    assert f"1 environments, {' '.join(out.splitlines()[1].split()[3:5])}, in {cache}" in out
    code, out, _ = env("remove", "toy@1.2")
    assert (code, out) == (0, f"removed {cache / 'toy-1.2-filtered'}\n")
    assert kept() == []


def test_a_damaged_environment_is_listed_and_can_be_removed(
    toy: Index, kept: Callable[[], list[str]], env: Callable[..., tuple[object, str, str]]
) -> None:
    ensure("toy", "1.2")
    (ensure("toy", "1.0").folder / "env.json").write_text("{", encoding="utf-8")

    code, out, _ = env("list")
    assert code == 0
    assert "toy-1.0-filtered" in out.splitlines()[1]
    assert "damaged: env.json cannot be read" in out.splitlines()[1]
    assert out.splitlines()[2].split()[-1] == "ready"
    assert env("remove", "toy@1.0")[0] == 0
    assert kept() == ["toy-1.2-filtered"]


def test_remove_all_leaves_what_is_no_environment(
    toy: Index, cache: Path, kept: Callable[[], list[str]], env: Callable[..., tuple[object, str, str]]
) -> None:
    ensure("toy", "1.0")
    ensure("toy", "1.2")
    (cache / "notes").mkdir()

    assert env("remove", "--all")[0] == 0
    assert kept() == ["notes"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "toy"), 2, "expected NAME@VERSION"),
        (("create", "nothing@1.0"), 2, "no recipe for an environment of 'nothing'"),
        (("create", "toy@3.0"), 3, "has no such version"),
        (("create", "toy@1.0", "--loader", "full"), 2, "toy has no loader 'full'"),
        (("remove",), 2, "give NAME@VERSION, or --all"),
        (("remove", "toy@1.0", "--all"), 2, "give NAME@VERSION, or --all"),
        (("remove", "toy@1.0"), 2, "no such environment is built"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_said(
    toy: Index,
    env: Callable[..., tuple[object, str, str]],
    words: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    stopped, _, err = env(*words)
    assert (stopped, said in err) == (code, True), err
