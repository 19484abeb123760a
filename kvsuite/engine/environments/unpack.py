"""Python files out of an archive, written one by one: no link, no path outside, nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.environments.recipe import Sources


def unpack(archive: Path, sources: Sources, target: Path) -> str:
    """Write the packages named by ``sources`` below ``target``, with a ``.dist-info`` that names the version.

    Returns the distribution's metadata.

    **Raises:** `EnvironmentUnavailable` for an archive that is damaged, lacks a package or the metadata, or
    has among those files one that is no regular file or lies outside.
    """
    written, metadata = set(), None
    try:
        for path, data in _members(archive, sources):
            if path.parts[0] in sources.packages:
                written.add(path.parts[0])
                place = target.joinpath(*path.parts)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            else:
                metadata = data
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise EnvironmentUnavailable(f"{archive.name} is damaged: {error}") from error
    if metadata is None or written != set(sources.packages):
        raise EnvironmentUnavailable(
            f"{archive.name}: expected metadata and the packages {', '.join(sources.packages)}, "
            f"found {', '.join(sorted(written)) or 'none'}{'' if metadata else ' and no metadata'}"
        )
    _write_dist_info(metadata, archive, target)
    return metadata.decode("utf-8")


def _members(archive: Path, sources: Sources) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the wanted files with their paths below ``site-packages``, and the metadata as one of another."""
    if sources.archive == "wheel":
        yield from _wheel_members(archive, sources)
    else:
        yield from _sdist_members(archive, sources)


def _wheel_members(archive: Path, sources: Sources) -> Iterator[tuple[PurePosixPath, bytes]]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            path = PurePosixPath(member.filename)
            is_metadata = path.name == "METADATA" and path.parent.name.endswith(".dist-info")
            if member.is_dir() or not (is_metadata or _is_wanted(path, sources)):
                continue
            yield _inside(path, archive), file.read(member)


def _sdist_members(archive: Path, sources: Sources) -> Iterator[tuple[PurePosixPath, bytes]]:
    with tarfile.open(archive, "r:*") as file:
        for member in file:
            whole = PurePosixPath(member.name)
            path = PurePosixPath(*whole.parts[1:])
            if member.isdir() or not (path == PurePosixPath("PKG-INFO") or _is_wanted(path, sources)):
                continue
            data = file.extractfile(member) if member.isreg() else None
            if data is None:
                raise EnvironmentUnavailable(f"{archive.name}: {member.name} is no regular file: refused")
            _inside(whole, archive)
            yield path, data.read()


def _is_wanted(path: PurePosixPath, sources: Sources) -> bool:
    return len(path.parts) > 1 and path.parts[0] in sources.packages and path.suffix in sources.suffixes


def _inside(path: PurePosixPath, archive: Path) -> PurePosixPath:
    if path.is_absolute() or ".." in path.parts:
        raise EnvironmentUnavailable(f"{archive.name}: {path} lies outside the archive: refused")
    return path


def _write_dist_info(metadata: bytes, archive: Path, target: Path) -> None:
    """Make the version known to `importlib.metadata`, as an installation would."""
    name, version = archive.name.removesuffix(".tar.gz").split("-")[:2]
    folder = target / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(metadata)
    (folder / "INSTALLER").write_text("kvsuite\n", encoding="utf-8")
