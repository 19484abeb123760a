"""pip, run beside the environment that it fills, with its output kept in a log."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INSTALL_TIMEOUT_S = 1800.0
_TAIL_LINES = 12
_ENDED = -1000
"""Stands for the exit code of a pip that ran past its time."""
# Would send packages elsewhere than into the environment, or let pip see packages that are not in it.
_MISLEADING = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
)
_UNREACHABLE = re.compile(
    r"connection broken|connection error|failed to establish|connection to .* failed|timed out"
    r"|name resolution|ProxyError|SSLError|network is unreachable|connection refused"
    r"|HTTP error 5\d\d|5\d\d Server Error",
    re.IGNORECASE,
)
_REACH_IT = "build it where the index can be reached, or set PIP_INDEX_URL to one that can"
_REASONS = (
    (
        re.compile("DO NOT MATCH THE HASHES"),
        "the package index serves another file than the pinned one: do not use that index",
    ),
    (
        re.compile("No space left on device"),
        "no space left on the device: set KVSUITE_CACHE, and TMPDIR for pip, to where there is",
    ),
    (_UNREACHABLE, f"the package index cannot be reached: {_REACH_IT}"),
    (
        re.compile("No matching distribution|Could not find a version"),
        "the package index has no such version for this Python and platform: "
        "`pip index versions` lists those it has",
    ),
)


@dataclass(frozen=True, slots=True)
class Pip:
    """How to run pip: what is being built, where its log goes, which lock its processes keep."""

    subject: str
    log: Path
    lock: int | None = None
    """File descriptor that pip inherits, so that the lock on a build lasts as long as any process of it."""
    log_stays: bool = True

    def run(
        self,
        arguments: Sequence[str],
        *,
        extra_environ: Mapping[str, str] | None = None,
        timeout_s: float = INSTALL_TIMEOUT_S,
    ) -> str:
        """Run pip to its end and return what it printed.

        **Raises:** `EnvironmentUnavailable` with the reason and the end of the log.
        """
        if not self._has_pip():
            raise EnvironmentUnavailable(
                f"{self.subject}: {sys.executable} has no pip, which builds environments: "
                f"run {sys.executable} -m ensurepip, or use an interpreter with pip 23 or newer"
            )
        command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments]
        environ = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
        environ |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONNOUSERSITE": "1"}
        if environ.get("PIP_RETRIES", "0") == "0":  # pip tells of an index that it cannot reach as it retries
            environ["PIP_RETRIES"] = "1"
        code, output = self._finish(command, environ | dict(extra_environ or {}), timeout_s)
        if code:
            raise EnvironmentUnavailable(self._failure(code, output, timeout_s))
        return output

    def install(
        self, folder: Path, requirements: Sequence[str], options: Sequence[str] = ()
    ) -> dict[str, str]:
        """Install into the environment at ``folder``; return the sha256 of each archive, by file name."""
        report = folder / "pip-report.json"
        python = folder / "bin" / "python"
        self.run(
            [
                *("--python", str(python), "install", "--no-compile", "--no-warn-script-location"),
                *("--progress-bar", "off", "--report", str(report), *options, *requirements),
            ]
        )
        archives = read_report(report)
        report.unlink()
        return archives

    @staticmethod
    def _has_pip() -> bool:
        return importlib.util.find_spec("pip") is not None

    def _finish(self, command: list[str], environ: dict[str, str], timeout_s: float) -> tuple[int, str]:
        """Run to the end; return the exit code, or `_ENDED`, and what was written to the log."""
        kept = () if self.lock is None else (self.lock,)
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=self.log.parent,
                pass_fds=kept,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except BaseException as stopped:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(stopped, subprocess.TimeoutExpired):
                    raise
                code = _ENDED
        return code, self.log.read_bytes()[start:].decode("utf-8", "replace")

    def _failure(self, code: int, output: str, timeout_s: float) -> str:
        if code == _ENDED:
            reason = f"pip was ended after {timeout_s:g} s"
        else:
            found = (said for pattern, said in _REASONS if pattern.search(output))
            reason = next(found, f"pip ended with {code}")
        tail = [line for line in output.splitlines() if line.strip()][-_TAIL_LINES:]
        where = f", whole in {self.log}," if self.log_stays else ""
        return "\n".join([f"{self.subject}: {reason}", f"pip's output{where} ends:", *tail])


def read_report(path: Path) -> dict[str, str]:
    """Return the sha256 of every archive in a report of pip, by file name; empty where pip had none."""
    archives = {}
    for item in json.loads(path.read_text(encoding="utf-8"))["install"]:
        download = item["download_info"]
        file_name = PurePosixPath(unquote(urlsplit(download["url"]).path)).name
        archives[file_name] = download.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return archives


def cuda_libraries(archives: Iterable[str]) -> list[str]:
    """Return those of the file names that are of CUDA libraries, sorted."""
    return sorted(name for name in archives if re.match("(nvidia|cuda)[_-]", name))
