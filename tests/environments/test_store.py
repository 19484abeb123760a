"""Environments that are there, outdated, damaged, in use or removed; and an index that is not there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.environments import NEWEST, Environment, ensure, environments, find, released, remove
from kvsuite.engine.environments.places import environments_folder
from kvsuite.engine.environments.recipes import RECIPES, engine_names
from kvsuite.engine.environments.store import stored_environments
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.environments.conftest import Index

NOWHERE = "http://127.0.0.1:9/simple"
"""Port 9, discard: nothing listens there."""


def change_manifest(made: Environment, **fields: object) -> None:
    path = made.folder / "env.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields), encoding="utf-8")


def test_an_environment_of_an_older_recipe_is_built_anew(toy: Index, set_recipe: Callable[..., None]) -> None:
    made = ensure("toy", "1.0")
    (made.folder / "old").touch()
    set_recipe(version=2)

    assert find("toy", "1.0") is None
    assert environments() == ()
    assert ensure("toy", "1.0") == made
    assert not (made.folder / "old").exists()
    assert json.loads((made.folder / "env.json").read_text(encoding="utf-8"))["recipe_version"] == 2
    assert toy.fetched == ["toy-1.0.tar.gz"] * 2


def damage_python(made: Environment) -> None:
    made.python.rename(made.python.with_name("aside"))


def damage_manifest(made: Environment) -> None:
    (made.folder / "env.json").write_text('{"name": "toy"', encoding="utf-8")


DAMAGES: tuple[tuple[Callable[[Environment], None], str], ...] = (
    (damage_manifest, "damaged: env.json cannot be read"),
    (
        lambda made: change_manifest(made, size_bytes="many"),
        "damaged: env.json has a field that is no num",
    ),
    (lambda made: change_manifest(made, layer=3), "damaged: env.json has a field that is no text"),
    (lambda made: change_manifest(made, colour="red"), "damaged: env.json cannot be read"),
    (lambda made: change_manifest(made, version="1.2"), "damaged: its manifest is of toy@1.2"),
    (lambda made: change_manifest(made, python="3.2"), "made for Python 3.2"),
    (
        lambda made: change_manifest(made, layer="gone-1-layer"),
        "damaged: gone-1-layer, which it needs",
    ),
    (lambda made: change_manifest(made, recipe_version=0), "outdated: recipe 0, now 1"),
    (damage_python, "damaged: its interpreter is gone"),
)


def test_a_damaged_environment_is_not_found_and_built_anew(toy: Index) -> None:
    made = ensure("toy", "1.0")
    whole = (made.folder / "env.json").read_text(encoding="utf-8")
    for damage, problem in DAMAGES:
        (made.folder / "env.json").write_text(whole, encoding="utf-8")
        assert find("toy", "1.0") == made
        damage(made)
        (stored,) = stored_environments()
        assert stored.problem.startswith(problem)
        assert find("toy", "1.0") is None
        assert environments() == ()

    assert ensure("toy", "1.0") == made
    assert find("toy", "1.0") == made


def test_versions_are_listed_oldest_first_without_pre_releases(toy: Index) -> None:
    for version in ("1.10", "2.0rc1"):
        toy.add_toy(version)

    assert released("toy") == ("1.0", "1.2", "1.10")


def test_newest_is_the_newest_of_the_index(toy: Index) -> None:
    toy.add_toy("1.10")
    assert find("toy", NEWEST) is None
    assert ensure("toy", NEWEST).version == "1.10"


def test_offline_newest_is_the_newest_that_is_built(
    toy: Index, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    toy.add_toy("1.10")
    for version in ("1.0", "1.10", "1.2"):
        ensure("toy", version)
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    capsys.readouterr()

    assert ensure("toy", NEWEST).version == "1.10"
    said = capsys.readouterr().err
    assert "the package index cannot be reached" in said
    assert "taking toy 1.10, the newest that is built" in said
    found = find("toy", NEWEST)
    assert found is not None
    assert found.version == "1.10"


@pytest.mark.parametrize("version", ["1.0", NEWEST])
def test_offline_with_an_empty_cache(
    toy: Index, kept: Callable[[], list[str]], cache: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)

    with pytest.raises(EnvironmentUnavailable) as caught:
        ensure("toy", version)
    first = str(caught.value).splitlines()[0]
    assert "the package index cannot be reached" in first
    assert "PIP_INDEX_URL" in first
    assert caught.value.exit_code == 3
    assert not cache.exists() or kept() == []


def test_offline_what_is_built_is_used(toy: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ensure("toy", "1.0")
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)

    assert ensure("toy", "1.0") == made


def test_remove(toy: Index, kept: Callable[[], list[str]]) -> None:
    first, second = ensure("toy", "1.0"), ensure("toy", "1.2")
    remove(first)

    assert kept() == ["toy-1.2-filtered"]
    assert environments() == (second,)
    remove(first)
    assert kept() == ["toy-1.2-filtered"]


def test_an_environment_in_use_can_be_removed(toy: Index) -> None:
    made = ensure("toy", "1.0")
    code = "import toy, sys; print('up', flush=True); sys.stdin.read(); print(toy.version)"
    pipe = subprocess.PIPE
    with subprocess.Popen([made.python, "-c", code], stdin=pipe, stdout=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        remove(made)
        assert not made.folder.exists()
        assert running.communicate(timeout=30)[0] == "1.0\n"


@pytest.mark.parametrize("place", ["elsewhere", "cache/environments/toy-1.0-filtered/lib", "cache"])
def test_a_folder_outside_the_cache_is_not_removed(cache: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)

    with pytest.raises(EnvironmentUnavailable, match=r"is not in the cache .*: not removed"):
        remove(Environment("toy", "1.0", "filtered", folder / "bin" / "python", folder))
    assert folder.is_dir()


def test_a_link_in_the_cache_is_not_followed(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache.mkdir(parents=True)
    link = cache / "toy-1.0-filtered"
    link.symlink_to(elsewhere)

    with pytest.raises(EnvironmentUnavailable, match="not removed"):
        remove(Environment("toy", "1.0", "filtered", link / "bin" / "python", link))
    assert elsewhere.is_dir()


def test_a_cache_that_cannot_be_written(toy: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path / "file" / "cache"))

    assert environments() == ()
    with pytest.raises(EnvironmentUnavailable, match=r"Not a directory.*set KVSUITE_CACHE"):
        ensure("toy", "1.0")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"KVSUITE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/environments"),
        ({"KVSUITE_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/kvsuite/environments"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/kvsuite/environments"),
        ({}, "/home/me/.cache/kvsuite/environments"),
    ],
)
def test_where_environments_are_kept(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("KVSUITE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
        if name in environ:
            monkeypatch.setenv(name, environ[name])

    assert environments_folder() == Path(expected)


def test_every_environment_has_numpy() -> None:
    def requirements(name: str, depth: int = 0) -> set[str]:
        found = set()
        for loader in RECIPES[name].loaders.values():
            found |= set(loader.requirements)
            if loader.layer and depth == 0:
                found |= requirements(loader.layer[0], 1)
        return found

    assert {"vllm", "transformers", "sglang", "lmdeploy", "tokasaurus", "openvino"} <= set(engine_names())
    for name in RECIPES:
        assert "numpy" in requirements(name), name
