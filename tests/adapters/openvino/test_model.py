"""The exported model is in the cache whole or not at all, once for each minor version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvsuite.engine.adapters.openvino import model
from kvsuite.engine.environments import Environment
from kvsuite.errors import EnvironmentUnavailable


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a tool that is this interpreter: it has no exporter."""

    def ensure(name: str, version: str) -> Environment:
        assert name == "openvino-export"
        return Environment(name, version, "tool", Path(sys.executable), tmp_path)

    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path))
    monkeypatch.setattr(model, "ensure", ensure)
    return tmp_path


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Exports that work, and how often one was made."""
    made: list[str] = []

    def run(tool: Environment, folder: Path, log: Path) -> None:
        del log
        made.append(tool.version)
        folder.mkdir()
        for part in model._PARTS:
            (folder / part).write_text(tool.version)

    monkeypatch.setattr(model, "_run", run)
    return made


def test_a_model_is_made_once_for_each_minor_version(cache: Path, exports: list[str]) -> None:
    folder = model.model_folder("2026.4.1.0")
    assert folder == cache / "models" / "openvino-2026.4-tiny-llama"
    assert model.model_folder("2026.4.0.0") == folder
    assert model.model_folder("2026.0.0.0").name == "openvino-2026.0-tiny-llama"
    assert exports == ["2026.4.1.0", "2026.0.0.0"]


def test_a_damaged_model_is_made_anew(cache: Path, exports: list[str]) -> None:
    folder = model.model_folder("2026.4.1.0")
    (folder / "openvino_model.bin").unlink()
    assert not model.is_exported("2026.4.1.0")
    assert model.model_folder("2026.4.1.0") == folder
    assert model.is_exported("2026.4.1.0")
    assert len(exports) == 2
    assert [path.name for path in (cache / "models").iterdir()] == [folder.name]


def test_an_export_that_fails_leaves_nothing_and_says_why(cache: Path) -> None:
    with pytest.raises(
        EnvironmentUnavailable, match=r"could not be exported by openvino-export 2026.4.1.0"
    ) as failed:
        model.prepare("2026.4.1.0")
    assert "ModuleNotFoundError" in str(failed.value)
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path, exports: list[str]) -> None:
    (cache / "models").write_text("a file in the place of the folder")
    with pytest.raises(EnvironmentUnavailable, match="models"):
        model.prepare("2026.4.1.0")
    assert exports == []
