"""What is said of a vLLM before it is imported, and what stands in for torch."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.engine.adapters.vllm import loading
from kvsuite.engine.adapters.vllm.loading import package_root, release_of, version_in
from kvsuite.engine.adapters.vllm.torch_stand_in import fill_torch
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    ["__version__ = version = '0.27.1'\n", '__version__ = "0.27.1+cpu"\n', "version = '0.27.1'\nx = 1\n"],
)
def test_the_version_is_read_and_not_imported(tmp_path: Path, text: str) -> None:
    (tmp_path / "_version.py").write_text(f"raise ImportError\n__version__: str\n{text}")
    assert version_in(tmp_path) == "0.27.1"


@pytest.mark.parametrize("text", [None, "", "commit_id = 'abc'\n"])
def test_a_vllm_without_a_version_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "_version.py").write_text(text)
    with pytest.raises(EngineError, match="gives no version"):
        version_in(tmp_path)


@pytest.mark.parametrize(
    ("version", "release"), [("0.20.2", (0, 20, 2)), ("0.33.0rc1", (0, 33, 0)), ("1.0", (1, 0)), ("dev", ())]
)
def test_releases_are_compared_by_number(version: str, release: tuple[int, ...]) -> None:
    assert release_of(version) == release
    assert (release >= loading.OLDEST) == (version in {"0.20.2", "0.33.0rc1", "1.0"})


def test_a_package_that_is_not_there_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"no_such_engine is not installed for .*no_such_engine@"):
        package_root("no_such_engine")


def test_an_unknown_loader_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.LOADER_VARIABLE, "whole")
    with pytest.raises(EngineError, match="'whole', expected full or filtered"):
        loading._loader()


@pytest.mark.parametrize("dtype", Dtype)
def test_the_stand_in_has_every_element_type_of_a_layout(dtype: Dtype) -> None:
    torch = ModuleType("torch")
    fill_torch(torch)
    assert getattr(torch, dtype.value).itemsize == dtype.itemsize
    assert isinstance(getattr(torch, dtype.value), torch.dtype)
    assert repr(getattr(torch, dtype.value)) == f"torch.{dtype.value}"


def test_the_stand_in_has_nothing_that_computes() -> None:
    torch = ModuleType("torch")
    fill_torch(torch)
    assert not hasattr(torch, "tensor")
    assert "stand-in" in torch.__version__
