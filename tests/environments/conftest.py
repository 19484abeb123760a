"""A package index on this machine, with archives made here, and a cache folder of the test's own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from kvsuite.engine.environments.index import released
from kvsuite.engine.environments.recipe import Loader, Recipe, Sources
from kvsuite.engine.environments.recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
_BUILDER = """
import sys
from kvsuite.engine.environments import ensure
from kvsuite.engine.environments.recipe import Loader, Recipe, Sources
from kvsuite.engine.environments.recipes import RECIPES
RECIPES["toy"] = Recipe("toy", "toy", {"filtered": Loader(1, sources=Sources("sdist", ("toy",)))}, "")
print(ensure("toy", sys.argv[1]).folder)
"""
_PYPROJECT = '[build-system]\nrequires = ["absent"]\nbuild-backend = "setuptools.build_meta"\n'


def _metadata(name: str, version: str, requires: tuple[str, ...] = ()) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in requires), "", ""])


def _sdist(name: str, version: str, files: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for path, text in {
            "PKG-INFO": _metadata(name, version),
            "pyproject.toml": _PYPROJECT,
            "setup.py": "raise SystemExit('setup.py was run')\n",
            **files,
        }.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return held.getvalue()


def _wheel(name: str, version: str, files: dict[str, str], requires: tuple[str, ...]) -> bytes:
    held, info = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(held, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/METADATA", _metadata(name, version, requires))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return held.getvalue()


@dataclass
class Index:
    """PEP 691 pages and files over HTTP. ``hold`` keeps answers for archives back until it is set."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add_sdist(self, name: str, version: str, files: dict[str, str]) -> str:
        """Add a source distribution whose ``setup.py`` must not be run; return its sha256."""
        return self._add(name, f"{name}-{version}.tar.gz", _sdist(name, version, files))

    def add_wheel(self, name: str, version: str, files: dict[str, str], *requires: str) -> str:
        """Add a wheel; return its sha256."""
        data = _wheel(name, version, files, requires)
        return self._add(name.replace("_", "-"), f"{name}-{version}-py3-none-any.whl", data)

    def add_toy(self, version: str) -> str:
        """Add a version of the engine that the tests build; return its sha256."""
        files = {
            "toy/__init__.py": "from toy._version import version\n",
            "toy/_version.py": f"version = {version!r}\n",
            "toy/core/pool.py": "size = 7\n",
            "toy/kernel.so": "not Python",
            "tests/test_toy.py": "",
        }
        return self.add_sdist("toy", version, files)

    def _add(self, project: str, file_name: str, data: bytes) -> str:
        self.files.setdefault(project, {})[file_name] = data
        return hashlib.sha256(data).hexdigest()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        parts = unquote(path).strip("/").split("/")
        if parts[0] == "simple" and parts[1] in self.files:
            held = self.files[parts[1]]
            files = [
                {"filename": name, "url": f"/files/{parts[1]}/{name}", "hashes": _hashes(data)}
                for name, data in held.items()
            ]
            page = {"meta": {"api-version": "1.0"}, "name": parts[1], "files": files}
            return "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()
        if parts[0] == "files":
            self.fetched.append(parts[2])
            self.asked.set()
            self.hold.wait(60)
            return "application/octet-stream", self.files[parts[1]][parts[2]]
        return None


def _hashes(data: bytes) -> dict[str, str]:
    return {"sha256": hashlib.sha256(data).hexdigest()}


def _serve(index: Index) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = index.answer(self.path)
            if answer is None:
                self.send_error(404)
                return
            kind, body = answer
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def make_index() -> Iterator[Callable[[], Index]]:
    servers: list[tuple[Index, ThreadingHTTPServer]] = []

    def make() -> Index:
        index = Index()
        index.hold.set()
        servers.append((index, _serve(index)))
        return index

    yield make
    for index, server in servers:
        index.hold.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def index(make_index: Callable[[], Index], monkeypatch: pytest.MonkeyPatch) -> Index:
    """The index that pip is configured for; nothing else of this machine's configuration counts."""
    made = make_index()
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    return made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that environments are kept in."""
    monkeypatch.setenv("KVSUITE_CACHE", str(tmp_path / "cache"))
    released.cache_clear()
    yield tmp_path / "cache" / "environments"
    released.cache_clear()


@pytest.fixture
def toy(index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The index with versions 1.0 and 1.2 of an engine, and its recipe."""
    for version in ("1.0", "1.2"):
        index.add_toy(version)
    _set_recipe(monkeypatch)
    return index


@pytest.fixture
def set_recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that changes the recipe of ``toy``: its version, its pinned hashes."""
    return partial(_set_recipe, monkeypatch)


def _set_recipe(
    monkeypatch: pytest.MonkeyPatch, *, version: int = 1, sha256: dict[str, str] | None = None
) -> None:
    loader = Loader(version, sources=Sources("sdist", ("toy",), sha256=sha256 or {}))
    monkeypatch.setitem(RECIPES, "toy", Recipe("toy", "toy", {"filtered": loader}, ""))


@pytest.fixture
def start_builder() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a process which builds a version of ``toy``."""
    started: list[subprocess.Popen[str]] = []

    def start(version: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _BUILDER, version]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def kept(cache: Path) -> Callable[[], list[str]]:
    """A function that lists the cache, without locks and logs."""
    return lambda: sorted(place.name for place in cache.iterdir() if place.name not in {".locks", ".logs"})
