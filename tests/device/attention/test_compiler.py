"""Builds on first use: what is looked for, what a failure shows, what a build is named after."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import DeviceError, KernelUnavailable

if TYPE_CHECKING:
    from kvsuite.device.attention.compiler import Compiler

pytestmark = pytest.mark.usefixtures("torch")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def script(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def source_in(folder: Path, text: str = "int kvsuite_answer(void) { return 42; }\n") -> Path:
    path = folder / "answer.c"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_compiler_it_says_what_it_looked_for() -> None:
    from kvsuite.device.attention.compiler import find_compiler

    with pytest.raises(
        KernelUnavailable, match=r"none of cc, gcc, clang is not on|none of cc, gcc, clang"
    ) as caught:
        find_compiler({"PATH": ""})
    assert caught.value.looked_for == ("cc", "gcc", "clang")
    assert isinstance(caught.value, DeviceError)
    with pytest.raises(KernelUnavailable, match=r"\$CC names 'no-such-compiler -m64'") as caught:
        find_compiler({"PATH": os.environ["PATH"], "CC": "no-such-compiler -m64"})
    assert caught.value.looked_for == ("no-such-compiler",)


def test_cc_comes_before_path_and_keeps_its_words(tmp_path: Path) -> None:
    from kvsuite.device.attention.compiler import find_compiler

    for name in ("cc", "mine"):
        script(tmp_path / "bin", name, f'echo "{name} 1.0"; echo more')
    environ = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin"}
    found = find_compiler(environ)
    assert (Path(found.command[0]).name, found.version) == ("cc", "cc 1.0")
    found = find_compiler({**environ, "CC": "mine -m64"})
    assert (found.command, found.version) == ((str(tmp_path / "bin" / "mine"), "-m64"), "mine 1.0")


def test_a_compiler_that_does_not_answer_is_not_one(tmp_path: Path) -> None:
    from kvsuite.device.attention.compiler import find_compiler

    broken = script(tmp_path, "broken", "exit 3")
    with pytest.raises(KernelUnavailable, match="--version"):
        find_compiler({"PATH": "", "CC": str(broken)})


def test_a_failed_build_shows_the_last_lines(cache: Path, compiler: Compiler, tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match=r"(?s)ended with 1:.*no_such_word"):
        compiler.load(source_in(tmp_path, "int f(void) { return no_such_word; }\n"))
    assert list(cache.iterdir()) == []


def test_a_build_is_named_after_what_decides_what_runs(compiler: Compiler, tmp_path: Path) -> None:
    from kvsuite.device.attention.compiler import Compiler as Named

    source = source_in(tmp_path)
    names = {
        compiler.identity(source, ()),
        compiler.identity(source, ("A=1",)),
        compiler.identity(source, ("A=2",)),
        Named((*compiler.command, "-m64"), compiler.version).identity(source, ()),
        Named(compiler.command, compiler.version + "1").identity(source, ()),
        compiler.identity(source_in(tmp_path, "int other;\n"), ()),
    }
    assert len(names) == 6
    assert compiler.identity(source_in(tmp_path), ()) in names


def test_builders_at_once_leave_one_whole_file(cache: Path, compiler: Compiler, tmp_path: Path) -> None:
    source = source_in(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: compiler.load(source).kvsuite_answer(), range(4)))
    assert answers == [42] * 4
    (left,) = cache.iterdir()
    assert left.name == f"answer-{compiler.identity(source, ())}.so"


def test_what_is_built_is_not_built_again(cache: Path, compiler: Compiler, tmp_path: Path) -> None:
    from kvsuite.device.attention.compiler import Compiler as Named

    log = tmp_path / "log"
    counted = script(tmp_path, "counted", f'echo built >> {log}; exec {compiler.command[0]} "$@"')
    own = Named((str(counted),), compiler.version)
    for _ in range(2):
        assert own.load(source_in(tmp_path)).kvsuite_answer() == 42
    assert log.read_text(encoding="utf-8") == "built\n"
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(KernelUnavailable, match=r"Not a directory.*set KVSUITE_CACHE"):
        compiler.load(source_in(tmp_path))
