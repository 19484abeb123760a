"""Two builders at once, and a builder that is killed."""

from __future__ import annotations

import importlib.util
import os
import signal
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.environments import ensure, find
from kvsuite.engine.environments.installer import Pip
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.environments.conftest import Index


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the first line of standard error that has ``text``; fail when there is none."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r} in {seen}")


def test_two_builders_build_once(
    toy: Index, cache: Path, start_builder: Callable[[str], subprocess.Popen[str]]
) -> None:
    toy.hold.clear()
    first = start_builder("1.0")
    assert toy.asked.wait(60)
    second = start_builder("1.0")
    assert f"toy-1.0-filtered: waiting for process {first.pid}" in line_with(second, "waiting")
    toy.hold.set()

    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, str(cache / "toy-1.0-filtered")), err
    assert toy.fetched == ["toy-1.0.tar.gz"]


def test_two_versions_do_not_wait_for_each_other(
    toy: Index, start_builder: Callable[[str], subprocess.Popen[str]]
) -> None:
    toy.hold.clear()
    first = start_builder("1.0")
    assert toy.asked.wait(60)
    toy.asked.clear()
    start_builder("1.2")
    assert toy.asked.wait(60)
    assert first.poll() is None
    assert sorted(toy.fetched) == ["toy-1.0.tar.gz", "toy-1.2.tar.gz"]


def test_a_killed_build_leaves_a_folder_that_the_next_one_sweeps(
    toy: Index,
    cache: Path,
    kept: Callable[[], list[str]],
    start_builder: Callable[[str], subprocess.Popen[str]],
) -> None:
    toy.hold.clear()
    first = start_builder("1.0")
    assert toy.asked.wait(60)
    first.send_signal(signal.SIGKILL)
    assert first.wait(30) == -signal.SIGKILL
    (left,) = kept()
    assert left.startswith(".toy-1.0-filtered.partial-")
    assert find("toy", "1.0") is None

    second = start_builder("1.0")
    line_with(second, "waiting")  # for the dead builder's pip, which still writes into that folder
    assert left in kept()
    toy.hold.set()
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out.strip()) == (0, str(cache / "toy-1.0-filtered")), err
    assert kept() == ["toy-1.0-filtered"]


def test_an_interrupted_build_ends_its_pip_and_leaves_nothing(
    toy: Index, kept: Callable[[], list[str]], start_builder: Callable[[str], subprocess.Popen[str]]
) -> None:
    toy.hold.clear()
    first = start_builder("1.0")
    assert toy.asked.wait(60)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert kept() == []
    second = start_builder("1.2")
    toy.hold.set()
    assert "waiting" not in second.communicate(timeout=60)[1]


def test_pip_that_does_not_end_is_ended(toy: Index, cache: Path, tmp_path: Path) -> None:
    toy.hold.clear()
    pip = Pip("toy", tmp_path / "pip.log")
    arguments = ["download", "--no-deps", "--dest", str(tmp_path), "toy==1.0"]

    with pytest.raises(EnvironmentUnavailable, match=r"toy: pip was ended after 0\.5 s"):
        pip.run(arguments, timeout_s=0.5)


def test_without_pip_it_is_said_how_to_get_it(
    toy: Index, kept: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(EnvironmentUnavailable, match=r"has no pip.* -m ensurepip"):
        ensure("toy", "1.0")
    assert kept() == []


def test_settings_that_would_send_packages_elsewhere_are_kept_from_pip(
    toy: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, str(elsewhere))
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")

    assert ensure("toy", "1.0").python.exists()
    assert not elsewhere.exists()
    assert os.environ["PIP_TARGET"] == str(elsewhere)
