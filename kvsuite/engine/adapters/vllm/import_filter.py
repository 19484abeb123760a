"""Imports of a package through an allow-list: listed modules are the real ones, all others are inert.

vLLM's block manager is a few files of plain Python, but importing them unfiltered pulls in a server, a model
library and a GPU runtime. The filter finds every module of the package itself::

    real     in the allow-list, and read from the package's own files
    package  a parent of a real module: its folder is searched, its ``__init__`` is not run
    given    replaced by a few lines of ours that the real modules call while they are imported
    inert    everything else: its names can be mentioned and not called (`InertModule`)
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from kvsuite.engine.adapters.vllm.inert import InertModule
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    Fill = Callable[[ModuleType], None]


@dataclass(frozen=True, slots=True)
class FilterRules:
    """What of ``package`` is real. Names are full module names; ``name.*`` stands for all below ``name``."""

    package: str
    real: tuple[str, ...]
    """Modules that must be there, or the filter refuses to be built."""
    real_where_present: tuple[str, ...] = ()
    """Modules of some versions only: real where they are, unknown where they are not."""
    left_out: tuple[str, ...] = ()
    """Parts of real packages that are inert all the same."""
    given: Mapping[str, Fill] = field(default_factory=dict)
    """Replacements: each fills an `InertModule` with the few names that have to work."""

    def is_real(self, name: str) -> bool:
        """Return whether a module is to be read from the package's own files."""
        return _named(name, (*self.real, *self.real_where_present)) and not _named(name, self.left_out)

    def is_parent(self, name: str) -> bool:
        """Return whether a module is only a folder on the way to real ones."""
        return any(real.startswith(f"{name}.") for real in (*self.real, *self.real_where_present))


class ImportFilter(MetaPathFinder):
    """Finds every module of one package by `FilterRules`; ``root`` is the package's folder.

    **Raises:** `EngineError` when a module that must be real has no file there.
    """

    def __init__(self, root: Path, rules: FilterRules) -> None:
        self.root = root
        self.rules = rules
        lost = [name for name in rules.real if self._file(name) is None]
        if lost:
            raise EngineError(
                f"{rules.package} in {root} has no module {', '.join(lost)}, which this adapter reads: use a "
                "version that the adapter supports, or teach it where the module went"
            )

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the package; ``None`` for any other."""
        del path, target
        if not _below(fullname, (self.rules.package,)):
            return None
        if fullname in self.rules.given:
            return ModuleSpec(fullname, _Given(self.rules.given[fullname]), is_package=True)
        file = self._file(fullname)
        if self.rules.is_real(fullname):
            if file is None:
                return None
            folders = [str(file.parent)] if file.name == "__init__.py" else None
            return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=folders)
        spec = ModuleSpec(fullname, _Given(), is_package=True)
        if self.rules.is_parent(fullname):
            spec.submodule_search_locations = [str(self._folder(fullname))]
        return spec

    def _folder(self, name: str) -> Path:
        return self.root.joinpath(*name.split(".")[1:])

    def _file(self, name: str) -> Path | None:
        folder = self._folder(name)
        candidates = (folder / "__init__.py", folder.with_suffix(".py"))
        return next((path for path in candidates if path.is_file()), None)


class _Given(Loader):
    """Makes a module without a file: inert but for what ``fill`` puts into it."""

    def __init__(self, fill: Fill | None = None) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._fill is not None:
            self._fill(module)


class _Absent(MetaPathFinder):
    """Finds what nobody else finds of the packages named."""

    def __init__(self, given: Mapping[str, Fill | None]) -> None:
        self._given = given

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not _below(fullname, tuple(self._given)):
            return None
        return ModuleSpec(fullname, _Given(self._given.get(fullname)), is_package=True)


@contextmanager
def absent_packages(given: Mapping[str, Fill | None]) -> Iterator[None]:
    """Inside, give those of the packages that are not installed: inert, or as ``given`` fills them.

    They are gone afterwards, so that nobody else takes a stand-in for the real thing.
    """
    wanted = {name: fill for name, fill in given.items() if importlib.util.find_spec(name) is None}
    finder = _Absent(wanted)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _below(name, tuple(wanted))]:
            del sys.modules[name]


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == it or (it.endswith(".*") and name.startswith(it[:-1])) for it in patterns)


def _below(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)
