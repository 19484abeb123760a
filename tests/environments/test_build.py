"""What an environment has, and what it must not have."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.environments import ensure, environments, find, torch_index
from kvsuite.engine.environments.places import log_of
from kvsuite.engine.environments.recipe import Loader, Recipe, Sources
from kvsuite.engine.environments.recipes import RECIPES
from kvsuite.errors import EngineError, EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.engine.environments import Environment
    from tests.environments.conftest import Index


def run(environment: Environment, code: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment.python), "-c", code]
    return subprocess.run(command, cwd=environment.folder, capture_output=True, text=True, check=False)


def test_python_files_are_unpacked_and_nothing_is_run(toy: Index, cache: Path) -> None:
    made = ensure("toy", "1.0")

    assert made.folder == cache / "toy-1.0-filtered"
    assert (made.name, made.version, made.loader) == ("toy", "1.0", "filtered")
    code = "import toy, toy.core.pool as p, importlib.metadata as m"
    code += "; print(toy.version, p.size, m.version('toy'))"
    assert run(made, code).stdout == "1.0 7 1.0\n"
    (package,) = made.folder.glob("lib/python*/site-packages/toy")
    found = sorted(str(path.relative_to(package)) for path in package.rglob("*") if path.is_file())
    assert [path for path in found if "__pycache__" not in path] == [
        "__init__.py",
        "_version.py",
        "core/pool.py",
    ]


def test_nothing_of_this_interpreter_is_visible(toy: Index) -> None:
    made = ensure("toy", "1.0")

    for module in ("pytest", "kvsuite", "pip", "numpy"):
        assert f"No module named '{module}'" in run(made, f"import {module}").stderr


def test_the_manifest_has_the_hash_of_the_file_served(toy: Index, kept: Callable[[], list[str]]) -> None:
    sha256 = toy.add_toy("1.0")
    made = ensure("toy", "1.0")

    manifest = json.loads((made.folder / "env.json").read_text(encoding="utf-8"))
    assert manifest["files"] == {"toy-1.0.tar.gz": sha256}
    assert manifest["recipe_version"] == 1
    assert manifest["layer"] is None
    assert kept() == ["toy-1.0-filtered"]


def test_a_second_call_asks_the_index_nothing(toy: Index) -> None:
    assert find("toy", "1.0") is None
    made = ensure("toy", "1.0")

    assert ensure("toy", "1.0") == made == find("toy", "1.0")
    assert environments() == (made,)
    assert toy.fetched == ["toy-1.0.tar.gz"]


def test_a_file_of_another_hash_is_refused(
    toy: Index, kept: Callable[[], list[str]], set_recipe: Callable[..., None]
) -> None:
    pinned = toy.add_toy("1.0")
    set_recipe(sha256={"1.0": pinned})
    toy.add_sdist("toy", "1.0", {"toy/__init__.py": "stolen = True\n"})

    with pytest.raises(EnvironmentUnavailable, match="another file than the pinned one") as caught:
        ensure("toy", "1.0")
    assert pinned in str(caught.value)
    assert kept() == []


def test_the_pinned_file_is_taken(toy: Index, set_recipe: Callable[..., None]) -> None:
    set_recipe(sha256={"1.0": toy.add_toy("1.0")})

    assert ensure("toy", "1.0").version == "1.0"


def test_requirements_are_installed_with_what_they_require(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_wheel(
        "engine", "2.0", {"engine.py": "", "kernel.so": "x"}, "far>=1; extra == 'x'", "Near[y]>=1"
    )
    index.add_wheel("near", "0.9", {"near.py": "version = 0"})
    index.add_wheel("near", "1.5", {"near.py": "version = 1"}, "deep")
    index.add_wheel("deep", "1.0", {"deep.py": ""})
    index.add_wheel("lone", "1.0", {"lone.py": ""}, "never")
    loader = Loader(1, sources=Sources("wheel", ("engine.py",)), declared=("near", "far"), alone=("lone",))
    monkeypatch.setitem(RECIPES, "engine", Recipe("engine", "engine", {"full": loader}, ""))

    with pytest.raises(
        EnvironmentUnavailable, match=r"expected metadata and the packages engine\.py, found none"
    ):
        ensure("engine", "2.0")
    index.add_wheel("engine", "2.0", {"engine/__init__.py": ""}, "far>=1; extra == 'x'", "Near[y]>=1")
    loader = Loader(1, sources=Sources("wheel", ("engine",)), declared=("near", "far"), alone=("lone",))
    monkeypatch.setitem(RECIPES, "engine", Recipe("engine", "engine", {"full": loader}, ""))
    made = ensure("engine", "2.0")
    assert run(made, "import engine, near, deep, lone; print(near.version)").stdout == "1\n"


def test_an_engine_with_cuda_libraries_is_refused(
    index: Index, cache: Path, kept: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add_wheel("engine", "2.0", {"engine.py": ""}, "nvidia-toy")
    index.add_wheel("nvidia_toy", "1.0", {"nvidia_toy.py": ""})
    loader = Loader(1, requirements=("engine=={version}",))
    monkeypatch.setitem(RECIPES, "engine", Recipe("engine", "engine", {"full": loader}, ""))

    with pytest.raises(EnvironmentUnavailable, match=r"CUDA libraries: nvidia_toy-1\.0"):
        ensure("engine", "2.0")
    assert kept() == []


@pytest.fixture
def layered(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index.add_wheel("engine", "2.0", {"engine.py": "import torch"}, "torch")
    monkeypatch.setitem(
        RECIPES,
        "tensors",
        Recipe("tensors", "torch", {"layer": Loader(1, requirements=("torch=={version}",))}, ""),
    )
    loader = Loader(1, requirements=("engine=={version}",), layer=("tensors", "2.13.0"))
    monkeypatch.setitem(RECIPES, "engine", Recipe("engine", "engine", {"full": loader}, ""))
    return index


def test_a_layer_is_built_once_and_seen_by_engines(
    layered: Index, cache: Path, kept: Callable[[], list[str]]
) -> None:
    layered.add_wheel("torch", "2.13.0", {"torch.py": "kind = 'only'"})
    layered.add_wheel("torch", "2.14.0", {"torch.py": ""})
    layered.add_wheel("engine", "2.1", {"engine.py": "import torch"}, "torch")

    for version in ("2.0", "2.1"):
        made = ensure("engine", version)
        assert run(made, "import engine; print(engine.torch.kind, engine.torch.__file__)").stdout.split() == [
            "only",
            str(*cache.glob("tensors-2.13.0-layer/lib/python*/site-packages/torch.py")),
        ]
    assert kept() == ["engine-2.0-full", "engine-2.1-full", "tensors-2.13.0-layer"]


def test_where_pip_would_take_a_cuda_build_the_cpu_index_is_asked(
    layered: Index, make_index: Callable[[], Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.add_wheel("torch", "2.13.0", {"torch.py": "kind = 'cuda'"}, "nvidia-toy")
    layered.add_wheel("nvidia_toy", "1.0", {"nvidia_toy.py": ""})
    cpu_index = make_index()
    cpu_index.add_wheel("torch", "2.13.0+cpu", {"torch.py": "kind = 'cpu'"})
    monkeypatch.setattr(torch_index, "CPU_INDEX", cpu_index.url)

    made = ensure("engine", "2.0")
    assert run(made, "import engine; print(engine.torch.kind)").stdout == "cpu\n"


def test_an_engine_whose_layer_is_gone_is_not_found_and_needs_no_new_build(
    layered: Index, kept: Callable[[], list[str]]
) -> None:
    layered.add_wheel("torch", "2.13.0", {"torch.py": ""})
    made = ensure("engine", "2.0")
    (layered_on,) = [found for found in environments() if found.loader == "layer"]
    layered_on.folder.rename(layered_on.folder.with_name(".aside"))

    assert find("engine", "2.0") is None
    written = (made.folder / "env.json").stat().st_mtime_ns
    assert ensure("engine", "2.0") == made
    assert (made.folder / "env.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("version", ["", "../x", "1/2", "latest", "1.0 ", ".1"])
def test_what_is_no_version_is_refused(toy: Index, version: str) -> None:
    with pytest.raises(EngineError, match="is no version"):
        ensure("toy", version)


def test_unknown_names_and_loaders_are_refused(toy: Index) -> None:
    with pytest.raises(EngineError, match=r"'toyy': known are .*, toy,"):
        ensure("toyy", "1.0")
    with pytest.raises(EngineError, match="toy has no loader 'full': it has filtered"):
        ensure("toy", "1.0", loader="full")


def test_a_version_that_is_not_on_the_index(toy: Index, kept: Callable[[], list[str]]) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"toy-3\.0-filtered: .* has no such version") as caught:
        ensure("toy", "3.0")
    assert caught.value.exit_code == 3
    assert "toy==3.0" in log_of("toy-3.0-filtered").read_text(encoding="utf-8")
    assert kept() == []
