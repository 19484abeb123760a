"""Help must come at once: nothing heavy is imported to show it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "pytest", "plotly", "jinja2", "numpy", "msgspec", "hypothesis")
_PROBE = """
import json, sys
from kvsuite.cli.main import main
sys.argv = ["kvsuite", *{words!r}]
try:
    main()
except SystemExit as stopped:
    code = stopped.code
sys.stderr.write(json.dumps([code, [name for name in {heavy!r} if name in sys.modules]]))
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["replay", "--help"], ["calibrate", "--help"], ["trace", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    probe = _PROBE.format(words=words, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr) == [0, []]
    assert "kvsuite" in done.stdout


def test_help_lists_every_verb_and_the_exit_codes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from kvsuite.cli.main import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for verb in (
        "replay",
        "sweep",
        "calibrate",
        "compare",
        "drift",
        "trace",
        "golden",
        "report",
        "engines",
        "env",
    ):
        assert f"\n  {verb} " in done.stdout
    assert "Exit codes: 0 ok, 1" in done.stdout
