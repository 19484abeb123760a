"""The same source runs without a compiler, and nothing else imports it."""

from __future__ import annotations

import os
import subprocess
import sys

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
