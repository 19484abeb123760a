"""Imports part of a package for real and leaves the rest out, so that its cache runs without its kernels.

A block manager is a few files of plain Python, but importing them unfiltered pulls in a server, a model
library and a device's runtime. A `Sandbox` stands in ``sys.meta_path`` and finds every module of one package
by its `Rules`, a table::

    real      on the allow-list: read from the package's own files
    parent    on the way to a real one: its folder is searched, its ``__init__`` is not run
    answered  inert but for a few names of ours, which real modules use
    inert     everything else: its names can be mentioned, and do not answer (`kvsuite.engine.adapters.inert`)

Third-party packages of the table are inert only where they are not installed, and gone again when the imports
are done: nobody else shall take them for the real ones.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.inert import InertModule, Seal
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    LookUp = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Rules:
    """What of ``package`` is real. Names are full module names; ``name.*`` stands for all below ``name``."""

    package: str
    real: tuple[str, ...]
    """Modules that must be there, or nothing is imported; ``name.*`` need not be."""
    real_where_present: tuple[str, ...] = ()
    """Modules of some versions only: real where they are, unknown where they are not."""
    left_out: tuple[str, ...] = ()
    """Parts of real packages that are inert all the same."""
    shells: Mapping[str, str | None] = field(default_factory=dict)
    """Packages whose ``__init__`` is not run; names are looked up in the module given, if any. Parents of
    real modules need not stand here, but for that."""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Names of left-out modules and packages that have to work, with what works."""
    third_party: tuple[str, ...] = ()
    """Other packages that real modules import and the cache does not use: inert where not installed."""
    calls_while_importing: bool = False
    """Whether inert names answer until the imports are done, where modules use them on their top level.

    They decorate, are asked whether they are true (no) and are called for more of their kind. False where
    nothing of the sort is needed: then they never answer.
    """

    def is_real(self, name: str) -> bool:
        """Return whether a module is to be read from the package's own files."""
        return _named(name, (*self.real, *self.real_where_present)) and not _named(name, self.left_out)

    def is_parent(self, name: str) -> bool:
        """Return whether a module is only a folder on the way to real ones."""
        return any(real.startswith(f"{name}.") for real in (*self.real, *self.real_where_present))


class Sandbox(MetaPathFinder):
    """Finds modules by ``rules``; ``left_out`` lists the inert ones that were asked for."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.left_out: list[str] = []
        self._seal = Seal(rules.package, closed=not rules.calls_while_importing)
        self._importing = False
        self._looking = False

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Stand in front of the other finders, and stay there for modules of the package that come later.

        **Raises:** `EngineError` when the package is not installed, or lacks a module that must be real.
        """
        self._check_real()
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._importing, self._seal.closed = True, not self.rules.calls_while_importing
        try:
            yield
        finally:
            self._importing, self._seal.closed = False, True
            for name in self.left_out:
                if not _below(name, self.rules.package):
                    sys.modules.pop(name, None)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is imported; ``None`` leaves it to the finders behind."""
        del path, target
        top = fullname.partition(".")[0]
        if self._looking:
            return None
        if top != self.rules.package:
            absent = top in self.rules.third_party and self._importing and not self._installed(top)
            return self._inert(fullname) if absent else None
        if fullname in self.rules.answers:
            return self._inert(fullname)
        if fullname in self.rules.shells or (
            self.rules.is_parent(fullname) and not self.rules.is_real(fullname)
        ):
            return self._shell(fullname)
        return None if self.rules.is_real(fullname) else self._inert(fullname)

    def _check_real(self) -> None:
        root = self._root()
        lost = [name for name in self.rules.real if not name.endswith(".*") and _file(root, name) is None]
        if lost:
            raise EngineError(
                f"{self.rules.package} in {root} has no module {', '.join(lost)}, which this adapter reads: "
                "use a version that the adapter supports, or teach it where the module went"
            )

    def _inert(self, name: str) -> ModuleSpec:
        self.left_out.append(name)
        answers = self.rules.answers.get(name, {})
        return ModuleSpec(name, _Given(lambda: InertModule(name, self._seal, answers)), is_package=True)

    def _shell(self, name: str) -> ModuleSpec:
        source = self.rules.shells.get(name)
        look_up = self._below_of(name) if source is None else _names_of(source)
        spec = ModuleSpec(
            name, _Given(lambda: InertModule(name, self._seal, look_up=look_up)), is_package=True
        )
        spec.submodule_search_locations = [str(self._root().joinpath(*name.split(".")[1:]))]
        return spec

    def _below_of(self, parent: str) -> LookUp:
        """Return how a parent finds a real module below it; its other names are inert."""

        def look_up(name: str) -> Any:
            module = f"{parent}.{name}"
            real = self.rules.is_real(module) or self.rules.is_parent(module)
            there = real and _file(self._root(), module) is not None
            return importlib.import_module(module) if there else None

        return look_up

    def _installed(self, name: str) -> bool:
        there = sys.modules.get(name)
        return self._elsewhere(name) is not None if there is None else not isinstance(there, InertModule)

    def _root(self) -> Path:
        """Return the folder of the package, which is not imported for it."""
        found = self._elsewhere(self.rules.package)
        if found is None or not found.submodule_search_locations:
            raise EngineError(
                f"{self.rules.package} is not installed for {sys.executable}: install it, or ask for "
                f"{self.rules.package}@VERSION, which has an environment of its own"
            )
        return Path(next(iter(found.submodule_search_locations)))

    def _elsewhere(self, name: str) -> ModuleSpec | None:
        self._looking = True
        try:
            for finder in sys.meta_path:
                spec = None if finder is self else finder.find_spec(name, None, None)
                if spec is not None:
                    return spec
        finally:
            self._looking = False
        return None


class _Given(Loader):
    """Makes a module without a file."""

    def __init__(self, make: Callable[[], ModuleType]) -> None:
        self._make = make

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._make()

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _names_of(source: str) -> LookUp:
    return lambda name: getattr(importlib.import_module(source), name)


def _file(root: Path, name: str) -> Path | None:
    folder = root.joinpath(*name.split(".")[1:])
    candidates = (folder / "__init__.py", folder.with_suffix(".py"), folder)
    return next((path for path in candidates if path.is_file() or (path == folder and path.is_dir())), None)


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == it or (it.endswith(".*") and name.startswith(it[:-1])) for it in patterns)


def _below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")
