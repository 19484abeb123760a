"""One environment, built in a folder of its own and moved into place whole."""

from __future__ import annotations

import re
import time
import venv
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from kvsuite.engine.environments.index import download
from kvsuite.engine.environments.installer import Pip, cuda_libraries
from kvsuite.engine.environments.manifest import Manifest, python_of, site_packages, this_python
from kvsuite.engine.environments.places import (
    discard,
    environments_folder,
    key_of,
    log_of,
    new_folder,
    say,
    sweep,
    unwritable,
)
from kvsuite.engine.environments.torch_index import torch_options
from kvsuite.engine.environments.unpack import unpack
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsuite.engine.environments.recipe import Loader, LoaderKind, Recipe

_LAYER_FILE = "kvsuite_layer.pth"
_FEW = 8
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[[^]]*\])?\s*(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class Build:
    """What is to be built, under its lock."""

    recipe: Recipe
    version: str
    kind: LoaderKind
    loader: Loader
    lock: int

    @property
    def key(self) -> str:
        """Folder name of the environment."""
        return key_of(self.recipe.name, self.version, self.kind)

    def run(self) -> Path:
        """Build the environment, put it in the place of any older one, and return its folder.

        **Raises:** `EnvironmentUnavailable`; nothing is left of a build that failed but its log.
        """
        started = time.monotonic()
        final = environments_folder() / self.key
        try:
            log_of(self.key).write_text("", encoding="utf-8")
            partial = new_folder(self.key, "partial")
            manifest = self._fill(partial, started)
            discard(final, self.key)
            partial.rename(final)
        except OSError as error:
            raise unwritable(error) from error
        finally:
            sweep(self.key)
        say(f"{self.key}: ready, {manifest.size_bytes / 1e6:.0f} MB in {manifest.build_s:.0f} s")
        return final

    def _fill(self, folder: Path, started: float) -> Manifest:
        # A venv finds its packages by where its interpreter lies, so it can be moved. Only the scripts in
        # bin/ hold its first path; they are dropped.
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        packages = site_packages(folder)
        options = self._see_layer(packages, folder)
        pip = Pip(self.key, log_of(self.key), self.lock)
        files, metadata = self._unpack(pip, folder, packages)
        if self.kind == "layer":
            options += torch_options(pip, folder, self._filled(self.loader.requirements))
        together = self._filled(self.loader.requirements) + declared(metadata, self.loader.declared)
        alone = self._filled(self.loader.alone) + declared(metadata, self.loader.declared_alone)
        for requirements, extra in ((together, ()), (alone, ("--no-deps",))):
            if requirements:
                say(f"{self.key}: installing {_listed(requirements)}")
                files |= pip.install(folder, requirements, (*options, *extra))
        refuse_cuda(self.key, files)
        for script in set((folder / "bin").iterdir()):
            if not script.name.startswith("python"):
                script.unlink()
        manifest = Manifest(
            name=self.recipe.name,
            version=self.version,
            loader=self.kind,
            recipe_version=self.loader.version,
            python=this_python(),
            layer=key_of(*self.loader.layer, "layer") if self.loader.layer else None,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            build_s=round(time.monotonic() - started, 1),
            size_bytes=sum(path.lstat().st_size for path in folder.rglob("*")),
            files=dict(sorted(files.items())),
        )
        if not python_of(folder).exists():
            raise EnvironmentUnavailable(f"{self.key}: no interpreter was made at {python_of(folder)}")
        manifest.write(folder)
        return manifest

    def _see_layer(self, packages: Path, folder: Path) -> list[str]:
        """Let the environment see its layer; return options that keep pip from another torch."""
        if self.loader.layer is None:
            return []
        name, version = self.loader.layer
        seen = site_packages(environments_folder() / key_of(name, version, "layer"))
        (packages / _LAYER_FILE).write_text(f"{seen}\n", encoding="utf-8")
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={version}\n", encoding="utf-8")
        return ["--constraint", str(constraints)]

    def _unpack(self, pip: Pip, folder: Path, packages: Path) -> tuple[dict[str, str], str]:
        sources = self.loader.sources
        if sources is None:
            return {}, ""
        say(f"{self.key}: downloading the {sources.archive} of {self.recipe.distribution} {self.version}")
        archive, sha256 = download(self.recipe, sources, self.version, pip, folder / "download")
        metadata = unpack(archive, sources, packages)
        archive.unlink()
        archive.parent.rmdir()
        return {archive.name: sha256}, metadata

    def _filled(self, requirements: Sequence[str]) -> list[str]:
        return [requirement.format(version=self.version) for requirement in requirements]


def _listed(requirements: Sequence[str]) -> str:
    few = len(requirements) <= _FEW
    return ", ".join(requirements) if few else f"{requirements[0]} and {len(requirements) - 1} more"


def declared(metadata: str, wanted: Sequence[str]) -> list[str]:
    """Return the requirements in a distribution's metadata that are ``wanted``, pins and conditions included.

    Extras are dropped; requirements of an extra are not among them.

    >>> declared("Requires-Dist: Fast_API[all]<2,>=1; python_version > '3'\\nRequires-Dist: x", ["fast-api"])
    ["Fast_API<2,>=1; python_version > '3'"]
    """
    found = []
    for line in HeaderParser().parsestr(metadata).get_all("Requires-Dist", []):
        requirement = _REQUIREMENT.fullmatch(line.strip())
        if requirement is None or re.search(r"\bextra\s*==", line):
            continue
        if re.sub(r"[-_.]+", "-", requirement["name"]).lower() in wanted:
            found.append(requirement["name"] + requirement["rest"])
    return found


def refuse_cuda(subject: str, files: dict[str, str]) -> None:
    """Refuse what pip installed where a CUDA library is among it.

    **Raises:** `EnvironmentUnavailable` with their names.
    """
    cuda = cuda_libraries(files)
    if cuda:
        raise EnvironmentUnavailable(f"{subject}: pip chose CUDA libraries: {', '.join(cuda)}; refused")
