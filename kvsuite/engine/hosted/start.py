"""Starts the process that holds engines: which variables it sees, and how kvsuite is found there."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path
from typing import IO

import kvsuite

_KEPT_VARIABLES = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}

# kvsuite is put into `sys.modules` by its own path and nothing is put on `sys.path`: a folder there would
# bring whatever else is installed beside kvsuite, and an engine would import packages of the parent.
_START = """
import importlib.util, sys
package = sys.argv[1]
spec = importlib.util.spec_from_file_location(
    "kvsuite", package + "/__init__.py", submodule_search_locations=[package])
sys.modules["kvsuite"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from kvsuite.replay.host.server import main
main(*map(int, sys.argv[2:]))
"""


def started(python: Path, reader: int, writer: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the server in the interpreter ``python``, on two descriptors; what it prints goes to ``output``.

    **Raises:** `OSError` where there is no such interpreter.
    """
    # A parent's death ends the child; what Linux calls the parent is the thread that started it.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    package = str(Path(kvsuite.__file__).parent)
    return subprocess.Popen(
        [str(python), "-c", _START, package, str(reader), str(writer), str(parent)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(reader, writer),
        env=_environment(),
        start_new_session=True,  # an interrupt from the keyboard is for the suite, which then ends this
    )


def _environment() -> dict[str, str]:
    """Return the variables of the child: of Python's own only those that say where bytecode goes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") or name in _KEPT_VARIABLES
    }
    own = {
        "PYTHONHASHSEED": "0",  # engines hash: the same blocks in every run
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",  # what was said last is there after a crash
    }
    return {**kept, **own}
