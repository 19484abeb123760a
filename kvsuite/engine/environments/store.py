"""Environments by name and version: found, built on demand, listed, removed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from kvsuite.engine.environments.build import Build
from kvsuite.engine.environments.index import released
from kvsuite.engine.environments.manifest import (
    Environment,
    Manifest,
    python_of,
    read_manifest,
    site_packages,
    this_python,
)
from kvsuite.engine.environments.places import discard, environments_folder, key_of, locked, say
from kvsuite.engine.environments.recipe import LoaderKind
from kvsuite.engine.environments.recipes import NEWEST, RECIPES, check_version, loader_of, recipe_of
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.engine.environments.recipe import Recipe


_KEY = re.compile(rf"[a-z][a-z0-9_-]*-\d[^/]*-({'|'.join(get_args(LoaderKind))})")


@dataclass(frozen=True, slots=True)
class Stored:
    """A folder of the cache.

    ``manifest`` is absent where it cannot be read; ``problem`` is empty where the environment can be used.
    """

    folder: Path
    manifest: Manifest | None
    problem: str


def ensure(name: str, version: str, *, loader: str | None = None) -> Environment:
    """Return the environment of an engine's version, built now where it is missing or of an older recipe.

    ``version`` may be ``newest``: the newest on the package index, or, where that cannot be reached, the
    newest that is built. Progress goes to standard error.

    **Raises:** `EnvironmentUnavailable` when it cannot be built; `EngineError` for an unknown name or loader.
    """
    recipe = recipe_of(name)
    kind, how = loader_of(recipe, loader)
    version = _newest(recipe, kind) if version == NEWEST else check_version(name, version)
    found = find(name, version, kind)
    if found is not None:
        return found
    if how.layer is not None:
        ensure(*how.layer)
    with locked(key_of(name, version, kind)) as lock:
        found = find(name, version, kind)
        if found is not None:
            return found
        folder = Build(recipe, version, kind, how, lock).run()
    return read_manifest(folder).environment(folder)


def find(name: str, version: str, loader: str | None = None) -> Environment | None:
    """Return the environment if it is built and can be used; never build, never ask the index.

    ``newest`` is the newest that is built.

    **Raises:** `EngineError` for an unknown name or loader.
    """
    kind, _ = loader_of(recipe_of(name), loader)
    if version == NEWEST:
        built = _newest_built(name, kind)
        if built is None:
            return None
        version = built
    stored = _look(environments_folder() / key_of(name, check_version(name, version), kind))
    if stored.problem or stored.manifest is None:
        return None
    return stored.manifest.environment(stored.folder)


def stored_environments() -> tuple[Stored, ...]:
    """Return every environment in the cache, damaged and outdated ones too, sorted by folder name.

    A folder whose name is not that of an environment is none.
    """
    folder = environments_folder()
    if not folder.is_dir():
        return ()
    places = sorted(place for place in folder.iterdir() if _KEY.fullmatch(place.name))
    return tuple(_look(place) for place in places if place.is_dir() and not place.is_symlink())


def environments() -> tuple[Environment, ...]:
    """Return the environments that can be used, layers included, sorted by folder name."""
    return tuple(
        stored.manifest.environment(stored.folder)
        for stored in stored_environments()
        if stored.manifest is not None and not stored.problem
    )


def remove(environment: Environment) -> None:
    """Remove an environment. One that is in use loses what it has not yet read.

    **Raises:** `EnvironmentUnavailable` for a folder outside the cache, or a cache that cannot be written.
    """
    remove_folder(environment.folder)


def remove_folder(folder: Path) -> None:
    """Remove one folder of the cache, under its lock.

    **Raises:** `EnvironmentUnavailable` for a folder outside the cache, or a cache that cannot be written.
    """
    if folder.parent.resolve() != environments_folder().resolve():
        raise EnvironmentUnavailable(f"{folder} is not in the cache {environments_folder()}: not removed")
    with locked(folder.name):
        discard(folder, folder.name)


def _look(folder: Path) -> Stored:
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return Stored(folder, None, f"damaged: {error}")
    return Stored(folder, manifest, _problem(manifest, folder))


def _problem(manifest: Manifest, folder: Path) -> str:
    recipe = RECIPES.get(manifest.name)
    how = (
        {str(kind): loader for kind, loader in recipe.loaders.items()}.get(manifest.loader)
        if recipe
        else None
    )
    if folder.name != key_of(manifest.name, manifest.version, manifest.loader):
        return f"damaged: its manifest is of {manifest.name}@{manifest.version}"
    if how is None:
        return "unknown to this version of kvsuite"
    if manifest.recipe_version != how.version:
        return f"outdated: recipe {manifest.recipe_version}, now {how.version}"
    if manifest.python != this_python():
        return f"made for Python {manifest.python}, this is {this_python()}"
    if not python_of(folder).exists():
        return "damaged: its interpreter is gone"
    if manifest.layer is not None and not site_packages(folder.parent / manifest.layer).is_dir():
        return f"damaged: {manifest.layer}, which it needs, is gone"
    return ""


def _newest(recipe: Recipe, loader: str) -> str:
    try:
        return released(recipe.name)[-1]
    except EnvironmentUnavailable as error:
        built = _newest_built(recipe.name, loader)
        if built is None:
            raise
        first = str(error).splitlines()[0]
        say(f"{first}; taking {recipe.name} {built}, the newest that is built")
        return built


def _newest_built(name: str, loader: str) -> str | None:
    built = [found.version for found in environments() if (found.name, found.loader) == (name, loader)]
    return max(built, key=_order, default=None)


def _order(version: str) -> tuple[list[int], bool]:
    """Return a key that sorts releases by number, each after its own pre-releases."""
    release = re.match(r"[\d.]*\d", version)
    numbers = release[0] if release else ""
    return [int(part) for part in numbers.split(".") if part], numbers == version
