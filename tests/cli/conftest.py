"""The command line, run in this process in a folder of the test's own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def figure(self, name: str) -> str:
        """Return the value printed on the line that starts with ``name``."""
        found = [line[len(name) :].strip() for line in self.out.splitlines() if line.startswith(f"{name}  ")]
        assert found, f"no line {name!r} in:\n{self.out}"
        return found[0]


@pytest.fixture
def kvsuite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ran]:
    from kvsuite.cli.main import main

    def run(*words: object) -> Ran:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["kvsuite", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return Ran(code, said.out, said.err)

    return run
