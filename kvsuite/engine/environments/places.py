"""The cache folder: where environments lie, who may change one, what an interrupted build left."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.errors import EnvironmentUnavailable
from kvsuite.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK_TIMEOUT_S = 3600.0
_LOCK_POLL_S = 0.2


def say(text: str) -> None:
    """Write one line of progress to standard error."""
    sys.stderr.write(f"kvsuite: {text}\n")
    sys.stderr.flush()


def environments_folder() -> Path:
    """Return where environments lie; it need not exist."""
    return cache_folder() / "environments"


def key_of(name: str, version: str, loader: str) -> str:
    """Return the folder name of an environment."""
    return f"{name}-{version}-{loader}"


def log_of(key: str) -> Path:
    """Return where pip's output of an environment's last build is kept."""
    return environments_folder() / ".logs" / f"{key}.log"


@contextmanager
def locked(key: str) -> Iterator[int]:
    """Hold the lock of one environment; wait for it where another process has it, and say so.

    Yields the lock's file descriptor. A process that inherits it keeps the lock for as long as it lives, so
    the lock is free only when a killed builder's children have ended too. What dead builds left is
    removed first.

    **Raises:** `EnvironmentUnavailable` when the cache cannot be written or the lock is not had in an hour.
    """
    folder = environments_folder()
    try:
        for place in (folder / ".locks", folder / ".logs"):
            place.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".locks" / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise unwritable(error) from error
    try:
        _wait(lock, key)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        sweep(key)
        yield lock
    finally:
        os.close(lock)


def new_folder(key: str, purpose: str) -> Path:
    """Make a hidden folder, ``partial`` or ``removed``, for the holder of an environment's lock."""
    return Path(tempfile.mkdtemp(prefix=f".{key}.{purpose}-", dir=environments_folder()))


def sweep(key: str) -> None:
    """Remove what builds and removals of one environment left; only for the holder of its lock."""
    for purpose in ("partial", "removed"):
        for folder in environments_folder().glob(f".{key}.{purpose}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def discard(folder: Path, key: str) -> None:
    """Move an environment's folder out of its place, then remove it; only for the holder of its lock.

    **Raises:** `EnvironmentUnavailable` for a folder that is not directly in the cache, or is a link.
    """
    if folder.parent.resolve() != environments_folder().resolve() or folder.is_symlink():
        raise EnvironmentUnavailable(
            f"{folder} is not a folder of the cache {environments_folder()}: not removed"
        )
    aside = new_folder(key, "removed")
    with suppress(FileNotFoundError):
        folder.rename(aside / "old")
    shutil.rmtree(aside, ignore_errors=True)


def unwritable(error: OSError) -> EnvironmentUnavailable:
    """Return the error that says why the cache cannot be written."""
    return EnvironmentUnavailable(
        f"{error.filename or environments_folder()}: {error.strerror or error}; environments are kept in "
        f"{environments_folder()}: set KVSUITE_CACHE to a folder that can be written and has room"
    )


def _wait(lock: int, key: str) -> None:
    give_up = time.monotonic() + _LOCK_TIMEOUT_S
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "another process"
        else:
            return
        if not told:
            say(f"{key}: waiting for process {holder}, which builds or removes it")
            told = True
        if time.monotonic() > give_up:
            raise EnvironmentUnavailable(
                f"{key}: process {holder} has held the lock for {_LOCK_TIMEOUT_S / 60:.0f} minutes: end it, "
                "or wait for it, and try again"
            )
        time.sleep(_LOCK_POLL_S)
