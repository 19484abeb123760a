"""One rule for where kvsuite keeps what it can make again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsuite.engine.environments.places import environments_folder
from kvsuite.places import cache_folder


@pytest.mark.parametrize(
    ("own", "base", "expected"),
    [
        ("/a", "/b", "/a"),
        ("~/a", None, "/home/me/a"),
        ("", "/b", "/b/kvsuite"),
        (None, "relative", "/home/me/.cache/kvsuite"),
        (None, None, "/home/me/.cache/kvsuite"),
    ],
)
def test_the_first_that_is_set_decides(
    own: str | None, base: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("KVSUITE_CACHE", own), ("XDG_CACHE_HOME", base)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
    assert environments_folder() == Path(expected) / "environments"


def test_a_relative_folder_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSUITE_CACHE", "here")
    assert cache_folder() == tmp_path / "here"


def test_compiled_code_is_kept_there_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="numba is not installed: pip install kvsuite[fast]")
    from kvsuite.replay.compiled import jit

    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path))
    jit._cache_folder.cache_clear()
    try:
        folder = jit._cache_folder()
    finally:
        jit._cache_folder.cache_clear()
    assert folder is not None
    assert folder.parent == tmp_path / "numba"
