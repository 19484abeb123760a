"""What a recipe can say: which files of which distribution make up an engine's environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

LoaderKind = Literal["full", "filtered", "layer", "tool"]


@dataclass(frozen=True, slots=True)
class Sources:
    """Python files of one distribution, unpacked from its archive; nothing of it is run or built.

    ``packages`` are the top-level packages taken. Everything else in the archive (compiled libraries,
    kernels) stays out.
    """

    archive: Literal["sdist", "wheel"]
    packages: tuple[str, ...]
    suffixes: tuple[str, ...] = (".py",)
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the archives of pinned versions. The index's own hash is checked for every version."""


@dataclass(frozen=True, slots=True)
class Loader:
    """How one loader kind of an engine is put together.

    ``{version}`` in a requirement stands for the engine's version. ``version`` is the recipe's own: raised
    with each change of it, so that environments of an older recipe are built anew.
    """

    version: int
    sources: Sources | None = None
    requirements: tuple[str, ...] = ()
    """Installed with what they require."""
    alone: tuple[str, ...] = ()
    """Installed without what they require."""
    declared: tuple[str, ...] = ()
    """Distributions that the unpacked engine may require, installed as it pins them and where it does."""
    declared_alone: tuple[str, ...] = ()
    """As ``declared``, without what they require."""
    layer: tuple[str, str] | None = None
    """Name and version of the environment whose packages can be seen in this one, such as a CPU torch."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """An engine that can be installed apart; the first loader is the one taken where none is named."""

    name: str
    distribution: str
    loaders: Mapping[LoaderKind, Loader]
    summary: str
