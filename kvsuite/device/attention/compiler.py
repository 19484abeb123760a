"""C built by the system's compiler on first use and kept in the cache folder.

A build is named after all that decides what runs: the source, the compiler and its version, the flags, and
the processor, whose instructions ``-march=native`` takes. It is written aside and moved into place, so that
processes that build the same thing at once end with one whole file.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.errors import KernelUnavailable
from kvsuite.places import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-Wno-psabi")
"""No ``-ffast-math``: sums keep their order, so that what differs between builds is time and no bit."""
_BUILD_TIMEOUT_S = 120
_LINES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: the words it is called by, and the first line of what it says of its version."""

    command: tuple[str, ...]
    version: str

    def identity(self, source: Path, defines: Sequence[str]) -> str:
        """Return sixteen hex digits that change when what a build runs changes."""
        parts = (
            source.read_text(encoding="utf-8"),
            *self.command,
            self.version,
            *FLAGS,
            *defines,
            _processor(),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def load(self, source: Path, defines: Sequence[str] = ()) -> ctypes.CDLL:
        """Return the library of ``source``, built now where the cache lacks it. Calls release the GIL.

        **Raises:** `KernelUnavailable` where the compiler refuses it, or the cache cannot be written or run
        from.
        """
        path = cache_folder() / "kernels" / f"{source.stem}-{self.identity(source, defines)}.so"
        try:
            if not path.exists():
                self._build(source, defines, path)
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelUnavailable(
                f"{path}: {error.strerror or error}: set KVSUITE_CACHE to a folder that can be written and "
                "that libraries can be loaded from",
                (str(path),),
            ) from error

    def _build(self, source: Path, defines: Sequence[str], path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as aside:
            built = Path(aside) / path.name
            command = [
                *self.command,
                *FLAGS,
                *(f"-D{define}" for define in defines),
                str(source),
                "-o",
                str(built),
            ]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_BUILD_TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                raise KernelUnavailable(
                    f"{shlex.join(command)} took more than {_BUILD_TIMEOUT_S} s", self.command
                ) from None
            if done.returncode:
                last = "\n".join(done.stderr.strip().splitlines()[-_LINES_SHOWN:]) or "it said nothing"
                raise KernelUnavailable(
                    f"{shlex.join(command)} ended with {done.returncode}:\n{last}\n"
                    "set CC to a C compiler that builds it (gcc and clang do)",
                    self.command,
                )
            built.replace(path)


def find_compiler(environ: Mapping[str, str] = os.environ) -> Compiler:
    """Return the compiler that ``$CC`` names, else the first of cc, gcc and clang on ``$PATH``.

    **Raises:** `KernelUnavailable` where there is none, or it does not answer.
    """
    chosen = environ.get("CC", "").strip()
    candidates = [shlex.split(chosen)] if chosen else [[name] for name in COMPILERS]
    for candidate in candidates:
        found = shutil.which(candidate[0], path=environ.get("PATH", ""))
        if found is not None:
            command = (found, *candidate[1:])
            return Compiler(command, _version_of(command))
    looked_for = tuple(candidate[0] for candidate in candidates)
    where = f"PATH={environ.get('PATH', '')!r}"
    asked = f"$CC names {chosen!r}, which" if chosen else f"no C compiler: none of {', '.join(looked_for)}"
    raise KernelUnavailable(
        f"{asked} is not on {where}: install gcc or clang, or name one in CC. Without it attention is "
        "computed by gathering blocks, which says nothing of latency",
        looked_for,
    )


@functools.cache
def _version_of(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelUnavailable(f"{shlex.join(command)} --version: {error}", command) from error
    return done.stdout.partition("\n")[0].strip()


@functools.cache
def _processor() -> str:
    """Return the model of the processor and the instructions it has."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = [re.search(rf"^{name}\s*:.*$", text, re.MULTILINE) for name in ("model name", "flags", "Features")]
    return "\n".join([platform.machine(), *(match[0] for match in told if match)])
