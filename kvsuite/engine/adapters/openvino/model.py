"""The tiny model, exported once for each minor version of OpenVINO and kept in the cache.

A graph that one minor version wrote may crash another, so each has its own, made by a tool environment that
has the same OpenVINO. The folder appears whole or not at all.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.engine.adapters.openvino.shape import SHAPE
from kvsuite.engine.environments import ensure
from kvsuite.engine.environments.places import environments_folder, locked, say, unwritable
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from kvsuite.engine.environments import Environment

TOOL = "openvino-export"
_PARTS = ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_detokenizer.xml")
_EXPORT_TIMEOUT_S = 600.0
_SHOWN_LINES = 8


def prepare(version: str) -> None:
    """Make the model that this version of openvino-genai serves, where it is not there yet.

    **Raises:** `EnvironmentUnavailable` when it cannot be exported.
    """
    model_folder(version)


def model_folder(version: str) -> Path:
    """Return the folder of the model for this version of openvino-genai, exported now where it is missing.

    **Raises:** `EnvironmentUnavailable` when it cannot be exported.
    """
    folder = _place(version)
    if _is_whole(folder):
        return folder
    tool = ensure(TOOL, version)
    with locked(folder.name):
        if not _is_whole(folder):
            _export(tool, folder)
    return folder


def is_exported(version: str) -> bool:
    """Return whether the model for this version of openvino-genai is in the cache."""
    return _is_whole(_place(version))


def _place(version: str) -> Path:
    minor = ".".join(version.split(".")[:2])
    return environments_folder().parent / "models" / f"openvino-{minor}-tiny-llama"


def _is_whole(folder: Path) -> bool:
    return all((folder / part).is_file() for part in _PARTS)


def _export(tool: Environment, folder: Path) -> None:
    say(f"{folder.name}: exporting the model with {tool.name} {tool.version}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            made = Path(scratch) / "model"
            _run(tool, made, Path(scratch) / "log")
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    except OSError as error:
        raise unwritable(error) from error


def _run(tool: Environment, made: Path, log: Path) -> None:
    script = Path(__file__).with_name("export.py")
    shape = [f"{name}={value}" for name, value in SHAPE.arguments().items()]
    with log.open("wb") as output:
        try:
            # -I: nothing of this interpreter, and no folder of kvsuite, is on the tool's path.
            done = subprocess.run(
                [tool.python, "-I", script, made, *shape],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_EXPORT_TIMEOUT_S,
                check=False,
            )
            why = f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            why = f"no end after {_EXPORT_TIMEOUT_S:.0f} s"
    if _is_whole(made):
        return
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
    raise EnvironmentUnavailable(
        f"{made.parent.name}: the model could not be exported by {tool.name} {tool.version}, {why}:\n"
        + "\n".join(f"  {line}" for line in said)
    )
