"""The package index, asked through pip: its configured index, proxies, certificates and credentials hold."""

from __future__ import annotations

import hashlib
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.engine.environments.installer import Pip
from kvsuite.engine.environments.recipes import recipe_of
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from kvsuite.engine.environments.recipe import Recipe, Sources

_QUERY_TIMEOUT_S = 120.0
_BACKEND = Path(__file__).with_name("metadata_only")


@cache
def released(name: str) -> tuple[str, ...]:
    """Return the versions of an engine that the package index has for this Python and platform, oldest first.

    Pre-releases are left out. The index is asked once a process.

    **Raises:** `EnvironmentUnavailable` when the index cannot be reached or lists no version.
    """
    recipe = recipe_of(name)
    with tempfile.TemporaryDirectory(prefix="kvsuite-") as folder:
        pip = Pip(name, Path(folder, "pip.log"), log_stays=False)
        output = pip.run(["index", "versions", recipe.distribution], timeout_s=_QUERY_TIMEOUT_S)
    listed = re.search(r"^Available versions: (.+)$", output, re.MULTILINE)
    if listed is None:
        raise EnvironmentUnavailable(
            f"{name}: pip lists no versions of {recipe.distribution}: update pip to 23 or newer"
        )
    return tuple(reversed(listed[1].split(", ")))


def download(recipe: Recipe, sources: Sources, version: str, pip: Pip, folder: Path) -> tuple[Path, str]:
    """Download the archive of a version into the new ``folder``; return it and its sha256.

    pip checks the hash of the index, or the pinned one where there is one. Nothing in the archive is run.

    **Raises:** `EnvironmentUnavailable`, also where the pinned hash is another.
    """
    folder.mkdir()
    requirement = f"{recipe.distribution}=={version}"
    pinned = sources.sha256.get(version)
    if pinned:
        requirement += f" --hash=sha256:{pinned}"
    listing = folder.with_suffix(".txt")
    listing.write_text(requirement + "\n", encoding="utf-8")
    kind = "--no-binary" if sources.archive == "sdist" else "--only-binary"
    arguments = ["download", "--no-deps", "--no-build-isolation", "--progress-bar", "off"]
    arguments += [kind, recipe.distribution, "--dest", str(folder), "--requirement", str(listing)]
    pip.run(arguments, extra_environ={"PYTHONPATH": str(_BACKEND)} if sources.archive == "sdist" else None)
    listing.unlink()
    (archive,) = folder.iterdir()
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if pinned and found != pinned:
        raise EnvironmentUnavailable(f"{pip.subject}: {archive.name} has sha256 {found}, expected {pinned}")
    return archive, found
