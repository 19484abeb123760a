"""The same source runs without a compiler, and nothing else imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.trace.load import load_trace

done = compiled_replay(load_trace("divergence-burst").head(40), EngineConfig(model_layout("tiny"), 4, 200))
print(hash(done.timeline.pools[0].rows.tobytes()))
"""


def test_plain_python_comes_to_the_same_rows() -> None:
    def run(**environment: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": "0", **environment},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run(NUMBA_DISABLE_JIT="1") == run()


def test_nothing_imports_numba_by_the_way() -> None:
    script = "import sys, kvsuite, kvsuite.cli.main, kvsuite.replay.driver; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_cache_that_cannot_be_written_is_said_and_not_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "from kvsuite.replay.compiled import blocks; print(blocks._empty._cache.cache_path)",
        ],
        env={**os.environ, "KVSUITE_CACHE": str(tmp_path / "file")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "None\n"
    assert "compiled code is not kept" in ran.stderr
    assert "set KVSUITE_CACHE" in ran.stderr
