"""What is written about an environment, beside it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_NAME = "env.json"


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine of one version in an interpreter of its own.

    ``python`` is the interpreter to start; ``loader`` is a `LoaderKind`.
    """

    name: str
    version: str
    loader: str
    python: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class Manifest:
    """How an environment was made: ``env.json`` in its folder."""

    name: str
    version: str
    loader: str
    recipe_version: int
    python: str
    """Version of the interpreter, to the minor."""
    layer: str | None
    """Folder name of the layer that this environment sees."""
    created: str
    """UTC, ISO 8601."""
    build_s: float
    size_bytes: int
    """Bytes of the environment's files, without its layer's."""
    files: dict[str, str] = field(default_factory=dict)
    """sha256 of every archive unpacked or installed, by file name."""

    def write(self, folder: Path) -> None:
        """Write the manifest into ``folder``; the last file of a build."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    def environment(self, folder: Path) -> Environment:
        """Return the environment that this manifest in ``folder`` is of."""
        return Environment(self.name, self.version, self.loader, python_of(folder), folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an environment's folder.

    **Raises:** `ValueError`, which says what is wrong with it.
    """
    try:
        fields = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        manifest = Manifest(**fields)
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{MANIFEST_NAME} cannot be read ({error})") from error
    texts = (
        manifest.name,
        manifest.version,
        manifest.loader,
        manifest.python,
        manifest.created,
        manifest.layer or "",
    )
    numbers = (manifest.recipe_version, manifest.size_bytes, manifest.build_s)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{MANIFEST_NAME} has a field that is no text")
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"{MANIFEST_NAME} has a field that is no number")
    return manifest


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment's folder."""
    return folder / "bin" / "python"


def this_python() -> str:
    """Return the version of the running interpreter, to the minor: what environments are built with."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def site_packages(folder: Path) -> Path:
    """Return where the packages of an environment's folder lie."""
    return folder / "lib" / f"python{this_python()}" / "site-packages"
